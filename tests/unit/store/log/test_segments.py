"""A row of files: what is found in a directory, and where an offset is."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyromq.store.log.segments import Segments
from pyromq.store.results import StoreError

SIZE = 4096


def make(directory: Path, *bases: int, size: int = SIZE) -> Segments:
    directory.mkdir(exist_ok=True)
    for base in bases:
        (directory / f"{base:020d}").write_bytes(bytes(size))
    return Segments(directory, SIZE)


def bases(segments: Segments) -> list[int]:
    return [file.base for file in segments.files]


def test_no_directory_is_no_files(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "missing", SIZE)
    segments.load()
    assert (segments.files, segments.first_offset, segments.end_offset) == ([], 0, 0)
    assert segments.find(0) is None
    assert not (tmp_path / "missing").exists()


def test_files_come_in_their_order(tmp_path: Path) -> None:
    segments = make(tmp_path, 3 * SIZE, SIZE, 2 * SIZE)
    segments.load()
    assert bases(segments) == [SIZE, 2 * SIZE, 3 * SIZE]
    assert (segments.first_offset, segments.end_offset) == (SIZE, 4 * SIZE)
    segments.close()


@pytest.mark.parametrize(
    ("offset", "base"),
    [
        (-1, None),
        (0, None),
        (SIZE - 1, None),
        (SIZE, SIZE),
        (2 * SIZE - 1, SIZE),
        (2 * SIZE, 2 * SIZE),
        (3 * SIZE - 1, 2 * SIZE),
        (3 * SIZE, None),
        (1 << 62, None),
        (-(1 << 62), None),
    ],
)
def test_where_an_offset_is(tmp_path: Path, offset: int, base: int | None) -> None:
    segments = make(tmp_path, SIZE, 2 * SIZE)
    segments.load()
    file = segments.find(offset)
    assert (file.base if file else None) == base
    segments.close()


@pytest.mark.parametrize("size", [1, SIZE - 1, SIZE + 1])
def test_a_wrong_size_is_refused_with_name_and_remedy(tmp_path: Path, size: int) -> None:
    make(tmp_path, 0)
    (tmp_path / f"{SIZE:020d}").write_bytes(bytes(size))
    with pytest.raises(StoreError, match=rf"{SIZE:020d} has {size} bytes.*segment size"):
        Segments(tmp_path, SIZE).load()


def test_an_empty_last_file_is_removed_an_empty_other_one_refused(tmp_path: Path) -> None:
    make(tmp_path, 0)
    last = tmp_path / f"{SIZE:020d}"
    last.touch()
    segments = Segments(tmp_path, SIZE)
    segments.load()
    assert bases(segments) == [0]
    assert not last.exists()
    segments.close()
    last.touch()
    make(tmp_path, 2 * SIZE)
    with pytest.raises(StoreError, match="has 0 bytes"):
        Segments(tmp_path, SIZE).load()


def test_a_gap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="restore the missing file"):
        make(tmp_path, 0, 2 * SIZE).load()


def test_a_base_that_is_no_multiple_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="multiple"):
        make(tmp_path, 100).load()


def test_foreign_names_are_left_alone_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segments = make(tmp_path, 0)
    names = ["notes", "0" * 19, "0" * 21, "\u0660" * 20, "-" + "0" * 19, "0" * 19 + "x"]
    for name in names:
        (tmp_path / name).write_bytes(b"keep")
    (tmp_path / f"{9 * SIZE:020d}").mkdir()
    with caplog.at_level(logging.WARNING):
        segments.load()
    assert bases(segments) == [0]
    assert all((tmp_path / name).read_bytes() == b"keep" for name in names)
    assert all(name in caplog.text for name in names)
    segments.close()


def test_the_next_file_follows_the_last(tmp_path: Path) -> None:
    segments = Segments(tmp_path, SIZE)
    assert segments.create_next(5 * SIZE).base == 5 * SIZE
    assert segments.create_next(0).base == 6 * SIZE
    assert bases(segments) == [5 * SIZE, 6 * SIZE]
    segments.close()
    assert segments.files == []


def test_files_behind_an_offset_go(tmp_path: Path) -> None:
    segments = make(tmp_path, 0, SIZE, 2 * SIZE)
    segments.load()
    segments.drop_after(2 * SIZE)
    assert len(segments.files) == 3, "a file that begins at the end is the next one to use"
    segments.drop_after(SIZE + 1)
    assert bases(segments) == [0, SIZE]
    segments.drop_after(-1)
    assert (bases(segments), list(tmp_path.iterdir())) == ([], [])


def test_delete_keeps_a_directory_with_something_else_in_it(tmp_path: Path) -> None:
    for name, foreign in (("a", False), ("b", True)):
        segments = make(tmp_path / name, 0, SIZE)
        segments.load()
        if foreign:
            (tmp_path / name / "other").touch()
        segments.delete()
        assert (tmp_path / name).exists() is foreign
        assert segments.files == []
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["other"]


# Several directories


def spread(root: Path, places: dict[str, list[int]], *, read_only: tuple[str, ...]) -> Segments:
    for name, numbers in places.items():
        make(root / name, *(number * SIZE for number in numbers))
    more = [root / name for name in places if name != "first" and name not in read_only]
    return Segments(root / "first", SIZE, more=more, read_only=[root / name for name in read_only])


def test_directories_are_one_stream(tmp_path: Path) -> None:
    segments = spread(
        tmp_path,
        {"first": [4, 2], "second": [5, 3], "old": [0, 1]},
        read_only=("old",),
    )
    segments.load()
    assert bases(segments) == [number * SIZE for number in range(6)]
    assert [file.path.parent.name for file in segments.files] == [
        "old",
        "old",
        "first",
        "second",
        "first",
        "second",
    ]
    assert [file.read_only for file in segments.files] == [True, True, *[False] * 4]
    segments.close()


def test_new_files_go_to_one_directory_after_the_other(tmp_path: Path) -> None:
    """RocketMQ's order: the directories by name, the number of the segment chooses."""
    segments = Segments(
        tmp_path / "b",
        SIZE,
        more=[tmp_path / "a", tmp_path / "c"],
        read_only=[tmp_path / "old"],
    )
    made = [segments.create_next().path.parent.name for _ in range(4)]
    assert made == ["a", "b", "c", "a"]
    segments.avoided = frozenset({tmp_path / "b", tmp_path / "a"})
    assert segments.create_next().path.parent.name == "c"
    segments.avoided = frozenset(segments.directories)
    assert segments.create_next().path.parent.name == "c", "all full: as if none were"
    segments.close()


