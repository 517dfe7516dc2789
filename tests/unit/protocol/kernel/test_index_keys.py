"""Keys read by the kernel make the index files that the Python code makes, whatever the bytes."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import pytest

from pyromq.store.index.index import KeyIndex
from tests import kernel_builds
from tests.support.examples import examples
from tests.support.random_logs import damage, random_log
from tests.support.records import make_record

#: Slots and entries of index files, so that logs fill none, a few or many of them.
SIZES = ((5, 8), (1, 2), (7, 60), (100, 100_000))


@pytest.fixture(
    scope="module", params=[kernel_builds.FAST, kernel_builds.CHECKED], ids=lambda build: build.name
)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return kernel_builds.load(request.param, "index_keys")


def indexed(
    directory: Path, spans: list[bytes], size: tuple[int, int], module: ModuleType | None
) -> tuple[list[int], list[bytes]]:
    """Return the ends of the records and the contents of the files."""
    index = KeyIndex(directory, hash_slot_count=size[0], entry_count=size[1])
    index._keys = None if module is None else module.IndexKeys()
    index.load()
    ends = [index.put_span(span) for span in spans]
    index.close()
    return ends, [path.read_bytes() for path in sorted(directory.iterdir())]


def fuzz(module: ModuleType, directory: Path, seed: int, rounds: int) -> None:
    """Index random logs with and without the kernel, and compare everything."""
    chance = random.Random(seed)
    for number in range(rounds):
        log = random_log(chance, chance.choice((1, 5, 30, 120)))
        spans = [log]
        if number % 2:
            spans = [damage(chance, log) for _ in range(3)]
        size = chance.choice(SIZES)
        plain = indexed(directory / f"{number}-python", spans, size, None)
        compiled = indexed(directory / f"{number}-kernel", spans, size, module)
        assert compiled == plain, (seed, number)
    assert module.fault_count() == 0


def test_files_and_ends_are_those_of_the_python_code(module: ModuleType, tmp_path: Path) -> None:
    fuzz(module, tmp_path, seed=1, rounds=examples(600))


def test_more_keys_than_fit_at_once(module: ModuleType, tmp_path: Path) -> None:
    crowd = [
        make_record(properties=b"KEYS\x01" + b"k%d " % at * 9_000, physical_offset=at * 100_000)
        for at in range(5)
    ]
    spans = [b"".join(crowd)]
    size = (500, 30_000)
    assert indexed(tmp_path / "kernel", spans, size, module) == indexed(
        tmp_path / "python", spans, size, None
    )


def test_a_record_that_is_not_utf8_is_left_alone(module: ModuleType) -> None:
    good = make_record(properties=b"KEYS\x01a b", physical_offset=7)
    bad = make_record(properties=b"KEYS\x01a \xff", physical_offset=1000)
    keys = module.IndexKeys()
    assert keys.read(good + bad + good, 0, 0) == (len(good), 1, 2, False, len(bad))
    assert keys.bounds(0, 2)[0] == 7
    # Nobody looks at the keys of a record that is in the index already.
    assert keys.read(bad, 0, 2000) == (len(bad), 1, 0, True, 0)


def test_ranges_outside_are_refused(module: ModuleType) -> None:
    keys = module.IndexKeys()
    file = bytearray(40 + 4 * 10)
    assert keys.read(make_record(properties=b"KEYS\x01a b c"), 0, 0)[2] == 3
    for first, count in ((-1, 1), (0, 0), (0, 4), (3, 1), (1 << 40, 1), (0, -1)):
        with pytest.raises(IndexError):
            keys.bounds(first, count)
        with pytest.raises(IndexError):
            keys.link(file, 40, 10, 1, 0, first, count)
        with pytest.raises(IndexError):
            keys.enter(file, 40, 1, first, count)
    for slots_at, slots in ((40, 11), (41, 10), (-4, 10), (40, 0), (40, -1), (81, 1)):
        with pytest.raises(ValueError, match="slots"):
            keys.link(file, slots_at, slots, 1, 0, 0, 3)
    with pytest.raises(BufferError):
        keys.enter(bytes(file), 40, 1, 0, 3)
    assert keys.read(b"", 0, 0) == (0, 0, 0, False, 0)
    assert keys.read(b"x" * 200, 1 << 40, 0) == (1 << 40, 0, 0, False, 0)
    assert keys.read(b"x" * 200, -1, 0) == (-1, 0, 0, False, 0)
    assert module.fault_count() == 0


def test_a_buffer_is_free_after_the_call(module: ModuleType) -> None:
    keys = module.IndexKeys()
    log = bytearray(make_record(properties=b"KEYS\x01a b c"))
    file = bytearray(40 + 4 * 10)
    assert keys.read(log, 0, 0)[2] == 3
    entries, new_slots = keys.link(file, 40, 10, 1, 0, 0, 3)
    assert (len(entries), new_slots) == (60, 3)
    assert file == bytes(len(file))
    keys.enter(file, 40, 1, 0, 3)
    assert sum(file[40:]) == 1 + 2 + 3
    # Fails as long as anyone holds a view.
    log.append(0)
    file.append(0)
