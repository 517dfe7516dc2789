from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.store.backup.copying import Meter
from pyromq.store.backup.making import back_up
from pyromq.store.backup.repository import Backup, Repository
from pyromq.store.backup.verifying import verify_backup
from tests.support.stores import SEGMENT, open_store, put, small_config


@pytest.fixture
def backup(tmp_path: Path) -> Backup:
    store = open_store(tmp_path / "data")
    for number in range(100):
        put(store, b"%d " % number * 200)
    store.seal()
    store.stop()
    return back_up(small_config(tmp_path / "data"), Repository(tmp_path / "backups")).backup


def problems(backup: Backup) -> list[str]:
    return [text.partition(": ")[2] for text in verify_backup(backup, Meter())]


def test_a_sound_backup(backup: Backup) -> None:
    assert problems(backup) == []


def test_a_changed_byte(backup: Backup) -> None:
    path = backup.directory / f"commitlog/{0:020}"
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    assert problems(backup) == ["its checksum differs: the file is damaged"]


def test_a_missing_a_short_and_another_file(backup: Backup) -> None:
    (backup.directory / "queues.json").unlink()
    path = backup.directory / f"commitlog/{SEGMENT:020}"
    path.write_bytes(path.read_bytes()[:-1])
    (backup.directory / f"commitlog/{9 * SEGMENT:020}").write_bytes(b"")
    found = problems(backup)
    size = next(file.size for file in backup.manifest.files if file.name == path.name)
    assert f"has {size - 1} bytes, expected {size}" in found
    assert "cannot be read: No such file or directory" in found
    assert "is not part of the backup" in found
