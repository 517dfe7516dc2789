from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.cli.store import load_store_config, store
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from tests.support.patience import wait_until
from tests.support.stores import SEGMENT, TOPIC, log_records, open_store, put


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


@pytest.mark.parametrize("command", [["check"], ["rebuild"], ["truncate", "--to", "0"]])
def test_a_missing_directory(command: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(store, [*command, str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert "is not a directory" in result.stderr


@pytest.mark.parametrize("command", [["rebuild"], ["truncate", "--to", "0"]])
def test_a_running_store_is_not_changed(command: list[str], root: Path) -> None:
    running = open_store(root)
    result = CliRunner().invoke(store, [*command, str(root)])
    running.stop()
    assert result.exit_code == 1
    assert "in use by another broker" in result.stderr


def truncate(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(store, ["truncate", str(root), *arguments])


@pytest.fixture
def places(root: Path) -> list[int]:
    """Where the records start, and the end of the log."""
    reopened = open_store(root)
    records = log_records(reopened)
    reopened.stop()
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(
        f'{{"offsetTable":{{"{TOPIC}@g":{{0:15,1:3}}}}}}'
    )
    return [*(r.physical_offset for r in records), records[-1].physical_offset + records[-1].size]


def test_truncating(root: Path, places: list[int], tmp_path: Path) -> None:
    offset, end = places[20], places[-1]
    result = truncate(root, "--to", str(offset))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"{root}: log from 0 to {end}"
    assert lines[1].startswith(f"cut: {end - offset} bytes from {offset} on, 10 messages stored")
    assert lines[2:] == [
        f"{TOPIC} queue 0: 5 entries, ends at 10",
        f"{TOPIC} queue 1: 5 entries, ends at 10",
        "index files to rebuild without these messages: 1",
        f"consumerOffset.json: {TOPIC}@g queue 0 from 15 to 10",
        f"{root}: nothing was changed; add --apply to truncate the log",
    ]
    assert list(tmp_path.iterdir()) == [root]
    backups = tmp_path / "backups"
    result = truncate(root, "--to", str(offset), "--apply", "--backup", str(backups))
    assert result.exit_code == 0
    assert result.stderr == ""
    (backup,) = backups.iterdir()
    assert result.stdout.splitlines() == [
        *lines[:-1],
        f"backup: {backup}",
        f"{root}: the log now ends at {offset}",
    ]
    assert CliRunner().invoke(store, ["check", str(root)]).exit_code == 0
    result = truncate(root, "--to", str(offset), "--apply")
    assert result.stdout == f"{root}: log from 0 to {offset}\n{root}: nothing to do\n"


def test_a_truncation_inside_a_record_is_refused(root: Path, places: list[int]) -> None:
    result = truncate(root, "--to", str(places[7] + 1), "--apply")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"the nearest record boundary below is {places[7]}" in result.stderr
    assert truncate(root).exit_code == 2
    assert truncate(root, "--to", "-1").exit_code == 2


def test_a_torn_end_is_shown(root: Path, places: list[int]) -> None:
    (root / "abort").touch()
    segment = root / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[places[-1] : places[-1] + 5] = b"stray"
    segment.write_bytes(data)
    result = truncate(root, "--to", str(places[-1]))
    assert result.stdout.splitlines()[1] == "cut: 5 bytes after the log's end, not valid records"


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    written = open_store(tmp_path / "data")
    for number in range(25):
        put(written, queue_id=number)
    written.seal()
    written.stop()
    lines = truncate(tmp_path / "data", "--to", "0").stdout.splitlines()
    assert sum("entries, ends at 0" in line for line in lines) == 20
    assert "... and 5 more queues" in lines


def test_truncating_uses_the_settings_of_a_file(
    root: Path, places: list[int], tmp_path: Path
) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text("mappedFileSizeCommitLog=131072\n")
    result = truncate(root, "--to", str(places[3]), "-c", str(settings))
    assert result.exit_code == 1
    assert "has 65536 bytes, not 131072" in result.stderr


def test_variables_in_a_broker_s_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("mappedFileSizeCommitLog=${SIZE}\nreplicationSecretKey=${SECRET}\n")
    monkeypatch.delenv("SECRET", raising=False)
    monkeypatch.setenv("SIZE", str(SEGMENT))
    assert load_store_config(file, root).mapped_file_size_commit_log == SEGMENT
    monkeypatch.delenv("SIZE")
    result = CliRunner().invoke(store, ["check", str(root), "-c", str(file)])
    assert result.exit_code == 1
    assert "mappedFileSizeCommitLog=${SIZE}" in result.output
