"""Descriptors in reserve: what an open does when the process has none left."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pyromq.base import descriptors
from pyromq.base.descriptors import (
    SPARES,
    ShortageError,
    close_file,
    descriptors_needed,
    map_file,
    mapped_files_allowed,
    open_file,
    opened,
)


@pytest.fixture
def spares() -> Iterator[None]:
    descriptors.hold_spares()
    yield
    descriptors.release_spares()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Take every descriptor that the process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def spare_count() -> int:
    return len(descriptors._reserve._spares)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(b"content".ljust(8192))
    return file


def test_spares_are_held_while_anybody_needs_them() -> None:
    before = spare_count()
    descriptors.hold_spares()
    descriptors.hold_spares()
    assert spare_count() == SPARES
    descriptors.release_spares()
    assert spare_count() == SPARES
    descriptors.release_spares()
    assert spare_count() == before


@pytest.mark.usefixtures("spares")
def test_a_file_is_opened_with_a_spare_that_comes_back(path: Path) -> None:
    with no_descriptor_left():
        for _ in range(3 * SPARES):
            with opened(path, os.O_RDONLY) as descriptor:
                assert os.pread(descriptor, 7, 0) == b"content"
                assert not os.get_inheritable(descriptor)
                assert spare_count() == SPARES - 1
            assert spare_count() == SPARES
            with pytest.raises(OSError, match="Too many open files"):
                os.dup(0)  # nobody else could have taken it


@pytest.mark.usefixtures("spares")
def test_without_spares_it_is_a_shortage_that_passes(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with no_descriptor_left(), caplog.at_level(logging.ERROR):
        taken = [open_file(path, os.O_RDONLY) for _ in range(SPARES)]
        for _ in range(5):
            with pytest.raises(ShortageError) as refused:
                open_file(path, os.O_RDONLY)
            assert (refused.value.errno, refused.value.filename) == (errno.EMFILE, str(path))
        for descriptor in taken:
            close_file(descriptor)
        close_file(open_file(path, os.O_RDONLY))
    assert {record.__dict__["lines"] for record in caplog.records} == {1}, "one line per period"
    assert caplog.text.count("short of descriptors") == 5
    assert descriptors.top_up()
    assert spare_count() == SPARES


@pytest.mark.usefixtures("spares")
def test_a_mapping_takes_a_spare_for_good(path: Path) -> None:
    with no_descriptor_left():
        with opened(path, os.O_RDONLY) as descriptor:
            mapping = map_file(descriptor, 8192, mmap.ACCESS_READ)
        assert (mapping[:7], spare_count()) == (b"content", SPARES - 1)
        assert not descriptors.top_up()
        mapping.close()
        assert descriptors.top_up()


def test_other_errors_are_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "missing", os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path, os.O_RDWR)


def test_no_memory_is_a_shortage_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with opened(path, os.O_RDONLY) as descriptor, monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", full)
        with pytest.raises(ShortageError, match="allocate memory"):
            map_file(descriptor, 8192, mmap.ACCESS_READ)


@pytest.mark.parametrize(
    ("limit", "mapped", "needed"),
    [(256, 64, 144), (1024, 256, 336), (20_000, 5000, 5080), (1 << 20, 16_384, 16_464)],
)
def test_the_limit_of_the_process_is_shared_out(
    monkeypatch: pytest.MonkeyPatch, limit: int, mapped: int, needed: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert mapped_files_allowed() == mapped
    assert descriptors_needed() == needed
    assert mapped_files_allowed(7) == 7
    assert descriptors_needed(7) == 87


def test_no_limit_is_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinite, infinite))
    assert mapped_files_allowed() == 16_384
