"""The parts that a broker's request families and services are built from.

A frozen set: complete before the first family is built and never changed. `broker.assembly` builds
everything else from it; tests replace single parts with `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyromq.base.clock import Clock, now_ms
from pyromq.broker.config import BrokerConfig
from pyromq.broker.hooks import Hooks
from pyromq.broker.inner_messages import MessageWriter
from pyromq.broker.instruments import BrokerInstruments
from pyromq.broker.role import Role
from pyromq.broker.services.access_control import AccessControl
from pyromq.broker.services.flow_control import Lanes
from pyromq.broker.services.live_config import LiveConfig
from pyromq.broker.services.long_poll import LongPoll
from pyromq.broker.services.notices import GroupNotices
from pyromq.broker.services.promotion import Promotion
from pyromq.broker.services.stats import BrokerStats
from pyromq.broker.services.upkeep.fall_behind import FallBehind
from pyromq.broker.services.upkeep.water_marks import WaterMarks
from pyromq.broker.state.tables import BrokerTables
from pyromq.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """A running store, the tables, and what all request families share."""

    config: BrokerConfig
    #: Master or replica; changes at run time.
    role: Role
    store: MessageStore
    #: The address and port that records and message ids carry.
    store_host: bytes
    #: Where clients reach the broker.
    address: str
    tables: BrokerTables
    writer: MessageWriter
    lanes: Lanes
    long_poll: LongPoll
    notices: GroupNotices
    stats: BrokerStats
    fall_behind: FallBehind
    water_marks: WaterMarks
    live_config: LiveConfig
    #: Tells the NameServers about the topics as they are now and saves them. Returns what a
    #: response must wait for, if anything.
    announce: Callable[[], Awaitable[None] | None]
    hooks: Hooks
    clock: Clock
    #: Serves PROMOTE_BROKER; None for a broker that cannot change its role.
    promotion: Promotion | None = None
    #: Checks every request; None if `aclEnable` is false.
    access_control: AccessControl | None = None
    #: Returns how replication is doing (`BrokerReplication.figures`).
    replication_figures: Callable[[], dict[str, Any]] = dict
    #: Times the hot paths; None without metrics.
    instruments: BrokerInstruments | None = None
    #: Lets another node of the raft group lead; returns why not. None outside of a group.
    transfer: Callable[[str], Awaitable[str | None]] | None = None

    def refusals(self) -> dict[str, int]:
        """Return the requests that access control has refused, by reason; empty without it."""
        control = self.access_control
        return {} if control is None else control.auditor.counts()

    async def announced(self) -> None:
        """Announce the topics and wait until the NameServers know them."""
        pending = self.announce()
        if pending is not None:
            await pending


def build_parts(  # noqa: PLR0913 - the inputs of the composition root
    config: BrokerConfig,
    store: MessageStore,
    tables: BrokerTables,
    *,
    lanes: Lanes,
    long_poll: LongPoll,
    store_host: bytes,
    address: str,
    announce: Callable[[], Awaitable[None] | None],
    role: Role | None = None,
    promotion: Promotion | None = None,
    access_control: AccessControl | None = None,
    replication_figures: Callable[[], dict[str, Any]] = dict,
    instruments: BrokerInstruments | None = None,
    transfer: Callable[[str], Awaitable[str | None]] | None = None,
    hooks: Hooks | None = None,
    config_file: Path | None = None,
    role_file: Path | None = None,
    clock: Clock = now_ms,
) -> BrokerParts:
    """Complete the parts of a broker around its store and tables.

    `lanes` and `long_poll` exist before the store, which notifies `long_poll` of arrivals. Without
    `role`, the broker has the one of its settings.
    """
    stats = BrokerStats(store.growth, config.broker_cluster_name)
    fall_behind = FallBehind(store, clock)
    stats.on_pulls.append(fall_behind.note)
    return BrokerParts(
        config=config,
        role=role or Role(store.config.broker_role, config.broker_id),
        store=store,
        store_host=store_host,
        address=address,
        tables=tables,
        writer=MessageWriter(store),
        lanes=lanes,
        long_poll=long_poll,
        notices=GroupNotices(tables.consumers),
        stats=stats,
        fall_behind=fall_behind,
        water_marks=WaterMarks(lanes, store),
        live_config=LiveConfig(config, store.config, config_file, role_file=role_file),
        announce=announce,
        hooks=hooks or Hooks(),
        clock=clock,
        promotion=promotion,
        access_control=access_control,
        replication_figures=replication_figures,
        instruments=instruments,
        transfer=transfer,
    )
