from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from pyromq.cli.store import store
from pyromq.protocol.units import CONSUME_QUEUE_ENTRY


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
