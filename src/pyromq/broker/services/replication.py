"""Replication as the broker runs it: serves replicas as a master, follows a master as a replica.

Puts the parts of `pyromq.replication` together with what they need of a broker: its role, the
master's addresses from the NameServer or haMasterAddress, and the copy of the master's tables
(`services.metadata_sync`). The replication port is bound in either role; a replica closes whatever
connects to it.

Every minute, the first time after ten seconds, a master logs how far each replica is behind, and a
replica how far it is.

Used by the broker and `broker.role_switch`. Runs on the loop.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pyromq.base.periodic import PeriodicTasks
from pyromq.broker.role import Role
from pyromq.broker.services.metadata_sync import MetadataSync
from pyromq.broker.services.registration import Registration
from pyromq.remoting.requester import Requester
from pyromq.replication.feeder import ReplicaStatus
from pyromq.replication.java_master import JavaMaster, remoting_address
from pyromq.replication.master import ReplicationMaster
from pyromq.replication.replica import FollowerStatus, Replica
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.tls.server import ServerTls

logger = logging.getLogger(__name__)

_LINE_SECONDS: Final = 60.0
_FIRST_LINE_SECONDS: Final = 10.0
#: How often a replica that has lost its master asks where it is.
_LOOK_SECONDS: Final = 3.0


class BrokerReplication:
    """The replication of one broker, in the role that it has."""

    def __init__(
        self,
        store: MessageStore,
        role: Role,
        registration: Registration,
        client: Requester,
        tables: MetadataSync,
        *,
        broker_name: str,
        on_stop: Callable[[str], None],
        tls: ServerTls,
    ) -> None:
        """`on_stop` gets the reason if a replica can never follow its master."""
        self._store = store
        self._role = role
        self._registration = registration
        self._tables = tables
        config = store.config
        self._master = ReplicationMaster(
            config, store.replication, broker_name, tls.protect_replication
        )
        java = JavaMaster(
            config, store.replication, client, partial(remoting_master, config, registration)
        )
        self._replica = Replica(
            config,
            store.replication,
            address=self._master_address,
            broker_id=lambda: role.broker_id,
            examine_java=java.examine,
            on_stop=on_stop,
            tls=tls.replication_client,
        )
        self._periodic = PeriodicTasks()
        role.listeners.append(self._role_changed)

    # Lifecycle

    async def listen(self, bound: socket.socket) -> None:
        """Accept connections on the replication port. Takes over the socket.

        A master feeds its replicas from now on, and a SYNC_MASTER waits for them: requests are
        served before `start`, and must not be acknowledged without a replica.
        """
        await self._master.listen(bound)
        if not self._role.is_replica:
            self._master.serve(self._role.current)

    async def start(self) -> None:
        """Begin, in the role that the broker has."""
        self._periodic.start(_LINE_SECONDS, self._log_lag, first=_FIRST_LINE_SECONDS)
        self._periodic.start(_LOOK_SECONDS, self._look_for_master)
        if self._role.is_replica:
            await self.become_replica()

    async def stop(self) -> None:
        """End every connection, after replicas got what the log has."""
        await self._periodic.stop()
        await self._tables.stop()
        await self._replica.stop()
        await self._master.stop()

    def cut_off(self) -> None:
        """Break every connection, as a killed process would; `stop` ends the rest."""
        self._master.cut_off()
        self._replica.cut_off()

    async def become_master(self) -> None:
        """Stop following, and complete the log so that this broker can continue it."""
        await self._tables.stop()
        await self._replica.stop()
        self._store.set_replica(False)

    async def become_replica(self) -> None:
        """Stop serving replicas and follow a master."""
        self._master.withdraw()
        self._store.set_replica(True)
        self._replica.start()
        self._tables.start()

    async def connect_now(self) -> None:
        """Ask the NameServers who is the master and connect, without waiting for the next retry."""
        await self._registration.register_now()
        if self._role.is_replica:
            await self._replica.stop()
            self._replica.start()

    async def copy_tables(self) -> list[str]:
        """Copy the master's tables; return a message for each that could not be copied."""
        return await self._tables.sync_now()

    def _role_changed(self) -> None:
        if not self._role.is_replica:
            self._master.serve(self._role.current)

    # Figures

    def is_following(self) -> bool:
        """Return whether a connection to a master is alive."""
        return self._role.is_replica and self._replica.status().is_connected

    def status(self) -> list[ReplicaStatus]:
        """Return how far each replica of this master is."""
        return self._master.status()

    def follower(self) -> FollowerStatus | None:
        """Return how this replica is doing; None on a master."""
        return self._replica.status() if self._role.is_replica else None

    def figures(self) -> dict[str, Any]:
        """Return everything as JSON values, for GET_REPLICATION_STATUS."""
        source = self._store.replication.source
        follower = self.follower()
        return {
            "role": self._role.current.name,
            "brokerId": self._role.broker_id,
            "logStart": source.first,
            "logEnd": source.end,
            "replicated": self._store.replication.replicated_offset,
            "replicas": [status._asdict() for status in self.status()],
            "following": None if follower is None else follower._asdict(),
        }

    def _log_lag(self) -> None:
        for status in self.status():
            logger.info(
                "replica %s (%s): %d bytes, %d ms behind, at %d",
                status.address,
                status.kind,
                status.lag_bytes,
                status.lag_millis,
                status.acked,
            )
        follower = self.follower()
        if follower is not None:
            logger.info(
                "replica %d %s %s, at %d",
                self._role.broker_id,
                "follows" if follower.is_connected else "does not reach",
                follower.master or "an unknown master",
                follower.end,
            )

    def _look_for_master(self) -> None:
        """Ask the NameServers for the master's address while there is no connection to it."""
        if self._role.is_replica and not self._replica.status().is_connected:
            self._registration.register_soon()

    def _master_address(self) -> str | None:
        """Return where the master serves replicas: as configured, or as NameServers answer."""
        return _configured(self._store.config) or self._registration.master_ha_address


def remoting_master(config: MessageStoreConfig, registration: Registration) -> str | None:
    """Return where clients reach the master of a replica, or None if that is unknown."""
    if registration.master_address is not None:
        return registration.master_address
    configured = _configured(config)
    return None if configured is None else remoting_address(configured)


def _configured(config: MessageStoreConfig) -> str | None:
    address = config.ha_master_address
    # As RocketMQ tells an address from a leftover.
    return address if address is not None and len(address) >= 6 else None
