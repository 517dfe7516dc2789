"""Ask brokers for the lags of consumer groups. Called by jobs, in the driver."""

from __future__ import annotations

from collections.abc import Collection

from pyromq.protocol.names import is_system_group
from pyromq.protocol.wire.bodies import SubscriptionGroupWrapper
from pyromq.protocol.wire.bodies_admin import ConsumeStats
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers_admin import GetConsumeStatsRequestHeader
from pyromq.spark.origins.broker import BrokerOrigin
from pyromq.spark.origins.origin import OriginError
from pyromq.spark.report.data import GroupLag


def group_lags(origin: BrokerOrigin, topics: Collection[str]) -> list[GroupLag]:
    """Return the lag of every group that has consumed one of these topics."""
    lags: dict[tuple[str, str], GroupLag] = {}
    for address in origin.brokers().values():
        for group in _groups(origin, address):
            for topic, lag, last in _lags_of(origin, address, group):
                if topic in topics:
                    known = lags.get((group, topic), GroupLag(group, topic, 0, 0))
                    lags[group, topic] = GroupLag(
                        group, topic, known.lag + lag, max(known.last_ms, last)
                    )
    return sorted(lags.values())


def _groups(origin: BrokerOrigin, address: str) -> list[str]:
    answer = origin.ask(address, RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    table = SubscriptionGroupWrapper.decode(answer.body).subscription_group_table
    return sorted(group for group in table if not is_system_group(group))


def _lags_of(origin: BrokerOrigin, address: str, group: str) -> list[tuple[str, int, int]]:
    command = RemotingCommand(
        RequestCode.GET_CONSUME_STATS, ext_fields=GetConsumeStatsRequestHeader(group).encode()
    )
    try:
        stats = ConsumeStats.decode(origin.ask(address, command).body)
    except OriginError:
        return []  # a broker has no figures of a group that never consumed from it
    return [
        (
            queue.topic,
            max(each.broker_offset - each.consumer_offset, 0),
            max(each.last_timestamp, 0),
        )
        for queue, each in stats.offset_table.items()
    ]
