from __future__ import annotations

import pytest

from pyromq.admin import Admin, AdminError, NotFoundError
from pyromq.testing import Cluster
from tests.support.patience import until


@pytest.mark.rocketmq(raft=3)
async def test_nodes_and_transfer(rocketmq: Cluster, admin: Admin) -> None:
    async def agree() -> bool:
        nodes = await admin.raft.nodes()
        return (
            len(nodes) == 3
            and len({each.leader for each in nodes}) == 1
            and all(each.leader for each in nodes)
        )

    await until(agree)
    nodes = await admin.raft.nodes("broker-0")
    assert [each.node for each in nodes] == ["n0", "n1", "n2"]
    (leader,) = [each for each in nodes if each.role == "LEADER"]
    assert {each.leader for each in nodes} == {leader.node}
    assert await admin.raft.nodes("other") == []

    other = next(each.node for each in nodes if each is not leader)
    await admin.raft.transfer("broker-0", leader.node)  # it leads already
    await admin.raft.transfer("broker-0", other)

    async def leads() -> bool:
        found = {each.node: each for each in await admin.raft.nodes()}
        return other in found and found[other].role == "LEADER"

    await until(leads)
    with pytest.raises(AdminError, match="n9"):
        await admin.raft.transfer("broker-0", "n9")


async def test_brokers_outside_of_groups(admin: Admin) -> None:
    assert await admin.raft.nodes() == []
    with pytest.raises(NotFoundError):
        await admin.raft.transfer("broker-0", "n1")
