from __future__ import annotations

import asyncio
from pathlib import Path

from pyromq.raft.member import Role
from tests.support.patience import until
from tests.support.raft_nodes import OwnNode, free_peers, group, write


async def test_a_leader_knows_its_followers(tmp_path: Path) -> None:
    async with group(tmp_path) as nodes:
        leader = await write(nodes.values(), 10)
        follower = next(each for each in nodes.values() if each is not leader)
        await follower.stop()
        third = next(each for each in nodes.values() if each not in (leader, follower))
        last = leader.append(5) if leader.leads else -1
        await until(lambda: third.log.end_index >= last)

        def is_seen() -> bool:
            status = leader.node.status()
            peers = {each.node_id: each for each in status.peers}
            gone, there = peers[follower.node_id], peers[third.node_id]
            return (
                status.role is not Role.LEADER  # elected again: the machine has stalled
                or (
                    ((gone.connected, gone.kind, gone.lag) == (False, "unknown", 5))
                    and ((there.connected, there.lag) == (True, 0))
                )
            )

        await until(is_seen)


async def test_the_state_of_a_single_node(tmp_path: Path) -> None:
    node = OwnNode("n0", free_peers(1), tmp_path)
    await node.start()
    await until(lambda: node.leads)
    node.append(3, 52)
    await until(lambda: node.log.flushed_index == node.recorder.committed_index == 2)
    status = node.node.status()
    assert (status.begin_index, status.end_index) == (0, 2)
    assert (status.committed_index, status.flushed_index) == (2, 2)
    assert (status.begin_position, status.end_position) == (0, 300)
    assert (status.committed_position, status.flushed_position) == (300, 300)
    assert status.address == f"127.0.0.1:{node.node.address[1]}"
    assert "accepted" in status.reason
    assert status.peers == ()
    await asyncio.sleep(0)
    await node.stop()
