"""Changes the role of a running broker: a replica becomes a master, or a master a replica.

Delivery of delayed messages and checks of transactions run on masters only. They exist on every
broker and are started and stopped here.

| | become_master | become_replica |
| --- | --- | --- |
| 1 | save the role in the broker's file | save the role in the broker's file |
| 2 | stop following; the log's end is final | take the role: sends are refused |
| 3 | read open transactions from the log | stop delay delivery and transaction checks |
| 4 | adopt topics that only the log knows | write what is gathered |
| 5 | take the role: sends are accepted | follow a master |
| 6 | start delay delivery and transaction checks | register |
| 7 | register | |

Invariants
1. The broker never writes to its log while it follows a master.
2. A restart finds the role of the last change that began. If a promotion fails before step 5, the
   broker is a replica again, also in its file.
3. Changes never overlap.

Used by the broker, on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from pyromq.broker.assembly import Assembly
from pyromq.broker.config import MASTER_ID
from pyromq.broker.role import RoleError
from pyromq.broker.services.registration import Registration
from pyromq.store.config import BrokerRole

logger = logging.getLogger(__name__)

#: Id of a replica that was given none.
_FIRST_REPLICA_ID = 1


class Replication(Protocol):
    """What a change of role needs of replication: `services.replication`."""

    async def become_master(self) -> None:
        """Stop following, and return when no more bytes of the old master will be appended."""

    async def become_replica(self) -> None:
        """Stop serving replicas and follow a master. The broker writes nothing itself any more."""


class RoleSwitch:
    """Changes the role of one broker, and starts and stops what only masters do."""

    def __init__(
        self,
        assembly: Assembly,
        registration: Registration,
        replication: Replication | None,
        *,
        is_saved: bool = True,
    ) -> None:
        """`replication` is None for a broker that runs alone.

        Without `is_saved`, the role is not saved: a raft group decides on it.
        """
        self._is_saved = is_saved
        self._role = assembly.parts.role
        self._store = assembly.parts.store
        self._tables = assembly.parts.tables
        self._live_config = assembly.parts.live_config
        self._delay = assembly.delay
        self._check = assembly.transaction_check
        self._registration = registration
        self._replication = replication
        self._changing = asyncio.Lock()
        self._stopped = False

    # The work of a master

    async def load(self) -> None:
        """Prepare the work of a master, before the first request; nothing on a replica."""
        if not self._role.is_replica:
            await self._check.load()

    def start(self) -> None:
        """Start the work of a master; nothing on a replica."""
        if not self._role.is_replica:
            self._delay.start()
            self._check.start()

    async def stop(self) -> None:
        """Stop the work of a master, and refuse further changes."""
        async with self._changing:
            self._stopped = True
            await self._stop_work()

    async def _stop_work(self) -> None:
        await self._delay.stop()
        await self._check.stop()

    # Changes

    async def become_master(self, role: BrokerRole) -> None:
        """Turn a replica into a master.

        Raise RoleError if it is none, OSError if the role cannot be saved, and whatever reading the
        log raises; then the broker is still a replica.
        """
        if role is BrokerRole.SLAVE:
            raise RoleError("the role of a master is ASYNC_MASTER or SYNC_MASTER")
        async with self._changing:
            if not self._role.is_replica:
                raise RoleError(f"this broker is already a master, {self._role.current.name}")
            self._refuse_when_stopped()
            replica_id = self._role.broker_id
            await self._save(role, MASTER_ID)
            try:
                if self._replication is not None:
                    await self._replication.become_master()
                await self._check.load()
            except BaseException:
                await self._stay_replica(replica_id)
                raise
            topics = self._tables.topics
            # The master created them after the last copy of its table.
            topics.adopt(self._store.queue_counts())
            # Its system topics went with the copy.
            topics.settings_changed()
            self._role.change(role, MASTER_ID)
            self.start()
            # NameServers ignore the topics of a replica: make them read the table.
            topics.new_version()
            await self._registration.register_now()
            logger.info("became %s; the log ends at %d", role.name, self._store.max_physical_offset)

    async def become_replica(self, broker_id: int) -> None:
        """Turn a master into a replica with this id (1 if it is 0).

        Raise RoleError if it is none or cannot become one without a restart, and OSError if the
        role cannot be saved; then the broker is still a master.
        """
        async with self._changing:
            if self._role.is_replica:
                raise RoleError(f"this broker is already a replica, {self._role.broker_id}")
            self._refuse_when_stopped()
            if self._store.free_buffers is not None:
                raise RoleError(
                    "a broker with a transient store pool cannot become a replica while it runs: "
                    "set brokerRole=SLAVE and restart it"
                )
            broker_id = broker_id or _FIRST_REPLICA_ID
            await self._save(BrokerRole.SLAVE, broker_id)
            self._role.change(BrokerRole.SLAVE, broker_id)
            await self._stop_work()
            self._store.seal()
            flushed = self._store.flushed_offset
            self._tables.delay_offsets.settle(flushed)
            if not self._is_saved:
                # The group may drop messages that are not committed.
                self._tables.delay_offsets.drop_unsettled()
            self._check.settle_all(flushed)
            self._check.forget()
            if self._replication is not None:
                await self._replication.become_replica()
            await self._registration.register_now()
            logger.info(
                "became replica %d; the log ends at %d", broker_id, self._store.max_physical_offset
            )

    async def _save(self, role: BrokerRole, broker_id: int) -> None:
        if self._is_saved:
            await self._live_config.save_role(role, broker_id)

    async def _stay_replica(self, broker_id: int) -> None:
        """Undo the first steps of a promotion."""
        self._check.forget()
        try:
            await self._save(BrokerRole.SLAVE, broker_id)
        except (OSError, ValueError) as error:
            logger.error(
                "promotion failed, and %s still says that this broker is a master: set "
                "brokerRole=SLAVE and brokerId=%d there: %s",
                self._live_config.file,
                broker_id,
                error,
            )
        if self._replication is not None:
            await self._replication.become_replica()

    def _refuse_when_stopped(self) -> None:
        if self._stopped:
            raise RoleError("the broker is stopping")
