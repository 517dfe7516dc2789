"""One broker of a cluster, on the loop of its servers: its settings, files, port and role.

A node outlives its broker. It keeps the ports, also from other programs that ask for a free one,
and the role that the broker had last: a promoted replica is a master after a restart too. A replica
that can never follow its master stops; `failure` says why, until the next start.

`kill` copies the files between two callbacks of the loop, which is the only writer of messages, and
lets the old broker stop on files that nobody reads.

Used by `replicas` and `raft`, on the loop of the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyromq.base.settings import ConfigError
from pyromq.broker.broker import Broker
from pyromq.broker.config import load_broker_properties
from pyromq.broker.services.replication import BrokerReplication
from pyromq.remoting.server import bound_socket
from pyromq.store.config import BrokerRole
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.truncate_backup import data_blocks

HOST: Final = "127.0.0.1"
_ROLE_KEYS: Final = ("brokerRole", "brokerId")
#: The ports of a broker: fast, main and replication port.
_PORTS: Final = (-2, 0, 1)


class Node:
    """A broker that can be started again on its files."""

    def __init__(
        self,
        settings: Mapping[str, str],
        directory: Path,
        *,
        raft_timing: Mapping[str, int] | None = None,
        held: Sequence[socket.socket] = (),
    ) -> None:
        """`settings` are complete, except for port and directory.

        `raft_timing` replaces intervals of a raft node. `held` are sockets bound to ports of this
        broker, which it takes over.
        """
        self.name = settings["brokerName"]
        self._settings = dict(settings)
        self._first_role = {key: settings[key] for key in _ROLE_KEYS if key in settings}
        self._directory = directory
        self._lives = 0
        self._port = self._settings.pop("listenPort", "0")
        self.broker: Broker | None = None
        #: Held during a start, a stop and a kill: a test may ask for two at once.
        self._changing = asyncio.Lock()
        #: Bound to the ports of a stopped broker.
        self._held: list[socket.socket] = list(held)
        self._raft_timing = dict(raft_timing or {})
        #: Why the broker stopped by itself.
        self.failure: str | None = None
        self._leaving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Return its address, which stays the same while it is stopped."""
        return f"{HOST}:{self._port}"

    @property
    def directory(self) -> Path:
        """Return its store directory."""
        return self._directory / str(self._lives)

    # Role

    @property
    def is_replica(self) -> bool:
        """Return whether it follows a master, or will at its next start."""
        if self.broker is not None:
            return self.broker.role.is_replica
        return self._starts_as_replica

    @property
    def was_promoted(self) -> bool:
        """Return whether its broker was started as a replica and is a master now."""
        return self.broker is not None and not self.is_replica and self._starts_as_replica

    @property
    def _starts_as_replica(self) -> bool:
        return self._settings.get("brokerRole", "").strip() == BrokerRole.SLAVE.name

    @property
    def broker_id(self) -> int:
        """Return its id among the brokers of its name."""
        if self.broker is not None:
            return self.broker.role.broker_id
        return load_broker_properties(self._settings).broker.broker_id

    def set_replica(self, broker_id: int) -> None:
        """Make it a replica from the next start on."""
        self._set_role({"brokerRole": BrokerRole.SLAVE.name, "brokerId": str(broker_id)})

    def restore_role(self) -> None:
        """Give it the role that it was created with, from the next start on."""
        self._set_role(self._first_role)

    def keep_role(self) -> None:
        """Keep the role that its broker has now for the next start."""
        if self.broker is not None:
            role = self.broker.role
            self._set_role({"brokerRole": role.current.name, "brokerId": str(role.broker_id)})

    def _set_role(self, settings: Mapping[str, str]) -> None:
        for key in _ROLE_KEYS:
            self._settings.pop(key, None)
        self._settings.update(settings)

    # Replication

    @property
    def replication(self) -> BrokerReplication | None:
        """Return the replication of its broker, if that runs."""
        return None if self.broker is None else self.broker.replication

    @property
    def is_following(self) -> bool:
        """Return whether its connection to a master is alive."""
        return self.replication is not None and self.replication.is_following()

    @property
    def log_end(self) -> int:
        """Return the end of the log; 0 if the broker is stopped."""
        store = self._store
        return 0 if store is None else store.replication.source.end

    @property
    def is_indexed(self) -> bool:
        """Return whether everything in the log can be found by key."""
        return self._store is not None and not self._store.dispatch_behind

    @property
    def _store(self) -> MessageStore | None:
        return None if self.broker is None else self.broker.store

    # Lifecycle

    async def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start the broker; `settings` apply from now on. Idempotent."""
        await self._left()
        check_settings(settings or {})
        async with self._changing:
            if self.broker is None:
                await self._start(settings)

    async def _start(self, settings: Mapping[str, str] | None) -> None:
        self._settings.update(settings or {})
        self.failure = None
        values = load_broker_properties(
            {
                **self._settings,
                "listenPort": self._port,
                "storePathRootDir": str(self.directory),
            }
        )
        broker = Broker(
            values.broker, values.store, on_failure=self._failed, raft_timing=self._raft_timing
        )
        self.release()
        try:
            await broker.start()
        except BaseException:
            await broker.stop()
            self._hold()
            raise
        self.broker = broker
        self._port = str(broker.port)

    async def stop(self) -> None:
        """Stop the broker cleanly. Idempotent."""
        async with self._changing:
            self.keep_role()
            broker, self.broker = self.broker, None
            if broker is not None:
                await broker.stop()
                self._hold()
        await self._left()

    async def kill(self) -> None:
        """End the broker like a killed process. Idempotent."""
        async with self._changing:
            self.keep_role()
            broker, self.broker = self.broker, None
            if broker is not None:
                await self._kill(broker)

    async def _kill(self, broker: Broker) -> None:
        await broker.cut_off()
        self._hold()
        before = self.directory
        self._lives += 1
        # Threads write tables beside their files and rename them then.
        shutil.copytree(
            before,
            self.directory,
            ignore=shutil.ignore_patterns("*.tmp"),
            copy_function=_copy_sparse,
        )
        await broker.stop()
        shutil.rmtree(before)

    def empty(self) -> None:
        """Remove the files of a stopped broker."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def release(self) -> None:
        """Give the ports of a stopped broker away. Idempotent."""
        for held in self._held:
            held.close()
        self._held.clear()

    def _hold(self) -> None:
        """Keep the ports: connections to a socket that does not listen are refused."""
        self.release()
        for port in self._ports():
            with contextlib.suppress(OSError):  # somebody was faster
                self._held.append(bound_socket(HOST, port))

    def _ports(self) -> list[int]:
        port = int(self._port)
        ports = [port + distance for distance in _PORTS if port]
        store = load_broker_properties(self._settings).store
        if store.enable_dleger_commit_log:
            ports.append(store.raft_peers[store.raft_id][1])
        return ports

    def _failed(self, reason: str) -> None:
        self.failure = reason
        self._leaving = asyncio.get_running_loop().create_task(self.stop())

    async def _left(self) -> None:
        """Wait until a broker that failed has stopped."""
        leaving = self._leaving
        if leaving is not None and leaving is not asyncio.current_task():
            await leaving
            self._leaving = None


def _copy_sparse(source: str, target: str) -> None:
    """Copy a file without its holes: those of preallocated files are large."""
    with Path(target).open("wb") as copy:
        copy.truncate(Path(source).stat().st_size)
        for position, data in data_blocks(Path(source), 0):
            copy.seek(position)
            copy.write(data)


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for unknown or ignored settings: in a test that is a mistake."""
    warnings = load_broker_properties(settings).warnings
    if warnings:
        raise ConfigError("; ".join(warnings))
