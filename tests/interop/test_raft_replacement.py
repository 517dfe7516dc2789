"""The nodes of a Java 4.9.7 raft group are replaced by ours, one by one, under load; and back.

Each new node takes over the files and the ports of the node that it replaces. The leader is
replaced last: the two that are replaced before are then the quorum that elects the next leader.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.client_programs import java_driver
from tests.interop.raft_load import JavaLoad
from tests.support.raft_files import assert_same_files
from tests.support.raft_groups import RaftGroup
from tests.support.replication_nodes import name_server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def test_java_nodes_are_replaced_one_by_one_and_one_comes_back(tmp_path: Path) -> None:
    with (
        java_driver() as driver,
        name_server() as namesrv,
        RaftGroup(tmp_path, namesrv, ["java"] * 3) as group,
    ):
        load = JavaLoad(driver, namesrv)
        with load.running():
            load.wait_for(100)
            first = group.leader()
            for node in (*(node for node in group.nodes if node != first), first):
                group.replace(node, "pyromq")
                load.wait_for(50)
                group.wait_for_log_ends()
            assert {node.kind for node in group.nodes.values()} == {"pyromq"}
            load.wait_for(50)
            group.replace(first, "java")
            load.wait_for(50)
            group.wait_for_log_ends()
        end = group.settle()
        load.consume_all()
        driver.close_all()
        group.stop()
    load.check(assert_same_files(group.stores(), at_least=end))
