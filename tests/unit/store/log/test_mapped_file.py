"""One mapped file: reserving, writing, emptying, closing, and what a full disk does."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyromq.store.log import mapped_file
from pyromq.store.log.mapped_file import MappedFile, file_name
from pyromq.store.results import StoreError
from tests.support.descriptors import open_below

SIZE = 64 * 1024


def test_the_name_is_the_offset_in_twenty_digits(tmp_path: Path) -> None:
    assert file_name(0) == "0" * 20
    assert file_name(1073741824) == "00000000001073741824"
    assert MappedFile.create(tmp_path, 4096, SIZE).base == 4096


def test_a_new_file_is_sparse_zeros_of_its_size(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "made/on/the/way", 0, SIZE)
    assert file.read(0, SIZE) == bytes(SIZE)
    status = file.path.stat()
    assert (status.st_size, status.st_blocks, file.reserved) == (SIZE, 0, 0)
    file.close()


def test_reserved_blocks_exist_and_only_grow(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(8192)
    assert file.path.stat().st_blocks * 512 >= 8192
    file.reserve(4096)
    assert file.reserved == 8192
    file.reserve(10 * SIZE)
    assert (file.reserved, file.path.stat().st_size) == (SIZE, SIZE)
    file.close()


def test_a_full_disk_is_an_error_of_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(4096)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        file.reserve(8192)
    assert file.reserved == 4096
    file.reserve(4096)
    monkeypatch.undo()
    file.reserve(8192)
    assert file.reserved == 8192
    file.close()


def test_bytes_are_seen_by_whoever_opens_the_file(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(SIZE)
    file.write(0, b"head")
    file.write(SIZE - 4, b"tail")
    assert file.path.read_bytes() == b"head".ljust(SIZE - 4, b"\0") + b"tail"
    other = MappedFile.open(file.path)
    assert (other.read(0, 4), other.read(SIZE - 4, SIZE + 100)) == (b"head", b"tail")
    assert (other.size, other.base, other.reserved) == (SIZE, 0, 0)
    file.close()
    other.close()


def test_large_writes_and_the_mapping_see_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(SIZE)
    file.write(0, b"before")
    real = os.pwrite
    # The kernel may write less than it was given.
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:1000], at))
    content = bytes(range(256)) * 100
    file.write_large(3, memoryview(content))
    assert file.read(0, 3 + len(content)) == b"bef" + content
    file.write(3, b"after")
    assert file.path.read_bytes()[: 3 + 5] == b"befafter"
    file.close()


def test_nothing_is_written_behind_the_end(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(SIZE)
    before = file.read(0, SIZE)
    with pytest.raises((IndexError, ValueError, AssertionError)):
        file.write(SIZE - 3, b"tail")
    assert file.read(0, SIZE) == before
    file.close()


def test_a_lent_mapping_counts_as_a_use(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(SIZE)
    file.write(10, b"bytes")
    file.used = False
    mapping = file.lend()
    assert mapping is not None
    assert mapping[10:15] == b"bytes"
    assert file.used
    file.close()
    assert file.lend() is None


def test_read_many_gives_each_record_of_the_entries(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, SIZE, SIZE)
    file.reserve(SIZE)
    file.write(10, b"firstsecond")
    assert file.read_many((SIZE + 15, SIZE + 10), (6, 5)) == [b"second", b"first"]
    assert file.read_many((), ()) == []
    file.close()


@pytest.mark.parametrize("start", [0, 1, 4095, 4096, 10_000, SIZE - 1])
def test_a_view_is_what_lies_there(tmp_path: Path, start: int) -> None:
    content = bytes(number % 251 for number in range(SIZE))
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(SIZE)
    file.write(0, content)
    for end in (start, start + 1, start + 5000, SIZE, SIZE + 1):
        view = file.view(start, end)
        assert view.readonly
        assert bytes(view) == content[start:end]
    file.delete()
    # The last one asked for lives on.
    assert bytes(view) == content[start:]
    with pytest.raises(FileNotFoundError):
        file.view(0, 1)


def test_a_buffer_is_filled_as_far_as_the_file_goes(tmp_path: Path) -> None:
    content = bytes(number % 251 for number in range(SIZE))
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(SIZE)
    file.write(0, content)
    buffer = bytearray(100)
    assert file.read_into(7, memoryview(buffer)) == 100
    assert buffer == content[7:107]
    assert file.read_into(SIZE - 30, memoryview(buffer)) == 30
    assert buffer[:30] == content[-30:]
    assert file.read_into(SIZE, memoryview(buffer)) == 0
    file.delete()
    with pytest.raises(FileNotFoundError):
        file.read_into(0, memoryview(buffer))


@pytest.mark.parametrize("holes", [True, False])
def test_emptying_leaves_zeros_and_gives_the_blocks_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool
) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(SIZE)
    file.write(0, b"x" * SIZE)
    if not holes:
        monkeypatch.setattr(mapped_file, "_punch_hole", lambda *_: False)
    # A kill in the middle leaves the size that a start expects.
    for name in ("truncate", "ftruncate"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("the size was changed"))
    file.empty_from(5000)
    assert file.read(0, SIZE) == b"x" * 5000 + bytes(SIZE - 5000)
    assert file.path.stat().st_size == SIZE
    assert file.reserved == 5000, "a write behind it would meet a hole"
    file.reserve(SIZE)
    file.write(5000, b"y")
    assert file.path.read_bytes()[4999:5002] == b"xy\0"
    file.empty_from(SIZE)
    file.empty_from(0)
    assert not any(file.read(0, SIZE))
    file.close()


@pytest.mark.parametrize(
    ("start", "end"), [(0, SIZE), (1, 2), (5000, 9 * SIZE), (SIZE, SIZE), (9, 3)]
)
def test_advice_changes_no_byte(tmp_path: Path, start: int, end: int) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.reserve(SIZE)
    data = os.urandom(SIZE)
    file.write(0, data)
    file.populate(start, end)
    file.release(end)
    assert file.read(0, SIZE) == data
    file.close()
    assert file.path.read_bytes() == data


def test_no_descriptor_is_kept_beside_the_mapping(tmp_path: Path) -> None:
    files = [MappedFile.create(tmp_path, number * SIZE, SIZE) for number in range(20)]
    for file in files:
        file.reserve(SIZE)
        file.sync()
    assert 0 < open_below(tmp_path) <= len(files)
    for file in files:
        file.delete()
    assert open_below(tmp_path) == 0


def test_a_closed_file_is_not_read(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)


def test_deleting_twice_or_a_file_that_is_gone(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.path.unlink()
    file.delete()
    file.delete()
    assert list(tmp_path.iterdir()) == []


def test_sync_of_a_removed_file_says_so(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)
    file.delete()
    with pytest.raises(FileNotFoundError):
        file.sync()


# Read-only files


def test_a_read_only_file_is_read_and_never_changed(tmp_path: Path) -> None:
    path = tmp_path / f"{SIZE:020d}"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    path.chmod(0o444)
    file = MappedFile.open(path, read_only=True)
    assert file.read(1, 4) == b"\x01\x02\x03"
    file.release(SIZE)
    file.sync()
    file.populate(0, SIZE)
    assert file.read(1, 4) == b"\x01\x02\x03"
    assert file._map is not None
    with pytest.raises(TypeError, match=r"read.*only"):
        file._map[0:1] = b"x"
    changes: list[Callable[[], object]] = [
        lambda: file.reserve(10),
        lambda: file.empty_from(10),
        file.delete,
    ]
    for change in changes:
        with pytest.raises(StoreError, match=f"{path.name} must be changed"):
            change()
    file.empty_from(SIZE)  # nothing to empty
    file.close()
    assert path.read_bytes() == bytes(range(256)) * (SIZE // 256)


# Locking in memory


def locked_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmLck:")]
    return int(line.split()[1]) * 1024


def test_pages_are_locked_in_memory_until_they_are_unlocked(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path, 0, 4 * 4096)
    file.reserve(4 * 4096)
    before = locked_bytes()
    try:
        file.lock(0, 2 * 4096)
    except OSError as refused:
        pytest.skip(f"memory cannot be locked here: {refused}")
    assert locked_bytes() - before == 2 * 4096
    file.lock(2 * 4096, 4 * 4096)
    assert locked_bytes() - before == 4 * 4096
    file.write(5000, b"works")
    file.unlock()
    assert locked_bytes() == before
    assert file.read(5000, 5005) == b"works"
    file.close()


def test_a_refused_lock_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = MappedFile.create(tmp_path, 0, SIZE)

    def refuse(address: int, length: int) -> int:
        ctypes.set_errno(errno.ENOMEM)
        return -1

    monkeypatch.setattr(mapped_file._libc, "mlock", refuse)
    with pytest.raises(OSError, match="Cannot allocate memory") as error:
        file.lock(0, SIZE)
    assert error.value.filename == str(file.path)
    file.close()


def test_a_new_file_never_shows_in_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ refuses a store with such a file, and a kill may come at any moment."""
    truncate = os.ftruncate

    def look_and_truncate(descriptor: int, size: int) -> None:
        assert list(tmp_path.iterdir()) == []
        truncate(descriptor, size)

    with monkeypatch.context() as patched:
        patched.setattr("os.ftruncate", look_and_truncate)
        file = MappedFile.create(tmp_path, 0, SIZE)
    assert file.path.stat().st_size == SIZE
    file.reserve(SIZE)
    file.write(0, b"in its file")
    file.close()
    assert file.path.read_bytes().startswith(b"in its file")


@pytest.mark.parametrize("missing", ["nameless files", "the process table"])
def test_a_system_that_cannot_do_so_makes_files_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "nameless files":
        monkeypatch.setattr("os.O_TMPFILE", os.O_DIRECTORY)
    else:
        monkeypatch.setattr("os.link", lambda *_, **__: os.stat(tmp_path / "no such file"))
    file = MappedFile.create(tmp_path, 0, SIZE)
    assert file.path.stat().st_size == SIZE
    file.close()


def test_what_an_interrupted_creation_left_is_used(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").touch()
    file = MappedFile.create(tmp_path, 0, SIZE)
    assert file.path.stat().st_size == SIZE
    file.close()
