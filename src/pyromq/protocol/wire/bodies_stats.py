"""JSON bodies of a broker's statistics, under the same rules as `bodies`.

Pure. Used by brokers and admin tools.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.protocol.java.wire_types import Int64
from pyromq.protocol.wire.body_codec import Body


@dataclass(frozen=True, slots=True)
class BrokerStatsItem(Body):
    """One statistic over one span of time: how much, how much a second, how much each time."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsData(Body):
    """One statistic over the last minute, hour and day: the answer to VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)
