"""Units of an extension: those that are none, and those that are not of their message."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    EXTENSION_BASE,
    EXTENSION_END,
    EXTENSION_UNIT,
    EXTENSION_UNIT_SIZE,
)
from pyromq.store.offline.check import check_store
from pyromq.store.offline.check_extension import ExtensionCheck
from pyromq.store.offline.check_files import SegmentFiles
from tests.support.patience import wait_until
from tests.support.stores import TOPIC, killed_copy, open_store, put, small_config

SIZE = 3 * EXTENSION_UNIT_SIZE + 4
UNITS = [EXTENSION_UNIT.pack(20, number, 100 + number, 0) for number in range(5)]


def write(root: Path, *files: bytes) -> None:
    for number, data in enumerate(files):
        (root / f"{number * SIZE:020d}").write_bytes(data.ljust(SIZE, b"\0"))


def loaded(
    root: Path, last: int | None, *, may_move: bool = False
) -> tuple[ExtensionCheck, list[str]]:
    check = ExtensionCheck(SegmentFiles(root, SIZE), may_move=may_move)
    address = None if last is None else last - EXTENSION_BASE
    return check, [f"{each.kind.name} {each.position}" for each in check.load(address)]


def fits(check: ExtensionCheck, *rows: tuple[int, int, int]) -> list[bool]:
    offsets, tags_codes, times = np.array(rows, np.int64).T
    return list(check.fits(offsets ^ -EXTENSION_BASE, tags_codes, times).tolist())


def test_right_units(tmp_path: Path) -> None:
    write(tmp_path, b"".join(UNITS[:3]) + EXTENSION_END, b"".join(UNITS[3:]))
    check, violations = loaded(tmp_path, SIZE + 20)
    assert violations == []
    assert check.end == SIZE + 40
    right = [(0, 0, 100), (20, 1, 101), (40, 2, 102), (SIZE, 3, 103), (SIZE + 20, 4, 104)]
    assert fits(check, *right) == [True] * 5
    wrong = [(0, 1, 100), (0, 0, 101), (1, 0, 100), (60, 0, 0), (SIZE + 40, 0, 0), (9000, 0, 0)]
    assert fits(check, *wrong, right[1]) == [False] * 6 + [True]


def test_what_nobody_points_at_is_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, UNITS[0] + b"\x7f" * 30)
    assert loaded(tmp_path, 0)[1] == []
    assert loaded(tmp_path, None)[1] == []
    assert loaded(tmp_path, 20)[1] == ["EXTENSION_UNIT 20"]


@pytest.mark.parametrize(
    ("files", "last", "expected"),
    [
        ([UNITS[0] + EXTENSION_UNIT.pack(21, 0, 0, 0)], 20, ["EXTENSION_UNIT 20"]),
        ([EXTENSION_UNIT.pack(19, 0, 0, -1)], 0, ["EXTENSION_UNIT 0"]),
        ([UNITS[0] + EXTENSION_UNIT.pack(60, 0, 0, 40)], 20, ["EXTENSION_UNIT 20"]),
        ([b"".join(UNITS[:3]), UNITS[3]], SIZE, ["EXTENSION_UNIT 60"]),
        ([UNITS[0], UNITS[3]], SIZE, ["EXTENSION_UNIT 20"]),
        ([UNITS[0]], 20, ["EXTENSION_UNIT 20"]),
    ],
)
def test_what_is_no_unit(
    tmp_path: Path, files: list[bytes], last: int, expected: list[str]
) -> None:
    write(tmp_path, *files)
    assert loaded(tmp_path, last)[1] == expected


def test_the_tail_of_a_store_that_moves(tmp_path: Path) -> None:
    write(tmp_path, UNITS[0])
    check, violations = loaded(tmp_path, 20, may_move=True)
    assert violations == []
    assert fits(check, (0, 0, 100), (0, 9, 100), (20, 5, 5)) == [True, False, True]


# Whole stores


def write_store(root: Path, **changes: int) -> Path:
    store = open_store(
        root,
        enable_consume_queue_ext=True,
        mapped_file_size_consume_queue_ext=4096,
        **changes,
    )
    for number in range(500):
        put(store, b"%d" % number, queue_id=number % 2, tags=f"tag{number % 3}")
        store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    killed_copy(store, root.parent / "killed")
    store.stop()
    return root


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("check") / "store")


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))


def found(root: Path) -> list[str]:
    settings = small_config(
        root, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=4096
    )
    given = [str(violation) for violation in check_store(root, settings)]
    assert given == [str(violation) for violation in check_store(root)]
    return given


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def unit_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "consumequeue_ext" / TOPIC / "0").iterdir())[number]


def wrong_tags(root: Path) -> None:
    patch(unit_file(root), 29, b"\x55")


def wrong_time(root: Path) -> None:
    patch(unit_file(root), 37, b"\x55")


def wrong_size(root: Path) -> None:
    patch(unit_file(root), 21, b"\x55")


def swapped(root: Path) -> None:
    path = sorted((root / "consumequeue" / TOPIC / "0").iterdir())[0]
    data = path.read_bytes()
    patch(path, 12, data[12 + CONSUME_QUEUE_ENTRY_SIZE :][:8])
    patch(path, 12 + CONSUME_QUEUE_ENTRY_SIZE, data[12:20])


def no_file(root: Path) -> None:
    unit_file(root, 1).unlink()


def no_units(root: Path) -> None:
    shutil.rmtree(root / "consumequeue_ext" / TOPIC / "1")


def other_file(root: Path) -> None:
    (unit_file(root).parent / "notes").write_text("mine")


def test_a_store_that_was_stopped_or_killed_is_right(root: Path, written: Path) -> None:
    assert len(list(unit_file(root).parent.iterdir())) > 1
    assert found(root) == []
    assert found(written.parent / "killed") == []


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (wrong_tags, f"entry 1 of {TOPIC} queue 0 has no extension unit for the record at"),
        (wrong_time, f"entry 1 of {TOPIC} queue 0 has no extension unit for the record at"),
        (wrong_size, "at 20: extension unit: invalid unit: size 85, bit map of 0 bytes"),
        (swapped, "entry 1 of TopicTest queue 0 points back to offset 0 of the extension"),
        (no_file, "has no extension unit for the record at"),
        (no_units, f"entry 0 of {TOPIC} queue 1 has no extension unit for the record at"),
        (other_file, "notes at 0: file: is not a segment"),
    ],
)
def test_damage_is_named(root: Path, damage: Callable[[Path], None], text: str) -> None:
    damage(root)
    assert any(text in violation for violation in found(root)), found(root)


def test_a_store_without_extensions_is_not_asked_for_units(root: Path) -> None:
    shutil.rmtree(root / "consumequeue_ext")
    assert list(check_store(root)) == []
    assert found_with(root, enable_consume_queue_ext=False) == []
    assert found_with(root, enable_consume_queue_ext=True) != []


def found_with(root: Path, *, enable_consume_queue_ext: bool) -> list[str]:
    settings = small_config(root, enable_consume_queue_ext=enable_consume_queue_ext)
    return [str(violation) for violation in check_store(root, settings)]
