"""Groups of our nodes over a bad network: every connection between two nodes has its own proxy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyromq.raft.log import RaftLog
from tests.support.loops import on_both_loops
from tests.support.patience import until
from tests.support.proxy import TO_CLIENT, TO_TARGET, Corrupt, Proxy
from tests.support.raft_logs import entries_of
from tests.support.raft_nodes import OwnNode, free_peers, leader_of, settled, write


class Network:
    """A group whose nodes reach each other through proxies."""

    def __init__(self, base: Path, settings: dict[str, Any]) -> None:
        peers = free_peers(3)
        #: By the node that connects, and the one that it connects to.
        self.proxies = {
            (one, other): Proxy(f"127.0.0.1:{port}")
            for one in peers
            for other, (_, port) in peers.items()
            if one != other
        }
        self.nodes: dict[str, OwnNode] = {}
        for node, address in peers.items():
            seen = {
                other: address if other == node else ("127.0.0.1", self.proxies[node, other].port)
                for other in peers
            }
            self.nodes[node] = OwnNode(node, seen, base / node, **settings)

    async def call(self, action: str, *nodes: str) -> None:
        """Do something to all proxies from and to some nodes."""
        for (one, other), proxy in self.proxies.items():
            if one in nodes or other in nodes:
                await asyncio.to_thread(getattr(proxy, action))

    async def heal(self) -> None:
        """Let everything pass again."""
        for proxy in self.proxies.values():
            await asyncio.to_thread(proxy.refuse, False)
            await asyncio.to_thread(proxy.resume)


@asynccontextmanager
async def network(base: Path, **settings: Any) -> AsyncIterator[Network]:
    """Run a group; at the end, all logs must be equal."""
    found = Network(base, settings)
    nodes = found.nodes.values()
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield found
        await found.heal()
        await write(nodes, 1)
        await settled(nodes)
        assert not any(node.recorder.failures for node in nodes)
        logs = [entries_of(node.log) for node in nodes]
        assert logs[0] == logs[1] == logs[2]
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))
        for proxy in found.proxies.values():
            await asyncio.to_thread(proxy.close)


def bodies(log: RaftLog) -> set[bytes]:
    return {bytes(entry.body) for entry in entries_of(log)}


@on_both_loops
async def test_a_leader_that_is_cut_off_is_replaced(tmp_path: Path) -> None:
    async with network(tmp_path) as group:
        nodes = group.nodes.values()
        old = await write(nodes, 50)
        await group.call("refuse", old.node_id)
        if old.leads:
            old.append(20, 60, b"lost")  # nobody has them
        rest = [node for node in nodes if node is not old]
        new = await write(rest, 50)
        assert new is not old
        await until(lambda: not old.leads)  # it has noticed, without a message
        await group.heal()
        await settled(nodes)
        assert not any(body.startswith(b"lost") for body in bodies(old.log))
        assert old.recorder.committed_index >= 99


@on_both_loops
async def test_a_silent_network_is_noticed(tmp_path: Path) -> None:
    """Connections stay open, nothing passes: as after a cable was pulled."""
    async with network(tmp_path) as group:
        nodes = group.nodes.values()
        old = await write(nodes, 50)
        await group.call("stall", old.node_id)
        await write([node for node in nodes if node is not old], 50)
        await until(lambda: not old.leads)


@on_both_loops
async def test_a_follower_that_was_away_catches_up(tmp_path: Path) -> None:
    async with network(tmp_path) as group:
        nodes = group.nodes.values()
        leader = await write(nodes, 10)
        away = next(node for node in nodes if node is not leader)
        await group.call("refuse", away.node_id)
        for _ in range(5):
            await write([node for node in nodes if node is not away], 100, 500)
        await group.heal()
        await until(lambda: away.log.committed_index >= 509)


@on_both_loops
async def test_no_damage_reaches_a_log(tmp_path: Path) -> None:
    """Flipped bits in frames of runs, and of their answers, while entries are written."""
    chooser = random.Random(16)
    async with network(tmp_path) as group:
        nodes = group.nodes.values()
        for _ in range(20):
            leader = await leader_of(nodes)
            for (one, _other), proxy in group.proxies.items():
                if one == leader.node_id:
                    direction = chooser.choice((TO_TARGET, TO_CLIENT))
                    fault = Corrupt(chooser.randrange(3000))
                    await asyncio.to_thread(proxy.inject, direction, fault)
            await write(nodes, 20, 200)
        found = set[bytes]().union(*(bodies(node.log) for node in nodes))
        assert found == {b"p" * 200}


@on_both_loops
async def test_connections_that_break_all_the_time(tmp_path: Path) -> None:
    chooser = random.Random(17)
    async with network(tmp_path) as group:
        nodes = group.nodes.values()
        for _ in range(20):
            writing = asyncio.ensure_future(write(nodes, 20))
            await group.call("cut", chooser.choice(list(group.nodes)))
            await writing
