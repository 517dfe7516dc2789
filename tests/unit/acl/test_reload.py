from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from pyromq.acl.files import AclFileError, AclFiles
from pyromq.acl.reload import AclStore
from pyromq.acl.rules import Rules

ACCOUNT = "- accessKey: {0}_key\n  secretKey: {0}_secret\n"


def text(*names: str) -> str:
    return "accounts:\n" + "".join(ACCOUNT.format(name) for name in names)


def write(path: Path, content: str) -> None:
    """Replace a file, with another inode: the clock of the file system may be coarse."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name("new")
    new.write_text(content)
    new.chmod(0o600)
    os.replace(new, path)


@pytest.fixture
def files(tmp_path: Path) -> AclFiles:
    files = AclFiles(tmp_path)
    write(files.default, text("alice"))
    return files


async def test_a_change_is_taken_over(files: AclFiles) -> None:
    store = AclStore(files)
    seen: list[Rules] = []
    store.listeners.append(seen.append)
    assert list(store.load().accounts) == ["alice_key"]
    await store.poll()
    assert len(seen) == 1
    write(files.default, text("alice", "carol"))
    await store.poll()
    assert list(store.rules.accounts) == ["alice_key", "carol_key"]
    assert seen[-1] is store.rules


async def test_an_added_file_and_an_emptied_one(files: AclFiles) -> None:
    store = AclStore(files)
    store.load()
    write(files.folder / "more.yml", text("carol"))
    await store.poll()
    assert set(store.rules.accounts) == {"alice_key", "carol_key"}
    write(files.default, "")
    await store.poll()
    assert set(store.rules.accounts) == {"carol_key"}


async def test_a_white_list_that_was_empty_and_is_removed_again(files: AclFiles) -> None:
    store = AclStore(files)
    store.load()
    write(files.default, "globalWhiteRemoteAddresses: [10.0.0.1]\n")
    await store.poll()
    assert store.rules.is_white("10.0.0.1")
    write(files.default, text("alice"))
    await store.poll()
    assert not store.rules.is_white("10.0.0.1")


async def test_a_bad_file_keeps_the_last_good_rules(
    files: AclFiles, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_000_000
    store = AclStore(files, clock=lambda: now)
    store.load()
    write(files.default, "accounts: [")
    await store.poll()
    await store.poll()
    assert list(store.rules.accounts) == ["alice_key"]
    assert store.fault is not None

    def errors() -> int:
        return sum(record.levelno == logging.ERROR for record in caplog.records)

    assert "NOT RELOADED" in caplog.text
    assert errors() == 1
    now += 60_000
    await store.poll()
    assert errors() == 2
    write(files.default, text("carol"))
    await store.poll()
    assert list(store.rules.accounts) == ["carol_key"]
    assert not store.fault


def test_a_bad_file_at_the_start(files: AclFiles) -> None:
    write(files.default, "accounts: [")
    with pytest.raises(AclFileError):
        AclStore(files).load()


async def test_no_secret_is_logged(files: AclFiles, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = AclStore(files)
    store.load()
    await store.reload(force=True)
    assert "1 accounts" in caplog.text
    assert "alice_secret" not in caplog.text
