from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyromq.cli.main import main
from tests.support.agreed_stores import commit, open_leader
from tests.support.stores import log_records, open_store, put


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["store", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "data")
    for number in range(100):
        put(store, b"%d " % number * 200, keys=f"k{number}")
    store.seal()
    store.stop()
    return tmp_path / "data"


def test_backup_list_verify_restore_check(root: Path, tmp_path: Path) -> None:
    backups, target = tmp_path / "backups", tmp_path / "restored"
    config = tmp_path / "broker.properties"
    config.write_text("brokerName=a\nmappedFileSizeCommitLog=65536\n")
    result = run("backup", root, "--to", backups, "-c", config, "--verify")
    assert "log from 0 to" in result.output
    assert "0.0 MiB were in earlier backups" in result.output
    made = run_json("backup", root, "--to", backups, "--keep", 2)
    assert made["linked"] > 0
    listed = run_json("backups", "list", backups)
    assert [each["name"] for each in listed["backups"]][-1] == made["name"]
    assert listed["backups"][0]["source"]["brokerName"] == "a"
    lines = run("backups", "list", backups).output.splitlines()
    assert len(lines) == 2
    assert ", a, log from 0 to" in lines[0]
    assert run_json("backups", "verify", backups, "--all") == [
        {"backup": each["directory"], "problems": []} for each in listed["backups"]
    ]
    restored = run_json("restore", backups, target)
    assert (restored["backup"], restored["entries"]) == (made["directory"], 100)
    run("check", target)
    store = open_store(target)
    assert len(log_records(store)) == 100
    store.stop()
    assert "removed" in run("backups", "prune", backups, "--keep", 1).output
    assert "is not empty" in run("restore", backups, target, code=1).output


def test_damage_is_named_and_fails(root: Path, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    made = run_json("backup", root, "--to", backups)
    file = Path(made["directory"]) / "commitlog" / f"{0:020}"
    file.write_bytes(b"!" + file.read_bytes()[1:])
    result = run("backups", "verify", backups, code=1)
    assert f"{file}: its checksum differs" in result.output
    assert "1 damaged files" in result.output
    result = run("restore", backups, tmp_path / "restored", code=1)
    assert "Error: " in result.output
    assert "the backup is damaged" in result.output


def test_errors_say_what_to_do(root: Path, tmp_path: Path) -> None:
    assert (
        "give the root of a broker's store"
        in run("backup", tmp_path / "missing", "--to", tmp_path / "b", code=1).output
    )
    assert "is not a complete backup" in run("restore", root, tmp_path / "r", code=1).output
    assert "no backups" in run("backups", "list", tmp_path / "none").output
    run("backup", root, "--to", tmp_path / "b")
    result = run("restore", tmp_path / "b", tmp_path / "r", "--raft-id", "n0", code=1)
    assert "is not the backup of a node of a raft group" in result.output
    (tmp_path / "bad.properties").write_text("mappedFileSizeCommitLog=8192\n")
    result = run(
        "restore", tmp_path / "b", tmp_path / "r", "-c", tmp_path / "bad.properties", code=1
    )
    assert "does not fit the backup" in result.output
    (tmp_path / "file").write_text("")
    assert "Error" in run("backup", root, "--to", tmp_path / "file" / "b", code=1).output


def test_a_raft_node_needs_a_decision(tmp_path: Path) -> None:
    store = open_leader(tmp_path / "data")
    put(store, b"x")
    store.seal()
    commit(store)
    store.stop()
    backups = tmp_path / "backups"
    assert run_json("backup", tmp_path / "data", "--to", backups)["raftId"] == "n0"
    result = run("restore", backups, tmp_path / "r", code=1)
    assert "pass --raft-group restored" in result.output
    run("restore", backups, tmp_path / "r", "--raft-group", "running", "--raft-id", "n2")
    text = (tmp_path / "r/dledger-n2/checkpoint").read_text()
    assert "mustCatchUp=true" in text
    run("check", tmp_path / "r")
