"""The master's side of replication: listens on the replication port and feeds every replica.

Each connection is a `Feeder`. This module admits peers, tells the feeders when the log grows, and
turns their reports into acknowledgements (`acknowledged`). Without a replica the log is not watched
at all: a broker that has none pays nothing.

A broker serves replicas while it is a master. Anything else that connects is closed with one log
line: addresses that are not listed in haAllowedReplicas, connections beyond MAX_CONNECTIONS,
silence, and bytes that are not of `wire`'s format.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from pyromq.base.networks import is_allowed
from pyromq.base.sizes import MIB
from pyromq.replication.acknowledged import ReplicaGate
from pyromq.replication.feeder import Feeder, FeederState, ReplicaStatus
from pyromq.store.config import BrokerRole, MessageStoreConfig
from pyromq.store.replication import StoreReplication

logger = logging.getLogger(__name__)

#: Replicas and peers that want to become one. Beyond it, the oldest that is none yet is closed.
MAX_CONNECTIONS: Final = 64
_BACKLOG: Final = 16
#: With a transient store pool, how often committed bytes are looked for.
_POOL_SECONDS: Final = 0.005
#: How long a stop waits for replicas, and for which: those that lag by no more than this.
_DRAIN_SECONDS: Final = 3.0
_DRAIN_POLL_SECONDS: Final = 0.01
_MAX_DRAINED: Final = 64 * MIB

Protect = Callable[[Callable[[], Feeder]], Callable[[], asyncio.BaseProtocol]]


class ReplicationMaster:
    """Serves the replicas of one broker."""

    def __init__(
        self,
        config: MessageStoreConfig,
        store: StoreReplication,
        broker_name: str,
        protect: Protect | None = None,
    ) -> None:
        """`protect` puts TLS in front of the feeders; without it, connections are plain."""
        self.config = config
        self._protect = protect
        self.source = store.source
        self.broker_name = broker_name
        self._store = store
        self._gate = ReplicaGate(config, store, self._lag)
        #: In the order of their arrival.
        self._feeders: dict[Feeder, None] = {}
        self._fed: list[Feeder] = []
        self._server: asyncio.Server | None = None
        self._pool_timer: asyncio.TimerHandle | None = None
        self._is_serving = False

    # Lifecycle

    async def listen(self, bound: socket.socket) -> None:
        """Listen on a bound socket; peers are refused until `serve`."""
        loop = asyncio.get_running_loop()
        feeder = partial(Feeder, self, loop)
        self._server = await loop.create_server(
            feeder if self._protect is None else self._protect(feeder),
            sock=bound,
            backlog=_BACKLOG,
        )

    def serve(self, role: BrokerRole) -> None:
        """Feed replicas; with SYNC_MASTER, let responses wait for them. May be called again."""
        self._is_serving = True
        self._store.require_replicas(self._gate if role is BrokerRole.SYNC_MASTER else None)

    def withdraw(self) -> None:
        """Feed nobody: the broker has become a replica itself."""
        self._is_serving = False
        self._store.require_replicas(None)
        for feeder in list(self._feeders):
            feeder.close("this broker is no longer the master", level=logging.INFO)

    async def stop(self) -> None:
        """Send what is in the log, then close every connection and the port."""
        if self._server is not None:
            self._server.close()
        await self._drain()
        self.withdraw()
        for feeder in list(self._feeders):
            feeder.abort()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def cut_off(self) -> None:
        """Break every connection, as a killed process would; `stop` closes the rest."""
        if self._server is not None:
            self._server.close()
        self._is_serving = False
        for feeder in list(self._feeders):
            feeder.abort()

    async def _drain(self) -> None:
        """Wait until every replica that keeps up has reported the log's end, but not for long."""
        end = self.source.end
        deadline = asyncio.get_running_loop().time() + _DRAIN_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            lags = [end - each.acked for each in self._fed if each.state is FeederState.FEEDING]
            if not any(0 < lag <= _MAX_DRAINED for lag in lags):
                return
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    # Figures

    def status(self) -> list[ReplicaStatus]:
        """Return how far each replica is."""
        return [feeder.status() for feeder in self._fed]

    # For the feeders

    def admit(self, feeder: Feeder, host: str) -> str | None:
        """Return why a peer is refused, or None."""
        if not self._is_serving:
            return "this broker is not a master"
        if not is_allowed(host, self.config.allowed_replicas):
            return "its address is not in haAllowedReplicas"
        if len(self._feeders) >= MAX_CONNECTIONS:
            idle = next((each for each in self._feeders if each not in self._fed), None)
            if idle is None:
                return f"there are {MAX_CONNECTIONS} replicas already"
            idle.abort("made room for another connection")
        self._feeders[feeder] = None
        return None

    def accepted(self, feeder: Feeder) -> None:
        """Feed a replica from now on."""
        self._fed.append(feeder)
        self._store.on_append(self._log_grew)
        if self.config.uses_transient_store_pool and self._pool_timer is None:
            self._look_for_committed()

    def reported(self, feeder: Feeder) -> None:
        """Let responses leave that waited for this replica."""
        if feeder.counts:
            self._gate.reported(min(feeder.acked, self.source.end))

    def closed(self, feeder: Feeder) -> None:
        """Feed a replica no longer."""
        if feeder in self._fed:
            self._fed.remove(feeder)
            if not self._fed:
                self._store.on_append(None)

    def gone(self, feeder: Feeder) -> None:
        """Forget a connection."""
        self._feeders.pop(feeder, None)

    # The log

    def _lag(self, offset: int) -> int | None:
        """Return how far the closest replica is behind `offset`, or None without replicas."""
        acked = [each.acked for each in self._fed if each.state is FeederState.FEEDING]
        return offset - max(acked) if acked else None

    def _log_grew(self) -> None:
        for feeder in self._fed:
            feeder.log_grew()

    def _look_for_committed(self) -> None:
        """Send what another thread has committed since: with a pool, appends come before that."""
        self._pool_timer = None
        if self._fed:
            self._log_grew()
            loop = asyncio.get_running_loop()
            self._pool_timer = loop.call_later(_POOL_SECONDS, self._look_for_committed)
