"""A master and a replica in the test's process: two stores and the real sockets between them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyromq.replication.master import ReplicationMaster
from pyromq.replication.replica import Replica
from pyromq.store.message_store import MessageStore
from pyromq.store.replication_settings import BrokerRole
from tests.support.patience import until
from tests.support.stores import open_store


def bound_socket(port: int = 0) -> socket.socket:
    """A socket on a free port, or on this one."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


class MasterSide:
    """A store that serves replicas."""

    def __init__(
        self, root: Path, role: BrokerRole = BrokerRole.ASYNC_MASTER, **changes: Any
    ) -> None:
        self.store = open_store(root, **changes)
        self.role = role
        self.master = ReplicationMaster(self.store.config, self.store.replication, "broker-a")
        self.port = 0

    @property
    def address(self) -> str:
        """Where replicas connect."""
        return f"127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Listen."""
        bound = bound_socket(port)
        self.port = bound.getsockname()[1]
        await self.master.listen(bound)
        self.master.serve(self.role)

    async def stop(self) -> None:
        """Stop listening, and close the store."""
        await self.master.stop()
        self.store.stop()


class ReplicaSide:
    """A store that follows a master."""

    def __init__(self, root: Path, address: Callable[[], str | None], **changes: Any) -> None:
        self.store: MessageStore = open_store(root, broker_role=BrokerRole.SLAVE, **changes)
        self.stopped: list[str] = []
        self.examined: list[str] = []

        async def examine(address: str) -> None:
            self.examined.append(address)

        self.replica = Replica(
            self.store.config,
            self.store.replication,
            address=address,
            broker_id=lambda: 1,
            examine_java=examine,
            on_stop=self.stopped.append,
        )

    async def stop(self) -> None:
        """Stop following, and close the store."""
        await self.replica.stop()
        self.store.stop()


@asynccontextmanager
async def pair(
    tmp_path: Path, role: BrokerRole = BrokerRole.ASYNC_MASTER, **changes: Any
) -> AsyncIterator[tuple[MasterSide, ReplicaSide]]:
    """A master and a replica that follows it."""
    master = MasterSide(tmp_path / "master", role, **changes)
    await master.start()
    replica = ReplicaSide(tmp_path / "replica", lambda: master.address, **changes)
    replica.replica.start()
    try:
        yield master, replica
    finally:
        await replica.stop()
        await master.stop()


def whole_log(store: MessageStore) -> bytes:
    """All bytes of a log."""
    source, parts, offset = store.replication.source, [], 0
    while offset < source.end:
        parts.append(bytes(source.slice(offset, source.segment_size)))
        offset += len(parts[-1])
    return b"".join(parts)


def log_bytes(root: Path) -> dict[str, bytes]:
    """The segments of a store's log."""
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


async def caught_up(master: MasterSide, replica: ReplicaSide) -> None:
    """Wait until the replica has everything and the master knows it."""
    end = master.store.max_physical_offset
    await until(
        lambda: (
            replica.store.max_physical_offset >= end
            and any(status.acked >= end for status in master.master.status())
        )
    )


class ScriptedMaster:
    """A master that speaks Java's format; the test says what it sends."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.writer: asyncio.StreamWriter | None = None
        self.connections = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        if self.writer is not None:
            self.writer.close()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        try:
            while True:
                (offset,) = struct.unpack(">q", await reader.readexactly(8))
                if offset != -1:  # Java takes -1 for no request
                    self.requests.append(offset)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def send(self, offset: int, body: bytes) -> None:
        """Write one frame."""
        assert self.writer is not None
        self.writer.write(struct.pack(">qi", offset, len(body)) + body)
