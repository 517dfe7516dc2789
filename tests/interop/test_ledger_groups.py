"""Groups of DLedger 0.3.1.2 and our nodes, at the level of the log: one order, equal bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pyromq.raft.member import Role
from tests.interop.java_programs import javac_or_skip
from tests.support.apache_rocketmq import java_or_skip
from tests.support.dledger import DLedger, Peers
from tests.support.patience import until
from tests.support.raft_nodes import OwnNode, free_peers, log_bytes

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def java() -> Iterator[DLedger]:
    """A JVM for the Java nodes of all tests."""
    java_or_skip()
    javac_or_skip()
    with DLedger() as dledger:
        yield dledger


class Mixed:
    """A group of nodes of both kinds."""

    def __init__(self, java: DLedger, base: Path, ours: int, settings: dict[str, Any]) -> None:
        self._java = java
        self.base = base
        self.peers: Peers = free_peers(3)
        self.own = {
            node: OwnNode(node, self.peers, base / node, **settings)
            for node in list(self.peers)[:ours]
        }
        self.java_ids = [node for node in self.peers if node not in self.own]
        self.running = set[str]()

    async def start_java(self, node: str, **settings: Any) -> None:
        await asyncio.to_thread(self._java.start, node, self.peers, self.base / node, **settings)
        self.running.add(node)

    async def stop_java(self, node: str) -> None:
        self.running.discard(node)
        await asyncio.to_thread(self._java.stop, node)

    async def state(self, node: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._java.state, node)

    async def java_leads(self, node: str) -> bool:
        return node in self.running and (await self.state(node))["role"] == "LEADER"

    async def write(self, node: str, count: int, size: int = 300) -> None:
        """Write entries until all of them are acknowledged; `node` leads."""
        if own := self.own.get(node):
            last = own.append(count, size)
            await until(lambda: own.log.committed_index >= last)
        else:
            result = await asyncio.to_thread(self._java.append, node, size, count)
            assert result["codes"] == {"200": count}

    async def leader(self) -> str:
        """Wait for a leader that takes entries; return its id."""
        found: list[str] = []

        async def is_found() -> bool:
            found[:] = [node for node, each in self.own.items() if each.leads]
            found.extend([node for node in sorted(self.running) if await self.java_leads(node)])
            return len(found) == 1

        await until(is_found)
        return found[0]

    async def make_lead(self, node: str) -> None:
        """Hand leadership to a node, whoever has it."""
        while (leader := await self.leader()) != node:
            if own := self.own.get(leader):
                await own.node.transfer(node)
            else:
                term = (await self.state(leader))["term"]
                await asyncio.to_thread(
                    self._java.client, self.peers, leader=leader, transferee=node, term=term
                )

    async def end(self) -> int:
        """Wait until all nodes have the same end, all of it committed; return the last index."""
        ends = set[tuple[int, int]]()

        async def is_equal() -> bool:
            states = [await self.state(node) for node in sorted(self.running)]
            ends.clear()
            ends.update((each["end"], each["committed"]) for each in states)
            ends.update(
                (each.log.end_index, each.log.committed_index)
                for each in self.own.values()
                if each.is_running
            )
            return len(ends) == 1 and all(end == committed for end, committed in ends)

        await until(is_equal)
        return ends.pop()[0]

    async def stop(self) -> None:
        for own in self.own.values():
            await own.stop()
        for node in sorted(self.running):
            await self.stop_java(node)

    def assert_same_bytes(self, written: int, end: int) -> None:
        found = {
            node: log_bytes(self.base / node / f"dledger-{node}", written, end)
            for node in self.peers
        }
        assert len(set(found.values())) == 1, {
            node: list(map(len, each)) for node, each in found.items()
        }


@asynccontextmanager
async def mixed(
    java: DLedger,
    base: Path,
    ours: int,
    *,
    java_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Mixed]:
    """Run a group; at the end, all nodes must have the same bytes, and none may have failed."""
    nodes = Mixed(java, base, ours, settings)
    try:
        for node in nodes.java_ids:
            await nodes.start_java(node, **(java_settings or {}))
        for own in nodes.own.values():
            await own.start()
        yield nodes
        end = await nodes.end()
        written = next(iter(nodes.own.values())).log.written
        assert not any(each.recorder.failures for each in nodes.own.values())
    finally:
        await nodes.stop()
    nodes.assert_same_bytes(written, end)


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("ours", [1, 2])
async def test_each_node_leads_in_turn(
    java: DLedger, tmp_path: Path, ours: int, batch: bool
) -> None:
    async with mixed(
        java, tmp_path, ours, java_settings={"batch": batch}, batch_push=batch
    ) as nodes:
        for node in nodes.peers:
            await nodes.make_lead(node)
            await nodes.write(node, 200)
        assert await nodes.end() >= 599
        leader = nodes.own["n0"].node.leader
        own = nodes.own["n0"].node
        assert own.role is (Role.LEADER if leader == "n0" else Role.FOLLOWER)
