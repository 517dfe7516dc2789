"""Files that do not fit are reported, the others are read."""

from __future__ import annotations

from pathlib import Path

from pyromq.store.offline.check_files import SegmentFiles, usual_size


def write(directory: Path, base: int, data: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / f"{base:020d}"
    path.write_bytes(data)
    return path


def load(files: SegmentFiles) -> list[str]:
    return [f"{violation.file.name}: {violation.message}" for violation in files.load()]


def test_valid_files(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, number * 10 + 20, b"%d" % number * 10)
    for size in (10, 0):
        files = SegmentFiles(tmp_path, size)
        assert load(files) == []
        assert files.bases == [20, 30, 40]
        assert (files.first_offset, files.end_offset) == (20, 50)
        assert files.read(25, 100) == b"0" * 5
        assert files.read(39, 2) == b"1"
        assert files.read(50, 5) == files.read(0, 5) == b""
        assert files.place(47) == (tmp_path / f"{40:020d}", 7)


def test_each_file_that_does_not_fit(tmp_path: Path) -> None:
    write(tmp_path, 0, bytes(10))
    write(tmp_path, 10, bytes(9))
    write(tmp_path, 15, bytes(10))
    write(tmp_path, 30, bytes(10))
    write(tmp_path, 40, b"")
    (tmp_path / "other").write_text("")
    (tmp_path / f"{50:020d}").mkdir()
    files = SegmentFiles(tmp_path, 10)
    assert load(files) == [
        f"{50:020d}: is not a segment: expected a name of twenty digits",
        "other: is not a segment: expected a name of twenty digits",
        f"{10:020d}: has 9 bytes, expected 10",
        f"{15:020d}: has a name that is not a multiple of 10",
        f"{30:020d}: does not follow {0:020d}",
    ]
    assert files.bases == [0, 30]


def test_an_empty_file_in_the_middle_is_reported(tmp_path: Path) -> None:
    write(tmp_path, 0, b"")
    write(tmp_path, 10, bytes(10))
    assert load(SegmentFiles(tmp_path, 10)) == [f"{0:020d}: has 0 bytes, expected 10"]


def test_files_in_several_directories(tmp_path: Path) -> None:
    write(tmp_path / "a", 0, b"0" * 10)
    second = write(tmp_path / "b", 10, b"1" * 10)
    write(tmp_path / "a", 20, b"2" * 10)
    files = SegmentFiles(tmp_path / "a", 10, more=[tmp_path / "b", tmp_path / "none"])
    assert load(files) == []
    assert files.bases == [0, 10, 20]
    assert files.read(12, 3) == b"111"
    assert files.path(15) == second


def test_the_same_segment_in_two_directories(tmp_path: Path) -> None:
    first = write(tmp_path / "a", 0, b"0" * 10)
    write(tmp_path / "b", 0, b"1" * 10)
    write(tmp_path / "a", 10, b"2" * 10)
    files = SegmentFiles(tmp_path / "a", 10, read_only=[tmp_path / "b"])
    assert load(files) == [f"{first.name}: has the same offset as {first}"]
    assert (files.bases, files.path(0)) == ([0, 10], first)


def test_expired_segments_after_read_only_files_are_not_a_gap(tmp_path: Path) -> None:
    """A start ignores the read-only files as well."""
    for base in (0, 10):
        write(tmp_path / "old", base, bytes(10))
    write(tmp_path / "new", 40, bytes(10))
    write(tmp_path / "new", 60, bytes(10))
    files = SegmentFiles(tmp_path / "new", 10, read_only=[tmp_path / "old"])
    assert load(files) == [f"{60:020d}: does not follow {40:020d}"]
    assert files.bases == [40, 60]
    files = SegmentFiles(tmp_path / "new", 10, more=[tmp_path / "old"])
    assert len(load(files)) == 2


def test_no_files(tmp_path: Path) -> None:
    files = SegmentFiles(tmp_path / "none", 0)
    assert load(files) == []
    assert (files.first_offset, files.end_offset, files.read(0, 1)) == (0, 0, b"")


def test_usual_size(tmp_path: Path) -> None:
    paths = [write(tmp_path, base, bytes(size)) for base, size in ((0, 7), (10, 5), (20, 7))]
    assert usual_size(paths) == 7
    assert usual_size([]) == 0


def test_a_short_file_is_added_by_hand(tmp_path: Path) -> None:
    (tmp_path / "tail").write_bytes(b"abc")
    files = SegmentFiles(tmp_path, 100)
    files.add(200, tmp_path / "tail")
    assert (files.bases, files.read(201, 10)) == ([200], b"bc")
