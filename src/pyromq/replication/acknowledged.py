"""The gate of a SYNC_MASTER: a chunk passes when a replica has it.

Which reports of replicas count is decided by `master`; this is what happens then: the watermark
`replicated` moves and the chunks below it pass. As in RocketMQ, one replica is enough, whichever it
is. A chunk that finds no replica at hand passes at once as NO_REPLICA: its messages are stored, and
their producers learn that there is no second copy.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyromq.store.acknowledgement import AckOutcome, OffsetWaiters
from pyromq.store.config import MessageStoreConfig
from pyromq.store.replication import StoreReplication


class ReplicaGate:
    """Chunks that wait for a replica."""

    def __init__(
        self,
        config: MessageStoreConfig,
        store: StoreReplication,
        lag_of: Callable[[int], int | None],
    ) -> None:
        """`lag_of` returns how far the closest replica is behind an offset; None without one."""
        self._config = config
        self._store = store
        self._lag_of = lag_of
        self._waiters = OffsetWaiters(lambda: store.replicated_offset, AckOutcome.REPLICA_TIMED_OUT)

    def wait(self, offset: int) -> asyncio.Future[AckOutcome]:
        """Return a future that is done when a replica has everything below `offset`."""
        lag = self._lag_of(offset)
        if lag is None or lag >= self._config.ha_slave_fallbehind_max:
            future: asyncio.Future[AckOutcome] = asyncio.get_running_loop().create_future()
            future.set_result(AckOutcome.NO_REPLICA)
            return future
        return self._waiters.wait(offset, self._config.slave_timeout / 1000)

    def reported(self, offset: int) -> None:
        """Let everything below `offset` pass: a replica has it."""
        if offset > self._store.replicated_offset:
            self._store.move_replicated(offset)
            self._waiters.notify()
