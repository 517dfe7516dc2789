from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyromq.broker.state import delay_progress
from pyromq.broker.state.delay_progress import Progress, ProgressNote

FIRST = Progress(1_000, {1: 5, 18: 1 << 40})
SECOND = Progress(2_000, {1: 6, 18: 1 << 40})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "delayOffset.progress"


@pytest.fixture
def note(path: Path) -> ProgressNote:
    made = ProgressNote(path)
    made.open()
    return made


def test_the_last_note_is_read(note: ProgressNote, path: Path) -> None:
    assert ProgressNote(path).read() is None
    for number in range(5):
        note.write(Progress(number, {1: number}))
        assert ProgressNote(path).read() == Progress(number, {1: number})


def test_a_torn_note_leaves_the_previous_one(note: ProgressNote, path: Path) -> None:
    note.write(FIRST)
    before = path.read_bytes()
    note.write(SECOND)
    after = path.read_bytes()
    changed = [at for at in range(len(after)) if before[at] != after[at]]
    for at in changed:
        path.write_bytes(after[:at] + bytes([after[at] ^ 0x40]) + after[at + 1 :])
        assert ProgressNote(path).read() == FIRST


@pytest.mark.parametrize("length", [0, 1, 38, 2048, 4096])
def test_a_malformed_note_is_ignored(path: Path, length: int) -> None:
    path.parent.mkdir()
    for content in (bytes(length), b"\xff" * length, os.urandom(length)):
        path.write_bytes(content)
        assert ProgressNote(path).read() is None


def test_a_note_of_another_boot_is_ignored(
    note: ProgressNote, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    note.write(FIRST)
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(delay_progress, "_BOOT_ID", boot)
    boot.write_text("6a204bd8-9b5a-4b7c-9d5e-5a1c9a1f6f2a\n")
    assert ProgressNote(path).read() is None
    boot.write_text("no id")
    assert ProgressNote(path).read() is None


def test_without_a_boot_id_nothing_is_noted(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(delay_progress, "_BOOT_ID", tmp_path / "missing")
    note = ProgressNote(path)
    note.open()
    note.write(FIRST)
    assert not path.exists()
    note.remove()


def test_open_clears_and_remove_deletes_the_file(note: ProgressNote, path: Path) -> None:
    note.write(FIRST)
    other = ProgressNote(path)
    other.open()
    assert other.read() is None
    other.remove()
    other.remove()
    assert not path.exists()


def test_too_many_levels_are_not_noted(note: ProgressNote, path: Path) -> None:
    note.write(FIRST)
    note.write(Progress(3_000, dict.fromkeys(range(1_000), 1)))
    assert ProgressNote(path).read() == FIRST


def test_a_note_that_cannot_be_created_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config").write_bytes(b"a file in the way")
    note = ProgressNote(tmp_path / "config" / "delayOffset.progress")
    note.open()
    note.write(FIRST)
    assert "last seconds again" in caplog.text
    assert note.read() is None
