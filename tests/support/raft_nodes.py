"""Raft nodes of ours, in the test's process, over real sockets.

    async with group(tmp_path) as nodes:          # three nodes, n0 to n2
        leader = await leader_of(nodes.values())
        await write(nodes.values(), 100)          # entries, until they are committed

Elections are quick, but no test may depend on who leads, or for how long: a stalled machine elects
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from pyromq.protocol.wire.frame import FrameReader, RemotingCommand
from pyromq.raft.log import RaftLog
from pyromq.raft.member import Role
from pyromq.raft.node import NodeSettings, RaftNode
from tests.support.apache_rocketmq import free_port
from tests.support.dledger import (
    DATA_FILE,
    GROUP,
    HEARTBEAT,
    INDEX_FILE,
    MAX_VOTE,
    MIN_VOTE,
    Peers,
)
from tests.support.patience import until

QUICK: Final = {
    "heartbeat_interval": HEARTBEAT,
    "min_vote_interval": MIN_VOTE,
    "max_vote_interval": MAX_VOTE,
    "commit_interval": 100,
}


def free_peers(count: int = 3) -> dict[str, tuple[str, int]]:
    """Return addresses for a group."""
    ports = set[int]()
    while len(ports) < count:
        ports.add(free_port())
    return {f"n{number}": ("127.0.0.1", port) for number, port in enumerate(sorted(ports))}


class Recorder:
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.roles: list[tuple[Role, int, str | None]] = []
        self.ready: list[int] = []
        self.committed_index = -1
        self.failures: list[str] = []

    def role_changed(self, role: Role, term: int, leader: str | None, reason: str) -> None:
        assert reason
        self.events.append(("role", role, term, leader))
        self.roles.append((role, term, leader))

    def leader_ready(self, term: int) -> None:
        self.events.append(("ready", term))
        self.ready.append(term)

    def committed(self, index: int) -> None:
        self.events.append(("committed", index))
        self.committed_index = index

    def committed_lost(self, index: int, committed: int) -> None:
        self.events.append(("lost", index, committed))

    def failed(self, reason: str) -> None:
        self.events.append(("failed", reason))
        self.failures.append(reason)


class OwnNode:
    """A node of ours with its log; it can be stopped and started again."""

    def __init__(self, node_id: str, peers: Peers, base: Path, **settings: Any) -> None:
        """The files are below `base`/dledger-<id>, as Java's."""
        self.node_id = node_id
        self.directory = base / f"dledger-{node_id}"
        core = {**QUICK, **settings.pop("core", {})}
        self.settings = NodeSettings(
            group=GROUP,
            self_id=node_id,
            peers=dict(peers),
            directory=self.directory,
            core=core,
            **settings,
        )
        self.is_running = False
        self.recorder = Recorder()
        self.log: RaftLog
        self.node: RaftNode

    async def start(self) -> None:
        """Start log and node."""
        self.recorder = Recorder()
        self.log = RaftLog(self.directory, data_file_size=DATA_FILE, index_file_size=INDEX_FILE)
        self.log.start()
        self.node = RaftNode(self.settings, self.log, self.recorder)
        await self.node.start()
        self.is_running = True

    async def stop(self) -> None:
        """Stop node and log."""
        if self.is_running:
            self.is_running = False
            await self.node.stop()
            self.log.stop()

    @property
    def leads(self) -> bool:
        """Whether this node leads and takes entries."""
        return self.is_running and self.node.append_refusal() is None

    def append(self, count: int, size: int = 100, fill: bytes = b"p") -> int:
        """Write entries as the leader; return the last index."""
        assert self.node.append_refusal() is None
        first = self.log.append_bodies(self.node.term, [fill * size] * count)
        self.node.appended()
        return first + count - 1


async def leader_of(nodes: Iterable[OwnNode]) -> OwnNode:
    """Wait until one of the nodes leads and takes entries."""
    found: list[OwnNode] = []

    def is_found() -> bool:
        found[:] = [node for node in nodes if node.leads]
        return bool(found)

    await until(is_found)
    return found[0]


async def write(nodes: Collection[OwnNode], count: int, size: int = 100) -> OwnNode:
    """Write entries with whichever node leads, until they are committed; return that node."""
    while True:
        leader = await leader_of(nodes)
        term, last = leader.node.term, leader.append(count, size)

        def is_over() -> bool:
            node = leader.node  # noqa: B023 - called in this round only
            changed = not leader.leads or node.term != term  # noqa: B023
            return changed or leader.log.committed_index >= last  # noqa: B023

        await until(is_over)
        if leader.leads and leader.node.term == term and leader.log.committed_index >= last:
            return leader


async def settled(nodes: Iterable[OwnNode]) -> None:
    """Wait until all nodes have the same entries, all committed."""
    await until(lambda: len({(each.log.end_index, each.log.end_term) for each in nodes}) == 1)
    await until(lambda: all(each.log.committed_index == each.log.end_index for each in nodes))


@asynccontextmanager
async def group(base: Path, count: int = 3, **settings: Any) -> AsyncIterator[dict[str, OwnNode]]:
    """Run a group of our nodes."""
    peers = free_peers(count)
    nodes = {node: OwnNode(node, peers, base / node, **settings) for node in peers}
    try:
        await asyncio.gather(*(node.start() for node in nodes.values()))
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.values()))


class RawPeer:
    """A connection to a node's port, byte by byte."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._frames = FrameReader()
        self.answers: list[RemotingCommand] = []
        self.is_closed = False

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while data := await self._reader.read(1 << 16):
            self.answers += self._frames.feed(data)
        self.is_closed = True

    def write(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    async def close(self) -> None:
        self._writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def log_bytes(directory: Path, written: int, end_index: int) -> tuple[bytes, bytes]:
    """Return the bytes of the data and index files of a node's directory, up to the log's end."""
    joined = []
    for name, end in (("data", written), ("index", (end_index + 1) * 32)):
        content = bytearray()
        for path in sorted((directory / name).iterdir()):
            start = int(path.name)
            if start < end:
                assert len(content) == start
                content += path.read_bytes()
        joined.append(bytes(content[:end]))
    return joined[0], joined[1]
