from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.base.sizes import MIB
from pyromq.spark.stores.settings import absolute, describe, load_configs
from pyromq.store.results import StoreError
from tests.support.stores import open_store, small_config
from tests.unit.spark.stores.test_builds import write_store


def test_settings_come_from_the_file_or_from_the_store(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store")
    (guessed,) = load_configs([root], None)
    expected = small_config(root)
    assert guessed.mapped_file_size_commit_log == expected.mapped_file_size_commit_log
    file = tmp_path / "broker.conf"
    file.write_text("maxIndexNum=77\nstorePathRootDir=/elsewhere\n")
    (loaded,) = load_configs([root], file)
    assert (loaded.max_index_num, loaded.root) == (77, root)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a directory"):
        load_configs([tmp_path / "none"], None)
    with pytest.raises(ValueError, match="given twice"):
        load_configs([tmp_path, tmp_path / "."], None)
    with pytest.raises(ValueError, match=r"none\.conf"):
        load_configs([tmp_path], tmp_path / "none.conf")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path)
    (config,) = absolute([small_config(Path("store"))])
    assert config.root == tmp_path / "store"


def test_logs_are_described(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store")
    (line,) = describe(load_configs([root], None), MIB)
    assert line == f"{root}: log of 0 MiB, starting at 0, 1 parts to decode"
    store = open_store(root)
    assert next(describe([small_config(root)], MIB)).endswith(", in use or not cleanly stopped")
    store.stop()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError):
        list(describe(load_configs([tmp_path / "empty"], None), MIB))
