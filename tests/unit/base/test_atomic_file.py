from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pyromq.base.atomic_file import backup_of, read_file, sync_directory, sync_file, write_file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_created_with_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "table.json"
    write_file(path, b"one")
    assert path.read_bytes() == b"one"
    assert names(path.parent) == ["table.json"]


def test_content_is_replaced_without_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["table.json"]


def test_the_previous_content_is_kept_as_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    for content in (b"one", b"two", b"three"):
        write_file(path, content, backup=True)
    assert path.read_bytes() == b"three"
    assert backup_of(path).read_bytes() == b"two"
    assert names(tmp_path) == ["table.json", "table.json.bak"]


def test_a_file_system_without_hard_links_keeps_the_backup_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "table.json"
    write_file(path, b"one", backup=True)
    write_file(path, b"two", backup=True)
    assert (path.read_bytes(), backup_of(path).read_bytes()) == (b"two", b"one")


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_the_mode_is_set_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    write_file(tmp_path / "file", b"", mode=mode)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    write_file(path, b"one")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, b"two", backup=True)
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["table.json"]


def test_a_leftover_of_a_crash_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "table.json.tmp").write_bytes(b"half of something longer")
    write_file(tmp_path / "table.json", b"one")
    assert (tmp_path / "table.json").read_bytes() == b"one"
    assert names(tmp_path) == ["table.json"]


def test_syncs_need_what_they_sync(tmp_path: Path) -> None:
    sync_directory(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "file")
    sync_file(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        sync_file(tmp_path / "nothing")


def test_the_file_exists_at_every_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(path, b"one")

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for step in ("unlink", "hardlink_to", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, step, crash)
            with pytest.raises(KeyboardInterrupt):
                write_file(path, b"two", backup=True)
        assert read_file(path) == b"one"


def test_a_missing_file_reads_as_none(tmp_path: Path) -> None:
    assert read_file(tmp_path / "nothing") is None
