"""Groups of DLedger 0.3.1.2 and our nodes, at the level of the log: one order, equal bytes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyromq.raft.member import Role
from pyromq.raft.network.lookout import Finding, look_at
from tests.interop.client_driver import ClientError
from tests.interop.java_programs import javac_or_skip
from tests.support.apache_rocketmq import java_or_skip
from tests.support.dledger import DATA_FILE, GROUP, DLedger, Peers
from tests.support.patience import until
from tests.support.raft_logs import entries_of
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

    async def write(self, count: int, size: int = 300, *, by: str | None = None) -> str:
        """Write entries with a node that leads, or `by` one; return its id.

        A stalled machine may elect again meanwhile: then they are written once more.
        """
        while True:
            leader = by or await self.leader()
            if by:
                await self.make_lead(by)
            if await self._try_write(leader, count, size):
                return leader

    async def _try_write(self, node: str, count: int, size: int) -> bool:
        own = self.own.get(node)
        if own is None:
            try:
                result = await asyncio.to_thread(self._java.append, node, size, count)
            except ClientError:  # Java may leave futures of a lost term alone
                return False
            return bool(result["codes"] == {"200": count})
        if not own.leads:
            return False
        term, last = own.node.term, own.append(count, size)
        await until(lambda: own.log.committed_index >= last or own.node.term != term)
        return own.node.term == term

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
            await nodes.write(200, by=node)
        assert await nodes.end() >= 599
        leader = nodes.own["n0"].node.leader
        own = nodes.own["n0"].node
        assert own.role is (Role.LEADER if leader == "n0" else Role.FOLLOWER)


@pytest.mark.parametrize("ours", [1, 2])
async def test_every_node_is_replaced_while_entries_are_written(
    java: DLedger, tmp_path: Path, ours: int
) -> None:
    """Each node stops in turn, the others go on, and it catches up."""
    async with mixed(java, tmp_path, ours) as nodes:
        for node in nodes.peers:
            await nodes.write(50)
            if own := nodes.own.get(node):
                await own.stop()
            else:
                await nodes.stop_java(node)
            await nodes.write(150)
            if own:
                await own.start()
            else:
                await nodes.start_java(node)
            await nodes.end()
        assert await nodes.end() >= 599


async def test_a_java_node_that_leads_gets_our_files_and_back(
    java: DLedger, tmp_path: Path
) -> None:
    """A new node of either kind gets the whole log of the other."""
    async with mixed(java, tmp_path, 1) as nodes:
        own = nodes.own["n0"]
        await own.stop()
        await nodes.write(300)
        await own.start()
        await nodes.end()
        await nodes.stop_java("n2")
        shutil.rmtree(tmp_path / "n2")
        await nodes.write(100, by="n0")
        await nodes.start_java("n2")
        assert await nodes.end() >= 399


async def test_entries_that_nobody_has_are_cut_off(java: DLedger, tmp_path: Path) -> None:
    """Ours led alone, then a Java node leads, and truncates."""
    async with mixed(java, tmp_path, 1) as nodes:
        own = nodes.own["n0"]
        await nodes.write(50, by="n0")
        for node in nodes.java_ids:
            await nodes.stop_java(node)
        own.log.append_bodies(own.node.term, [b"lost" * 20] * 30)
        await own.stop()
        for node in nodes.java_ids:
            await nodes.start_java(node)
        await nodes.write(20)
        await own.start()
        await nodes.end()
        await nodes.make_lead("n0")
        assert not any(bytes(entry.body).startswith(b"lost") for entry in entries_of(own.log))


async def test_javas_entries_that_nobody_has_are_cut_off(java: DLedger, tmp_path: Path) -> None:
    """A Java node led alone, then ours leads, and truncates."""
    async with mixed(java, tmp_path, 2) as nodes:
        await nodes.write(50, by="n2")
        for own in nodes.own.values():
            await own.stop()
        await asyncio.to_thread(java.call, "append", id="n2", size=70, count=30, forget=True)
        await nodes.stop_java("n2")
        for own in nodes.own.values():
            await own.start()
        await nodes.write(20)
        await nodes.start_java("n2")
        await nodes.end()
        await nodes.make_lead("n2")
        assert not any(len(entry.body) == 70 for entry in entries_of(nodes.own["n0"].log))


async def test_large_entries_pass_both_ways(java: DLedger, tmp_path: Path) -> None:
    """Every entry fills a file of its own."""
    async with mixed(java, tmp_path, 1) as nodes:
        for node in ("n0", "n1"):
            await nodes.write(10, DATA_FILE - 48 - 8, by=node)
            await nodes.write(10, 1, by=node)


async def test_a_java_client_asks_our_leader(java: DLedger, tmp_path: Path) -> None:
    async with mixed(java, tmp_path, 2) as nodes:
        await nodes.write(3, 5, by="n0")
        ask = partial(asyncio.to_thread, java.client, nodes.peers)
        assert await ask(get=1) == "ppppp"
        assert await ask(get=77) == 410
        assert await ask(append="not a message") == 303
        term = nodes.own["n0"].node.term
        assert await ask(leader="n0", transferee="n9", term=term) in (401, 407)
        await nodes.make_lead("n0")
        leader = nodes.own["n0"].node

        async def is_transferred() -> bool:
            code = await ask(leader="n0", transferee="n1", term=leader.term)
            return bool(code == 200)

        await until(is_transferred)
        assert any(leads == "n1" for _, _, leads in nodes.own["n1"].recorder.roles)


async def test_a_preferred_java_leader_gets_leadership_from_ours(
    java: DLedger, tmp_path: Path
) -> None:
    async with mixed(
        java,
        tmp_path,
        2,
        java_settings={"preferred": "n2"},
        preferred_leaders=("n2",),
    ) as nodes:
        await nodes.write(10)
        await until(lambda: nodes.java_leads("n2"))
        await nodes.write(10)


async def test_java_gets_json_and_ours_get_runs(java: DLedger, tmp_path: Path) -> None:
    async with mixed(java, tmp_path, 2) as nodes:
        await nodes.write(50, by="n0")
        kinds = {each.node_id: each.kind for each in nodes.own["n0"].node.status().peers}
        assert kinds == {"n1": "pyromq", "n2": "DLedger"}


async def test_a_java_voter_is_known_by_its_answer(java: DLedger, tmp_path: Path) -> None:
    """With one of them in the group, followers of a killed leader keep Java's timing."""
    peers = free_peers(1)
    await asyncio.to_thread(java.start, "n0", peers, tmp_path)
    try:
        assert await look_at(GROUP, "n0", peers["n0"]) is Finding.DLEDGER
    finally:
        await asyncio.to_thread(java.stop, "n0")
    assert await look_at(GROUP, "n0", peers["n0"]) is Finding.ENDED
