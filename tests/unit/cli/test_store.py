from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.cli.store import store
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from tests.support.patience import wait_until
from tests.support.stores import TOPIC, open_store, put


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(store, ["dump", *arguments])


def queue_file(directory: Path) -> Path:
    path = directory / "consumequeue" / "t" / "0" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(CONSUME_QUEUE_ENTRY.pack(n * 100, 100, 7) for n in range(5)))
    return path


def test_text(tmp_path: Path) -> None:
    path = queue_file(tmp_path)
    result = invoke(str(path), "--offset", "2", "--limit", "2")
    assert result.exit_code == 0
    assert result.stderr == f"{path}: consume-queue segment, 100 bytes\n"
    assert result.stdout.splitlines() == [
        "entry: queueOffset=2 physicalOffset=200 size=100 tagsCode=7",
        "entry: queueOffset=3 physicalOffset=300 size=100 tagsCode=7",
    ]


def test_json(tmp_path: Path) -> None:
    pieces = [
        json.loads(line) for line in invoke(str(queue_file(tmp_path)), "--json").output.splitlines()
    ]
    assert [piece["type"] for piece in pieces] == ["entry"] * 5 + ["end"]


def test_a_kind_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "copy"
    file.write_bytes(CONSUME_QUEUE_ENTRY.pack(1, 2, 3) + b"rest")
    assert invoke(str(file)).exit_code == 1
    assert "physicalOffset=1 size=2" in invoke(str(file), "--kind", "consume-queue").output


def test_errors_are_one_line(tmp_path: Path) -> None:
    result = invoke(str(tmp_path / "missing"))
    assert result.exit_code == 1
    assert (
        result.output
        == f"Error: {tmp_path / 'missing'} cannot be read: No such file or directory\n"
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    written = open_store(tmp_path / "data")
    for number in range(30):
        put(written, b"%d" % number, queue_id=number % 2, keys=f"k{number}")
    written.seal()
    wait_until(lambda: written.dispatch_behind == 0)
    written.stop()
    return written.config.root


def test_an_intact_store_passes(root: Path) -> None:
    result = CliRunner().invoke(store, ["check", str(root)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{root}: no violation\n"


def test_violations_are_named(root: Path) -> None:
    queue = root / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    data = queue.read_bytes()
    queue.write_bytes(data[:19] + b"\x01" + data[20:])
    result = CliRunner().invoke(store, ["check", str(root)])
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{queue} at 0: queue entry: entry 0 of {TOPIC} queue 0 ")
    assert result.stderr == f"{root}: 1 violations\n"
    (piece,) = CliRunner().invoke(store, ["check", str(root), "--json"]).stdout.splitlines()
    fields = json.loads(piece)
    assert (fields["kind"], fields["file"], fields["position"]) == ("QUEUE_ENTRY", str(queue), 0)


def test_a_moving_tail_is_reported(root: Path) -> None:
    (root / "abort").touch()
    result = CliRunner().invoke(store, ["check", str(root)])
    assert result.exit_code == 0
    assert "the tail may move" in result.stderr


def test_settings_come_from_a_file(root: Path, tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text("mappedFileSizeCommitLog=131072\n")
    result = CliRunner().invoke(store, ["check", str(root), "-c", str(settings)])
    assert result.exit_code == 1
    assert "has 65536 bytes, expected 131072" in result.stdout
    settings.write_text("mappedFileSizeCommitLog=many\n")
    result = CliRunner().invoke(store, ["check", str(root), "-c", str(settings)])
    assert result.exit_code == 1
    assert "mappedFileSizeCommitLog" in result.stderr


def test_rebuilding(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / TOPIC / "1")
    assert CliRunner().invoke(store, ["check", str(root)]).exit_code == 1
    result = CliRunner().invoke(store, ["rebuild", str(root)])
    assert result.exit_code == 0
    assert "2 consume queues with 30 entries, 30 keys in the index" in result.stdout
    assert CliRunner().invoke(store, ["check", str(root)]).exit_code == 0


def test_rebuilding_queues_or_index_only(root: Path) -> None:
    result = CliRunner().invoke(store, ["rebuild", str(root), "--index"])
    assert "0 consume queues with 0 entries, 30 keys in the index" in result.stdout
    result = CliRunner().invoke(store, ["rebuild", str(root), "--queues"])
    assert "2 consume queues with 30 entries, 0 keys in the index" in result.stdout
    assert CliRunner().invoke(store, ["check", str(root)]).exit_code == 0


@pytest.mark.parametrize("command", ["check", "rebuild"])
def test_a_missing_directory(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(store, [command, str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert "is not a directory" in result.stderr


def test_a_running_store_is_not_rebuilt(root: Path) -> None:
    running = open_store(root)
    result = CliRunner().invoke(store, ["rebuild", str(root)])
    running.stop()
    assert result.exit_code == 1
    assert "in use by another broker" in result.stderr
