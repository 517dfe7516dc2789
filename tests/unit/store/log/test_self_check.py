from __future__ import annotations

from pathlib import Path

from pyromq.store.log.segments import Segments
from pyromq.store.log.self_check import faults
from tests.support.stores import open_store, put

SIZE = 4096


def stream(directory: Path, count: int) -> Segments:
    segments = Segments(directory, SIZE)
    for _ in range(count):
        segments.create_next()
    return segments


def test_sound_files(tmp_path: Path) -> None:
    assert faults([stream(tmp_path / "a", 3), stream(tmp_path / "b", 0)]) == []


def test_a_file_that_does_not_follow_the_one_before(tmp_path: Path) -> None:
    segments = stream(tmp_path, 3)
    del segments.files[1]
    (fault,) = faults([segments])
    assert "00000000000000008192 does not follow 00000000000000000000 of 4096 bytes" in fault
    assert "pyromq store check" in fault


def test_a_file_that_another_process_removed_or_cut(tmp_path: Path) -> None:
    segments = stream(tmp_path, 3)
    segments.files[0].path.unlink()
    with segments.files[2].path.open("r+b") as file:
        file.truncate(100)
    removed, cut = faults([segments])
    assert "00000000000000000000 was removed by another process" in removed
    assert "00000000000000008192 has 100 bytes instead of 4096" in cut


def test_a_file_that_expires_meanwhile_is_no_fault(tmp_path: Path) -> None:
    segments = stream(tmp_path, 2)
    first = segments.files[0]

    class Expiring(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield from list.__iter__(self)
            segments.files = segments.files[1:]

    first.path.unlink()
    segments.files = Expiring(segments.files)
    assert faults([segments]) == []


def test_a_store_with_log_and_queues(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", mapped_file_size_commit_log=4096)
    for _ in range(40):
        put(store, b"x" * 300)
    store.seal()
    assert len(store._log.segments.files) > 2
    assert store.self_check()() == []
    victim = store._log.segments.files[1].path
    victim.rename(tmp_path / "elsewhere")
    (fault,) = store.self_check()()
    assert str(victim) in fault
    (tmp_path / "elsewhere").rename(victim)
    store.stop()
