"""Check the key index: broken chains, entries without a message, missing keys."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pyromq.protocol.message.units import INDEX_ENTRY_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE
from pyromq.store.offline.check import check_store
from pyromq.store.offline.check_index import guess_index_settings
from tests.support.patience import wait_until
from tests.support.stores import open_store, put, small_config

SLOTS, ENTRIES = 16, 64
FIRST_ENTRY = INDEX_HEADER_SIZE + SLOTS * INDEX_SLOT_SIZE + INDEX_ENTRY_SIZE
COUNT = 150


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = open_store(tmp_path_factory.mktemp("index") / "store")
    for number in range(COUNT):
        put(store, b"%d" % number * 300, keys=f"k{number} all")
        store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()
    return store.config.root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))


def files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def found(root: Path) -> list[tuple[str, str, int]]:
    return [
        (violation.kind.name, violation.file.name, violation.position)
        for violation in check_store(root, small_config(root))
    ]


def test_a_valid_index(root: Path) -> None:
    assert len(files(root)) > 3
    assert found(root) == []
    assert guess_index_settings(files(root)) == (SLOTS, ENTRIES)


def wrong_hash(path: Path) -> int:
    patch(path, FIRST_ENTRY + 3 * INDEX_ENTRY_SIZE, struct.pack(">i", 12345))
    return FIRST_ENTRY + 3 * INDEX_ENTRY_SIZE


def wrong_place(path: Path) -> int:
    patch(path, FIRST_ENTRY + 3 * INDEX_ENTRY_SIZE + 4, struct.pack(">q", 77))
    return FIRST_ENTRY + 3 * INDEX_ENTRY_SIZE


def place_beyond_the_log(path: Path) -> int:
    patch(path, FIRST_ENTRY + 3 * INDEX_ENTRY_SIZE + 4, struct.pack(">q", 1 << 40))
    return FIRST_ENTRY + 3 * INDEX_ENTRY_SIZE


def link_forward(path: Path) -> int:
    patch(path, FIRST_ENTRY + 3 * INDEX_ENTRY_SIZE + 16, struct.pack(">i", 60))
    return FIRST_ENTRY + 3 * INDEX_ENTRY_SIZE


def wrong_slot(path: Path) -> int:
    with path.open("rb") as file:
        data = file.read(INDEX_HEADER_SIZE + SLOTS * INDEX_SLOT_SIZE)
    slot = next(
        at
        for at in range(INDEX_HEADER_SIZE, len(data), INDEX_SLOT_SIZE)
        if any(data[at : at + INDEX_SLOT_SIZE])
    )
    patch(path, slot, struct.pack(">i", 0))
    return slot


@pytest.mark.parametrize(
    "damage", [wrong_hash, wrong_place, place_beyond_the_log, link_forward, wrong_slot]
)
@pytest.mark.parametrize("number", [0, 2])
def test_damage_is_reported(root: Path, damage: Callable[[Path], int], number: int) -> None:
    path = files(root)[number]
    position = damage(path)
    assert ("INDEX_ENTRY", path.name, position) in found(root)


@pytest.mark.parametrize("field", [(0, -1), (16, 1 << 60), (32, SLOTS + 1), (36, ENTRIES + 1)])
def test_a_wrong_header_is_reported(root: Path, field: tuple[int, int]) -> None:
    at, value = field
    path = files(root)[1]
    patch(path, at, struct.pack(">q" if at < 32 else ">i", value))
    assert ("INDEX_HEADER", path.name, 0) in found(root)


def test_a_missing_file_in_the_middle(root: Path) -> None:
    files(root)[2].unlink()
    kinds = {kind for kind, _, _ in found(root)}
    assert kinds == {"MISSING_KEY"}


def test_a_missing_first_file_has_expired(root: Path) -> None:
    files(root)[0].unlink()
    assert found(root) == []


def test_a_file_of_another_size(root: Path) -> None:
    path = files(root)[1]
    path.write_bytes(path.read_bytes()[:-20])
    assert ("FILE", path.name, 0) in found(root)


def test_a_foreign_file(root: Path) -> None:
    (root / "index" / "note").write_text("")
    assert found(root) == [("FILE", "note", 0)]


def test_settings_that_cannot_be_guessed(tmp_path: Path) -> None:
    path = tmp_path / "20260101000000000"
    path.write_bytes(bytes(41))
    assert guess_index_settings([path]) == (0, 0)
    assert guess_index_settings([]) == (0, 0)
    path.write_bytes(bytes(40 + 84 * 5))
    assert guess_index_settings([path]) == (5, 20)
