"""Which files are mapped: those used last, no more than the limit, none under a reader."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pyromq.store.log.mapped_file import MappedFile, make_file
from pyromq.store.log.open_files import OpenFiles
from tests.support.descriptors import open_below
from tests.support.stores import TOPIC, bodies, open_store, put, reopened

SIZE = 8192


def files_of(directory: Path, files: OpenFiles, count: int) -> list[MappedFile]:
    made = []
    for number in range(count):
        path = make_file(directory, number * SIZE, SIZE)
        file = MappedFile(path, SIZE, reserved=0, files=files)
        file.reserve(SIZE)
        made.append(file)
    return made


def is_mapped(file: MappedFile) -> bool:
    return file._map is not None


def test_a_file_is_mapped_at_its_first_use(tmp_path: Path) -> None:
    files = OpenFiles(4)
    file = files_of(tmp_path, files, 1)[0]
    assert (len(files), open_below(tmp_path)) == (0, 0)
    file.write(10, b"bytes")
    assert (file.read(10, 15), len(files), open_below(tmp_path)) == (b"bytes", 1, 1)
    file.close()
    assert (len(files), open_below(tmp_path)) == (0, 0)
    with pytest.raises(ValueError, match="is closed"):
        file.read(0, 1)


def test_what_is_written_outlives_its_mapping(tmp_path: Path) -> None:
    files = OpenFiles(3)
    made = files_of(tmp_path, files, 20)
    for turn in range(3):
        for number, file in enumerate(made):
            file.write(turn, bytes([number]))
            assert len(files) <= 3
    assert open_below(tmp_path) == 3
    for number, file in enumerate(made):
        assert file.read(0, 3) == bytes([number]) * 3


def test_a_file_that_is_used_stays(tmp_path: Path) -> None:
    files = OpenFiles(4)
    often, *others = files_of(tmp_path, files, 20)
    often.write(0, b"x")
    mapping = often._map
    for file in others:
        often.read(0, 1)
        file.write(0, b"y")
        assert often._map is mapping
    often.used = False
    for file in others[:8]:
        file.read(0, 1)
    assert not is_mapped(often)


class _Holder:
    def __init__(self) -> None:
        self.busy = True

    def let_go(self) -> bool:
        return not self.busy


def test_a_file_that_its_holder_needs_is_not_unmapped(tmp_path: Path) -> None:
    files = OpenFiles(2)
    holder = _Holder()
    held = [
        MappedFile(make_file(tmp_path, at, SIZE), SIZE, reserved=0, files=files, holder=holder)
        for at in range(0, 5 * SIZE, SIZE)
    ]
    for file in held:
        file.read(0, 1)
    assert len(files) == 5, "rather above the limit than without a mapping"
    holder.busy = False
    other = MappedFile(make_file(tmp_path / "other", 0, SIZE), SIZE, reserved=0, files=files)
    other.read(0, 1)
    assert len(files) == 2


def test_another_thread_has_a_mapping_of_its_own(tmp_path: Path) -> None:
    files = OpenFiles(4)
    file = files_of(tmp_path, files, 1)[0]
    file.write(0, b"here")
    assert files._mapped.popitem()[0].unmap()
    found: list[object] = []

    def read() -> None:
        found.append(file.read(0, 4))
        found.append(is_mapped(file))
        file.leave()
        file.unlink()
        with pytest.raises(FileNotFoundError):
            file.read(0, 4)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == [b"here", False]


def test_a_file_can_be_kept_and_handed_back(tmp_path: Path) -> None:
    files = OpenFiles(1)
    kept, other = files_of(tmp_path, files, 2)
    kept.keep_mapped()
    other.read(0, 1)
    assert (is_mapped(kept), is_mapped(other), len(files)) == (True, True, 1)
    kept.hand_to(files)
    other.close()
    files_of(tmp_path / "more", files, 1)[0].read(0, 1)
    assert (is_mapped(kept), kept.read(0, 1)) == (False, b"\0")


@pytest.mark.parametrize(
    "settings", [{"enable_consume_queue_ext": True}, {"transient_store_pool_enable": True}]
)
def test_a_store_with_few_mappings_serves_many_queues(
    tmp_path: Path, settings: dict[str, bool]
) -> None:
    """More queues in one chunk than can be mapped, segments that roll, and a start."""
    count, turns = 100, 20
    few = {"max_mapped_files": 8, "mapped_file_size_commit_log": 16 * 1024, **settings}
    store = open_store(tmp_path / "store", **few)
    for turn in range(turns):
        for number in range(count):
            put(store, b"%d" % turn, queue_id=number, tags=f"t{number}")
        store.seal()
    wanted = [b"%d" % turn for turn in range(turns)]
    for _ in range(2):
        for number in range(count):
            assert bodies(store, TOPIC, number) == wanted
            assert store.queue(TOPIC, number).entry(turns - 1) is not None
        assert len(store._open_files) <= 8
        store = reopened(store, **few)
    store.stop()
    assert open_below(tmp_path) == 0
