"""`pyromq raft` and a group with a node of the real RocketMQ 4.9.7."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from pyromq.cli.main import main
from tests.support.patience import wait_until
from tests.support.raft_groups import RaftGroup
from tests.support.replication_nodes import Kind, name_server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KINDS: tuple[Kind, ...] = ("pyromq", "pyromq", "java")


def status(namesrv: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(main, ["raft", "status", "--namesrv", namesrv, "--json"])
    value = orjson.loads(result.output) if result.output.startswith("{") else {"nodes": []}
    return result.exit_code, value


def test_a_mixed_group_is_shown_and_led_by_each_kind(tmp_path: Path) -> None:
    with name_server() as namesrv, RaftGroup(tmp_path, namesrv, KINDS) as group:
        group.leader()

        def is_whole() -> bool:
            code, value = status(namesrv)
            found = [node["kind"] for node in value["nodes"]]
            return code == 0 and found == ["pyromq", "pyromq", "DLedger"] and value["agreeing"] == 3

        wait_until(is_whole)

        def leads(node: str) -> bool:
            """Order a hand-over until it works: the group may elect meanwhile."""
            CliRunner().invoke(main, ["raft", "transfer", node, "--namesrv", namesrv])
            return bool(status(namesrv)[1].get("leader") == node)

        wait_until(lambda: leads("n0"))
        wait_until(lambda: leads("n2"))  # from ours to Java's
        wait_until(lambda: leads("n1"))  # and back
