from __future__ import annotations

import asyncio
from collections.abc import Iterator

import click
import pytest

from pyromq.cli.client_options import Identity
from pyromq.cli.raft.group import DLEDGER, GroupView, NodeView, Search
from pyromq.testing import Cluster
from pyromq.tls.client import Tls
from tests.support.patience import DEADLINE
from tests.unit.cli.raft.java_group import JavaGroup


@pytest.fixture
def java() -> Iterator[JavaGroup]:
    with JavaGroup.running() as group:
        yield group


def find(namesrv: str, target: str | None = None) -> GroupView:
    async def look() -> GroupView:
        async with Search(namesrv) as search:
            return await search.find(target)

    return asyncio.run(look())


def view_of(*leaders: str | None, terms: tuple[int | None, ...] = (None,) * 3) -> GroupView:
    """A group of nodes that know these leaders; "down" is a node that does not answer."""
    view = GroupView("g", "b")
    for number, (leader, term) in enumerate(zip(leaders, terms, strict=False)):
        name = f"n{number}"
        view.nodes[name] = NodeView(
            name, "", is_up=leader != "down", leader=None if leader == "down" else leader, term=term
        )
    return view


@pytest.mark.parametrize(
    ("leaders", "leader", "agreeing", "is_working"),
    [
        (("n0", "n0", "n0"), "n0", 3, True),
        (("n0", "n0", "down"), "n0", 2, True),
        (("n0", "down", "down"), "n0", 1, False),
        (("down", "n0", "n0"), None, 0, False),
        ((None, None, None), None, 0, False),
        (("n0", "n1", "n1"), "n1", 2, True),
        (("n1", "n0", None), None, 0, False),
    ],
)
def test_who_leads(
    leaders: tuple[str | None, ...], leader: str | None, agreeing: int, is_working: bool
) -> None:
    view = view_of(*leaders)
    found = view.leader
    assert (None if found is None else found.id) == leader
    assert (view.agreeing, view.is_working, view.quorum) == (agreeing, is_working, 2)


def test_of_two_leaders_with_as_many_followers_the_later_one_counts() -> None:
    view = view_of("n0", "n1", None, terms=(4, 5, None))
    assert view.leader is view.nodes["n1"]
    assert view.to_value()["isWorking"] is False


@pytest.mark.parametrize("target", [None, "RaftNode00"])
def test_a_group_is_found_by_name(java: JavaGroup, target: str | None) -> None:
    view = find(java.namesrv, target)
    assert list(view.nodes) == ["n0", "n1", "n2"]
    assert [node.role for node in view.nodes.values()] == ["FOLLOWER", "LEADER", "FOLLOWER"]
    assert {node.kind for node in view.nodes.values()} == {DLEDGER}
    assert {node.committed_position for node in view.nodes.values()} == {4711}
    assert view.nodes["n2"].address == java.address("n2-raft")


def test_a_group_is_found_by_an_address(java: JavaGroup) -> None:
    # The broker tells its NameServer.
    view = find("127.0.0.1:1", java.address("n0"))
    assert all(node.broker_address for node in view.nodes.values())
    java.run(java.stop("namesrv"))
    view = find("127.0.0.1:1", java.address("n0"))
    assert [node.broker_address for node in view.nodes.values()] == [java.address("n0"), None, None]
    assert view.is_working, "raft ports tell who leads"


def test_nodes_that_are_down(java: JavaGroup) -> None:
    java.run(java.stop("n2", "n2-raft"))
    view = find(java.namesrv)
    assert not view.nodes["n2"].is_up
    assert (view.agreeing, view.is_working) == (2, True)
    java.run(java.stop("n0-raft"))
    view = find(java.namesrv)
    assert view.nodes["n0"].is_up, "its broker answers"
    assert view.nodes["n0"].role is None
    assert (view.agreeing, view.is_working) == (1, False)
    java.leader = ""
    assert find(java.namesrv).nodes["n1"].role == "CANDIDATE"


def test_what_is_not_there_is_named(java: JavaGroup) -> None:
    with pytest.raises(click.ClickException, match="no raft group other at NameServer"):
        find(java.namesrv, "other")
    with pytest.raises(click.ClickException, match=r"no answer from NameServer 127\.0\.0\.1:1"):
        find("127.0.0.1:1")
    with pytest.raises(click.ClickException, match=r"no answer from 127\.0\.0\.1:1"):
        find(java.namesrv, "127.0.0.1:1")
    java.run(java.stop("n0", "n1", "n2"))
    with pytest.raises(click.ClickException, match="start a quorum of them"):
        find(java.namesrv)


def test_brokers_outside_of_groups() -> None:
    with Cluster() as cluster:
        with pytest.raises(click.ClickException, match="is not in a raft group"):
            find(cluster.namesrv, cluster.brokers[0].address)
        with pytest.raises(click.ClickException, match="no raft group at NameServer"):
            find(cluster.namesrv)


def test_a_group_may_have_another_name_than_its_broker() -> None:
    with Cluster(raft=1, settings={"dLegerGroup": "group-7"}) as cluster:
        cluster.await_leader(timeout=DEADLINE)
        for target in (None, "group-7", "broker-0"):
            assert find(cluster.namesrv, target).name == "group-7"


async def test_raft_ports_without_tls_beside_brokers_with_it() -> None:
    """As in a group with RocketMQ's nodes: a node whose broker is down is asked on its port."""
    with Cluster(raft=3, tls=True, settings={"tls.replication.mode": "disabled"}) as cluster:
        tls = cluster.client_options["tls"]
        assert isinstance(tls, Tls)
        async with Search(cluster.namesrv, Identity(tls=tls)) as search:
            view = await search.find(None)
            for node in view.nodes.values():
                node.is_up = False
                await search._ask_node(view, node)
                assert node.is_up
