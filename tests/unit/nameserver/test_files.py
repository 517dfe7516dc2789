from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.nameserver import files


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert files.load(tmp_path / "none") is None


def test_save_makes_directories_and_keeps_the_previous_content(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "kvConfig.json"
    files.save(path, b"one")
    assert files.load(path) == b"one"
    assert files.load(files.backup_of(path)) is None
    files.save(path, b"two")
    assert files.load(path) == b"two"
    assert files.load(files.backup_of(path)) == b"one"
    assert sorted(item.name for item in path.parent.iterdir()) == [
        "kvConfig.json",
        "kvConfig.json.bak",
    ]


def test_the_file_exists_at_every_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.save(path, b"one")

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for step in ("unlink", "hardlink_to", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, step, crash)
            with pytest.raises(KeyboardInterrupt):
                files.save(path, b"two")
        assert files.load(path) == b"one"


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "file"
    files.save(path, b"one")
    files.save(path, b"two")
    assert files.load(path) == b"two"
    assert files.load(files.backup_of(path)) == b"one"


def test_a_failed_save_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.save(path, b"one")
    (tmp_path / "file.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        files.save(path, b"two")
    assert files.load(path) == b"one"
