"""Raft groups of pyromq and Java 4.9.7, under load by a Java client, with everything failing once.

Each node is killed and started again, the leader is paused, and its network is cut. Afterwards
nothing acknowledged is lost, and all nodes have the same bytes. Three nodes of pyromq elect
quickly; in a group with one of Java's, all have Java's intervals: an election takes 6 to 10 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.client_driver import ClientDriver
from tests.interop.client_programs import java_driver
from tests.interop.raft_load import JavaLoad
from tests.support.patience import wait_until
from tests.support.raft_files import assert_same_files
from tests.support.raft_groups import QUICK_TIMING, RaftGroup
from tests.support.replication_nodes import Kind, name_server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def driver() -> Iterator[ClientDriver]:
    """Java's client."""
    with java_driver() as driver:
        yield driver


@pytest.mark.parametrize(
    "kinds",
    [
        ("pyromq", "pyromq", "pyromq"),
        ("pyromq", "pyromq", "java"),
        ("pyromq", "java", "java"),
        pytest.param(("java", "java", "java"), marks=pytest.mark.soak),
    ],
    ids="-".join,
)
def test_nothing_is_lost_whatever_fails(
    kinds: tuple[Kind, ...], driver: ClientDriver, tmp_path: Path
) -> None:
    timing = {} if "java" in kinds else QUICK_TIMING
    with name_server() as namesrv, RaftGroup(tmp_path, namesrv, kinds, timing=timing) as group:
        load = JavaLoad(driver, namesrv)
        with load.running():
            load.wait_for(100)
            for node in group.nodes:
                _kill_and_start(group, node, load)
            leader = group.leader()
            group.nodes[leader].pause()
            load.wait_for(50)
            group.nodes[leader].resume()
            load.wait_for(50)
            leader = group.leader()
            group.isolate(leader)
            load.wait_for(50)
            group.heal()
            load.wait_for(50)
        end = group.settle()
        load.consume_all(len(load.acknowledged))
        driver.close_all()
        group.stop()
    load.check(assert_same_files(group.stores(), at_least=end))


def _kill_and_start(group: RaftGroup, node: str, load: JavaLoad) -> None:
    group.nodes[node].kill()
    load.wait_for(50)
    group.nodes[node].start(wait=False)
    # The next one may go when this one is as good as the others.
    end = max(each.log_end() for id_, each in group.nodes.items() if id_ != node)
    group.nodes[node].wait_for_log_end(end)
    wait_until(lambda: group.leader_now() is not None)