def test_one_part_twice_is_refused(tmp_path: Path) -> None:
    segments = spread(tmp_path, {"first": [0, 1], "old": [0]}, read_only=("old",))
    with pytest.raises(StoreError, match=r"first/0+ and .*old/0+ have the same offset"):
        segments.load()


def test_read_only_files_that_nothing_follows_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segments = spread(tmp_path, {"first": [5, 6], "old": [0, 1]}, read_only=("old",))
    segments.load()
    assert bases(segments) == [5 * SIZE, 6 * SIZE]
    assert "ignoring the read-only files before it" in caplog.text
    assert len(list((tmp_path / "old").iterdir())) == 2
    segments.close()


def test_a_gap_behind_files_of_ours_is_refused(tmp_path: Path) -> None:
    segments = spread(tmp_path, {"first": [1, 3], "old": [0]}, read_only=("old",))
    with pytest.raises(StoreError, match="restore the missing file"):
        segments.load()
    segments.close()


def test_a_read_only_directory_is_never_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segments = spread(tmp_path, {"first": [0], "old": [1]}, read_only=("old", "missing"))
    (tmp_path / "old" / f"{2 * SIZE:020d}").touch()
    segments.load()
    assert bases(segments) == [0, SIZE]
    assert "missing: not a directory" in caplog.text
    with pytest.raises(StoreError, match="readOnlyCommitLogStorePaths"):
        segments.drop_after(SIZE - 1)
    assert len(list((tmp_path / "old").iterdir())) == 2


def test_the_first_file_leaves_and_can_still_be_read(tmp_path: Path) -> None:
    segments = make(tmp_path, 0, SIZE)
    segments.load()
    seen = segments.files
    first = segments.take_first()
    assert (bases(segments), segments.first_offset) == ([SIZE], SIZE)
    assert segments.find(0) is None
    assert len(seen) == 2, "who took the list goes on with it"
    first.unlink()
    assert first.read(0, 3) == bytes(3)
    first.unlink()  # gone already
    first.close()
    segments.close()
