from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyromq.store.backup.manifest import FileFacts
from pyromq.store.backup.repository import Repository, read_backup
from pyromq.store.results import StoreError
from tests.unit.store.backup.test_manifest import MANIFEST, SHA

SEGMENT = FileFacts(f"commitlog/{0:020}", 3, 3, SHA)


def make(repository: Repository, now: float) -> Path:
    name, partial = repository.begin(now)
    return partial.complete(replace(MANIFEST, name=name))


def test_backups_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "backups")
    assert repository.backups() == []
    assert repository.leftovers() == []
    with repository.locked():
        names = [make(repository, now).name for now in (200.0, 100.0, *[200.0] * 10)]
    assert names[0] == "19700101T000320Z"
    assert names[-1] == "19700101T000320Z-11"
    found = [backup.directory.name for backup in repository.backups()]
    assert found == [names[1], names[0], *names[2:]]


def test_only_one_run_at_a_time(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    with (
        repository.locked(),
        pytest.raises(StoreError, match="another run is working"),
        repository.locked(),
    ):
        pass
    with repository.locked():
        pass


def test_files_of_an_interrupted_backup_are_offered(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    complete = make(repository, 1)
    _, partial = repository.begin(2)
    partial.note(SEGMENT)
    partial.note(replace(SEGMENT, path="config/topics.json"))
    partial.close()
    with (partial.directory / "copied").open("ab") as file:
        file.write(b'{"path": "commitl')
    offered = dict(repository.reusable(repository.backups()))
    assert list(offered) == [partial.directory, complete]
    assert offered[partial.directory] == {SEGMENT.path: SEGMENT}
    assert set(offered[complete]) == {file.path for file in MANIFEST.segments}
    assert repository.leftovers() == [partial.directory]
    for path in (complete, partial.directory):
        repository.remove(path)
    assert not repository.backups()
    assert not repository.leftovers()


def test_a_damaged_manifest_hides_only_its_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = Repository(tmp_path)
    damaged, sound = make(repository, 1), make(repository, 2)
    (damaged / "backup.json").write_bytes(b"{}")
    assert [backup.directory for backup in repository.backups()] == [sound]
    assert "ignoring a damaged backup" in caplog.text
    with pytest.raises(StoreError, match="cannot be read"):
        read_backup(damaged)
    with pytest.raises(StoreError, match="not a complete backup"):
        read_backup(tmp_path)
