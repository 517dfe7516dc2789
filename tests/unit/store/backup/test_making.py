from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pyromq.store.backup import making
from pyromq.store.backup.copying import Copied, Meter, copy_file
from pyromq.store.backup.making import back_up
from pyromq.store.backup.repository import Repository
from pyromq.store.backup.verifying import verify_backup
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.truncate import truncate_store
from pyromq.store.results import StoreError
from tests.support.small_disk import small_disk
from tests.support.stores import SEGMENT, open_store, put, small_config


def fill(store: MessageStore, count: int, letter: bytes = b"x") -> None:
    for number in range(count):
        put(store, b"%d " % number + letter * 1000, queue_id=number % 2)
    store.seal()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "data")
    fill(store, 200)
    store.stop()
    return tmp_path / "data"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "backups")


def test_a_second_backup_links_full_segments(filled: Path, repository: Repository) -> None:
    config = small_config(filled)
    first = back_up(config, repository)
    assert (first.linked, first.copied > 3 * SEGMENT) == (0, True)
    store = open_store(filled)
    fill(store, 100)
    second = back_up(config, repository)
    end = store.max_physical_offset
    store.stop()
    manifest = second.backup.manifest
    assert manifest.log_end == end
    assert manifest.source["running"]
    assert second.linked == 3 * SEGMENT
    name = f"commitlog/{0:020}"
    inodes = {(made.backup.directory / name).stat().st_ino for made in (first, second)}
    assert len(inodes) == 1
    assert inodes != {(filled / name).stat().st_ino}, "a live file could change"


def test_a_full_backup_links_nothing(tmp_path: Path, repository: Repository) -> None:
    store = open_store(tmp_path / "data", mapped_file_size_commit_log=4 * SEGMENT)
    fill(store, 300)
    store.stop()
    config = store.config
    first = back_up(config, repository).backup
    damaged = first.directory / f"commitlog/{0:020}"
    damaged.write_bytes(b"!" + damaged.read_bytes()[1:])
    linked = back_up(config, repository).backup
    assert list(verify_backup(linked, Meter())), "a link shares the damage"
    made = back_up(config, repository, full=True)
    assert made.linked == 0
    assert not list(verify_backup(made.backup, Meter()))


def test_a_log_that_was_cut_and_continued_is_copied_again(
    filled: Path, repository: Repository
) -> None:
    config = small_config(filled)
    back_up(config, repository)
    log_end = 2 * SEGMENT
    truncate_store(config, log_end, apply=True)
    store = open_store(filled)
    fill(store, 100, b"y")
    store.stop()
    made = back_up(config, repository)
    assert made.linked == 2 * SEGMENT
    copy = made.backup.directory / f"commitlog/{2 * SEGMENT:020}"
    assert copy.read_bytes() == (filled / f"commitlog/{2 * SEGMENT:020}").read_bytes()


def test_another_log_is_refused(filled: Path, repository: Repository, tmp_path: Path) -> None:
    back_up(small_config(filled), repository)
    other = open_store(tmp_path / "other")
    fill(other, 10)
    other.stop()
    with pytest.raises(StoreError, match="is a backup of another log"):
        back_up(other.config, repository)
    assert len(repository.backups()) == 1
    assert not repository.leftovers()


def test_a_backup_inside_the_store_is_refused(filled: Path) -> None:
    with pytest.raises(StoreError, match="cannot be inside the store"):
        back_up(small_config(filled), Repository(filled / "backups"))


def test_an_empty_store(tmp_path: Path, repository: Repository) -> None:
    made = back_up(small_config(tmp_path / "empty"), repository)
    manifest = made.backup.manifest
    assert (manifest.log_begin, manifest.log_end, manifest.segments) == (0, 0, ())


def test_only_the_newest_are_kept(filled: Path, repository: Repository) -> None:
    config = small_config(filled)
    names = [back_up(config, repository).backup.directory.name for _ in range(3)]
    made = back_up(config, repository, keep=2)
    assert made.removed == tuple(names[:2])
    assert [backup.directory.name for backup in repository.backups()] == [
        names[2],
        made.backup.directory.name,
    ]


def expire_before(monkeypatch: pytest.MonkeyPatch, name: str, doomed: list[Path]) -> None:
    """Remove files just before a certain one is copied."""

    def copy(source: Path, target: Path, size: int, meter: Meter, **others: Any) -> Copied:
        if source.name == name:
            while doomed:
                doomed.pop().unlink()
        return copy_file(source, target, size, meter, **others)

    monkeypatch.setattr(making, "copy_file", copy)


def test_a_segment_that_expires_takes_those_before_it(
    filled: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number * SEGMENT:020}" for number in range(2)]
    expire_before(monkeypatch, names[1], [filled / "commitlog" / name for name in names])
    manifest = back_up(small_config(filled), repository).backup.manifest
    assert manifest.log_begin == 2 * SEGMENT
    assert [file.base for file in manifest.segments] == [2 * SEGMENT, 3 * SEGMENT]


def test_a_log_that_expires_as_a_whole_is_tried_again(
    filled: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number * SEGMENT:020}" for number in range(4)]
    expire_before(monkeypatch, names[3], [filled / "commitlog" / name for name in names])
    # Nothing is left: the queues know more than the log.
    with pytest.raises(StoreError, match="the consume queues refer to"):
        back_up(small_config(filled), repository)


def test_without_links_everything_is_copied(
    filled: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(small_config(filled), repository)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    made = back_up(small_config(filled), repository)
    assert made.linked == 0


def test_a_full_disk_leaves_the_last_backup(filled: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 3 * 1024 * 1024) as disk:
        repository = Repository(disk / "backups")
        first = back_up(small_config(filled), repository)
        store = open_store(filled)
        fill(store, 4000)
        store.stop()
        with pytest.raises(StoreError, match="no room for the backup"):
            back_up(small_config(filled), repository)
        (left,) = repository.backups()
        assert left == first.backup
        assert not repository.leftovers()


def test_a_disk_that_fills_up_meanwhile(
    filled: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_options: object) -> Copied:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(making, "copy_file", fail)
    with pytest.raises(StoreError, match="no room for the backup"):
        back_up(small_config(filled), repository)
    assert not repository.leftovers()
