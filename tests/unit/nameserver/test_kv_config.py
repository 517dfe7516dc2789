from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path

import pytest

from pyromq.base.atomic_file import backup_of, read_file, write_file
from pyromq.nameserver import kv_config
from pyromq.nameserver.kv_config import KVConfig, KVConfigFileError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def loaded(path: Path) -> KVConfig:
    config = KVConfig(path)
    config.load()
    return config


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def test_keys_survive_a_restart_in_java_s_form(path: Path) -> None:
    config = loaded(path)
    assert config.namespace("n") is None
    await config.put("n", "k", "v")
    await config.put("n", "ä", "ö")
    assert json.loads(read_file(path) or b"") == {"configTable": {"n": {"k": "v", "ä": "ö"}}}
    again = loaded(path)
    assert again.get("n", "k") == "v"
    assert again.get("n", "other") is None
    assert again.get("other", "k") is None
    assert again.namespace("n") == {"k": "v", "ä": "ö"}


async def test_a_deleted_key_is_gone_and_its_namespace_stays(path: Path) -> None:
    config = loaded(path)
    await config.put("n", "k", "v")
    await config.delete("n", "k")
    await config.delete("n", "k")
    await config.delete("never", "k")
    assert loaded(path).namespace("n") == {}
    assert loaded(path).namespace("never") is None


async def test_changes_at_the_same_time_are_all_saved(path: Path) -> None:
    config = loaded(path)
    await asyncio.gather(*(config.put("n", str(number), "v") for number in range(20)))
    assert len(loaded(path).namespace("n") or {}) == 20


async def test_changes_while_a_file_is_written_share_the_next_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = loaded(path)
    saves = []
    save = write_file

    def counted(path: Path, content: bytes, *, backup: bool) -> None:
        assert threading.current_thread() is not threading.main_thread()
        saves.append(len(content))
        save(path, content, backup=backup)

    monkeypatch.setattr(kv_config, "write_file", counted)
    await asyncio.gather(*(config.put("n", str(number), "v") for number in range(500)))
    assert len(saves) <= 3
    assert len(loaded(path).namespace("n") or {}) == 500


async def test_a_change_whose_sender_is_gone_is_saved_before_the_end(path: Path) -> None:
    config = loaded(path)
    puts = [asyncio.ensure_future(config.put("n", str(number), "v")) for number in range(3)]
    await asyncio.sleep(0)
    for put in puts:
        put.cancel()
    await asyncio.gather(*puts, return_exceptions=True)
    await config.close()
    assert len(loaded(path).namespace("n") or {}) == 3


async def test_a_change_that_cannot_be_saved_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "file" / "kvConfig.json"
    config = loaded(path)
    write(path.parent, b"")
    with pytest.raises(FileExistsError):
        await config.put("n", "k", "v")
    assert config.get("n", "k") == "v"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"configTable":{"n":{"k":1}}}', b"\xff"])
async def test_a_damaged_file_is_replaced_by_its_backup(
    path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    config = loaded(path)
    await config.put("n", "k", "old")
    await config.put("n", "k", "new")
    write(path, damage)
    with caplog.at_level(logging.WARNING):
        assert loaded(path).get("n", "k") == "old"
    assert str(path) in caplog.text


def test_a_damaged_file_and_backup_are_an_error_that_names_both(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    backup_of(path).write_bytes(b"")
    with pytest.raises(KVConfigFileError) as raised:
        loaded(path)
    assert f"{path}: " in str(raised.value)
    assert f"{backup_of(path)}: " in str(raised.value)


def test_a_lone_damaged_file_is_an_error_too(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    with pytest.raises(KVConfigFileError, match="repair the file or move it away"):
        loaded(path)
