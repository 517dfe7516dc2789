from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from pyromq.cli.main import main
from tests.support.agreed_stores import commit, open_leader
from tests.support.stores import put


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_leader(tmp_path / "store")
    for number in range(10):
        put(store, b"%d" % number, keys=f"k{number}")
    store.seal()
    commit(store)
    store.stop()
    (tmp_path / "store" / "dledger-n0" / "currterm").write_text("currTerm=1\nvoteLeader=n0\n")
    return tmp_path / "store"


def check(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["raft", "check", *map(str, arguments)])


@pytest.mark.parametrize("below", ["", "dledger-n0"])
def test_a_sound_node(root: Path, below: str) -> None:
    result = check(root / below)
    assert result.exit_code == 0
    assert "node n0: entries 0 to 9 of terms up to 1, positions 0 to" in result.output
    assert "committed up to 9" in result.output
    assert "node n0: term 1, voted for n0" in result.output
    assert "dledger-n0: no damage" in result.output


def test_damage_has_a_place_and_a_remedy(root: Path) -> None:
    data = root / "dledger-n0" / "data" / f"{0:020d}"
    with data.open("r+b") as file:
        file.seek(48 + 100)
        file.write(b"????")
    result = check(root)
    assert result.exit_code == 1
    assert f"{data} at 48: record: entry 0: " in result.output
    assert "let the group fill them again" in result.output
    assert "1 findings" in result.output
    value = orjson.loads(check(root, "--json").output)
    assert (value["node"], value["endIndex"], value["mayMove"]) == ("n0", 9, False)
    assert (value["currTerm"], value["voteLeader"]) == (1, "n0")
    (finding,) = value["findings"]
    assert (finding["kind"], finding["position"], finding["isDamage"]) == ("RECORD", 48, True)


def test_what_the_next_start_repairs_is_no_failure(root: Path) -> None:
    (root / "dledger-n0" / "truncation").write_text("nextIndex=9\nnextPosition=7\nrebuild=false\n")
    (root / "abort").touch()
    result = check(root)
    assert result.exit_code == 0
    assert "the next start repairs this" in result.output
    assert "no damage, 1 that the next start repairs" in result.output
    assert "was not stopped cleanly" in result.output


def test_settings_may_be_given(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerPeers=n0-127.0.0.1:1\ndLegerSelfId=n0\n"
        "mappedFileSizeCommitLog=65536\n"
    )
    assert check(root, "-c", file).exit_code == 0
    file.write_text(file.read_text().replace("65536", "131072"))
    assert check(root, "-c", file).exit_code == 1


def test_other_directories_are_refused(tmp_path: Path) -> None:
    result = check(tmp_path)
    assert result.exit_code == 1
    assert "has no node of a raft group" in result.output
    result = check(tmp_path / "missing")
    assert "is not a directory" in result.output


def test_the_tools_of_stores_know_raft_nodes(root: Path) -> None:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, ["store", *map(str, arguments)])

    assert run("check", root).exit_code == 0
    dumped = run("dump", root / "dledger-n0" / "data" / f"{0:020d}", "--limit", "2")
    assert "entry: index=0 term=1 pos=0" in dumped.output
    assert "raft entries, 65536 bytes" in dumped.output
    index = root / "dledger-n0" / "index" / f"{0:020d}"
    assert "unit: index=0" in run("dump", index, "--limit", "1").output
    assert "unit: index=0" in run("dump", index, "--kind", "raft-index", "--limit", "1").output
    assert "currTerm=1" in run("dump", root / "dledger-n0" / "currterm").output
    rebuilt = run("rebuild", root)
    assert rebuilt.exit_code == 0, rebuilt.output
    assert "1 consume queues with 10 entries, 10 keys in the index" in rebuilt.output
    truncated = run("truncate", root, "--to", "0")
    assert truncated.exit_code == 1
    assert "the group decides where its log ends" in truncated.output
    (root / "dledger-n1" / "data").mkdir(parents=True)
    (root / "dledger-n1" / "data" / f"{0:020d}").touch()
    for command in (["check"], ["rebuild"], ["truncate", "--to", "0"]):
        result = run(command[0], root, *command[1:])
        assert result.exit_code == 1
        assert "several raft nodes" in result.output
