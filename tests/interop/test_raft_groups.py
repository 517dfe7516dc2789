"""Raft groups of pyromq and Java 4.9.7, under load by a Java client, with everything failing once.

Each node is killed and started again, the leader is paused, and its network is cut. Afterwards
nothing acknowledged is lost, and all nodes have the same bytes. Three nodes of pyromq elect
quickly; in a group with one of Java's, all have Java's intervals: an election takes 6 to 10 s.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.client_driver import ClientDriver
from tests.interop.client_programs import java_driver
from tests.interop.raft_load import JavaLoad
from tests.support.crash import seeds
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
            load.wait_for(50)
            # The leader last: one election instead of up to three.
            first = group.leader()
            for node in (*(node for node in group.nodes if node != first), first):
                _kill_and_start(group, node, load)
            leader = group.leader()
            group.nodes[leader].pause()
            load.wait_for(50)
            group.nodes[leader].resume()
            leader = group.leader_other_than(leader)
            group.wait_for_log_ends()
            group.isolate(leader)
            load.wait_for(50)
            group.heal()
            load.wait_for(50)
        end = group.settle()
        load.consume_all()
        driver.close_all()
        group.stop()
    load.check(assert_same_files(group.stores(), at_least=end))


def _kill_and_start(group: RaftGroup, node: str, load: JavaLoad) -> None:
    group.nodes[node].kill()
    load.wait_for(50)
    group.nodes[node].start(wait=False)
    # The next one may go when this one is as good as the others.
    group.wait_for_log_ends()


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("ours", [1, 2], ids=["one of ours", "two of ours"])
def test_mixed_groups_survive_random_faults(
    ours: int, seed: int, driver: ClientDriver, tmp_path: Path
) -> None:
    choose = random.Random(seed)
    kinds: list[Kind] = ["pyromq" if number < ours else "java" for number in range(3)]
    choose.shuffle(kinds)
    done: list[str] = []
    try:
        with name_server() as namesrv, RaftGroup(tmp_path, namesrv, kinds) as group:
            load = JavaLoad(driver, namesrv)
            with load.running():
                load.wait_for(50)
                for _ in range(10):
                    _do_fault(choose, group, done)
                    load.wait_for(50)
                    group.heal_all()
                    group.wait_for_log_ends()
            end = group.settle()
            load.consume_all()
            driver.close_all()
            group.stop()
        load.check(assert_same_files(group.stores(), at_least=end))
    except BaseException as error:
        error.add_note(f"{kinds}: {done}")
        raise


def _do_fault(choose: random.Random, group: RaftGroup, done: list[str]) -> None:
    """Take one node away, the leader more often than not, or its network."""
    node = choose.choice([group.leader(), choose.choice(list(group.nodes))])
    fault = choose.choice(["kill", "stop", "pause", "isolate", "isolate silently"])
    done.append(f"{fault} {node}")
    if fault in ("kill", "stop", "pause"):
        getattr(group.nodes[node], fault)()
    else:
        group.isolate(node, silent="silently" in fault)
