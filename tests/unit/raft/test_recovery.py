from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyromq.raft import recovery
from pyromq.raft.format import HEADER, Entry, Truncation, encode_truncation
from pyromq.raft.log import RaftLog
from pyromq.store.results import StoreError
from tests.support.raft_logs import DATA_FILE, INDEX_FILE, body_of, entries_of, open_log

COUNT = 30
#: Entries of 548 bytes, seven per file; files begin with 0, 7, 14, 21 and 28.
PER_FILE = 7


@pytest.fixture
def stored(tmp_path: Path) -> list[Entry]:
    """The entries of a log of five files, which was stopped."""
    log = open_log(tmp_path)
    log.append_bodies(1, [body_of(index, 1, 500) for index in range(COUNT)])
    entries = entries_of(log)
    log.commit(5)
    log.stop()
    return entries


def change(directory: Path, position: int, data: bytes) -> None:
    path = directory / "data" / f"{position - position % DATA_FILE:020d}"
    content = bytearray(path.read_bytes())
    at = position % DATA_FILE
    content[at : at + len(data)] = data
    path.write_bytes(content)


def header(entry: Entry, **changes: int) -> bytes:
    values = {"magic": 1, "size": 548, "index": entry.index, "term": 1, "pos": entry.position}
    values |= {"body": 500} | changes
    magic, size, index, term, position, body = values.values()
    return HEADER.pack(magic, size, index, term, position, 0, 0, 0, body)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"magic": 2}, "not an entry"),
        ({"size": 549}, "not an entry"),
        ({"size": 48, "body": 0}, "not an entry"),
        ({"size": 5000, "body": 4952}, "an entry of 5000 bytes, more than the file holds"),
        ({"index": 7}, "entry 7 after entry 23"),
        ({"term": 0}, "term 0 after term 1"),
        ({"pos": 5}, "an entry of position 5"),
        ({"magic": 0, "size": 0}, None),
    ],
)
def test_the_log_ends_before_a_bad_entry(
    changes: dict[str, int],
    reason: str | None,
    stored: list[Entry],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(tmp_path, stored[24].position, header(stored[24], **changes))
    log = open_log(tmp_path)
    assert entries_of(log) == stored[:24]
    lines = [record.getMessage() for record in caplog.records]
    assert f"after entry 23: {reason or 'the log ends there'}; entries up to 29" in lines[0]
    assert log.must_catch_up, "they were on disk, and may be acknowledged"
    log.append_bodies(1, [b"x"])
    log.stop()


def test_a_later_term_after_a_damaged_index_is_kept(stored: list[Entry], tmp_path: Path) -> None:
    change(tmp_path, stored[29].position, header(stored[29], term=5))
    log = open_log(tmp_path)
    assert log.term(29) == log.end_term == 5
    log.stop()


@pytest.mark.parametrize("damage", ["removed", "zeroed", "one", "noise"])
def test_the_index_is_written_anew(damage: str, stored: list[Entry], tmp_path: Path) -> None:
    index = tmp_path / "index"
    expected = {path.name: path.read_bytes() for path in index.iterdir()}
    if damage == "removed":
        shutil.rmtree(index)
    for path in index.iterdir() if damage != "removed" else ():
        content = bytearray(path.read_bytes())
        if damage == "zeroed":
            content = bytearray(INDEX_FILE)
        elif damage == "one" and path.name.endswith("512"):
            content[5 * 32 + 15] ^= 1
        elif damage == "noise":
            content = bytearray(body_of(3, 3, INDEX_FILE))
        path.write_bytes(content)
    log = open_log(tmp_path)
    assert entries_of(log) == stored
    log.stop()
    assert {path.name: path.read_bytes() for path in index.iterdir()} == expected


def test_stale_units_behind_the_end_are_removed(stored: list[Entry], tmp_path: Path) -> None:
    change(tmp_path, stored[20].position, bytes(8))
    change(tmp_path, stored[21].position, bytes(8))
    change(tmp_path, stored[28].position, bytes(8))
    log = open_log(tmp_path)
    assert log.end_index == 19
    with pytest.raises(IndexError):
        log.place(20)
    log.append_bodies(2, [b"x"])
    assert log.entry(20).term == 2
    log.stop()


def test_a_blank_without_an_entry_after_it_goes(stored: list[Entry], tmp_path: Path) -> None:
    change(tmp_path, stored[28].position, bytes(DATA_FILE))
    log = open_log(tmp_path)
    assert log.written == stored[27].position + 548
    log.append_bodies(1, [b"fits"])
    assert log.place(28).position == stored[27].position + 548
    log.stop()


@pytest.mark.parametrize("first", [14, 7, 0])
def test_a_start_goes_back_to_a_file_that_agrees(
    first: int, stored: list[Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files whose first entry is not in the index are checked, too."""
    starts = []
    compare = recovery._Walk.compare

    def noting(walk: recovery._Walk, limit: int | None) -> None:
        starts.append(walk.end)
        compare(walk, limit)

    monkeypatch.setattr(recovery._Walk, "compare", noting)
    units = {path: bytearray(path.read_bytes()) for path in (tmp_path / "index").iterdir()}
    for index in range(first + 1, COUNT):
        path = tmp_path / "index" / f"{index // 16 * INDEX_FILE:020d}"
        units[path][index % 16 * 32 : index % 16 * 32 + 32] = bytes(32)
    for path, content in units.items():
        path.write_bytes(content)
    log = open_log(tmp_path)
    assert entries_of(log) == stored
    assert starts == [stored[first].position]
    log.stop()


def test_damage_that_costs_more_than_a_file_stops_the_start(
    stored: list[Entry], tmp_path: Path
) -> None:
    change(tmp_path, stored[15].position, b"damage!!")
    with pytest.raises(StoreError, match="more than a file after it"):
        open_log(tmp_path)
    log = open_log(tmp_path, accept_loss=True)
    assert entries_of(log) == stored[:15]
    log.stop()


def test_a_damaged_first_file_stops_the_start(stored: list[Entry], tmp_path: Path) -> None:
    change(tmp_path, 0, b"damage!!")
    with pytest.raises(StoreError, match="does not begin with an entry"):
        open_log(tmp_path)


def test_a_log_that_is_damaged_from_its_first_entry_on_is_emptied(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_bodies(1, [b"x" * 100] * 3)
    log.commit(2)
    log.stop()
    change(tmp_path, 0, b"damage!!")
    again = open_log(tmp_path)
    assert (again.end_index, again.written) == (-1, 0)
    assert again.must_catch_up
    assert not any(again.files.files[0].path.read_bytes())
    again.append_bodies(1, [b"y"])
    again.stop()


def test_lost_committed_entries_are_reported(
    stored: list[Entry], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path)
    log.commit(29)
    log.stop()
    change(tmp_path, stored[25].position, b"damage!!")
    again = open_log(tmp_path)
    assert again.must_catch_up
    assert (again.end_index, again.committed_index) == (24, 24)
    assert "entries up to 29 were committed" in caplog.text
    again.stop()


def test_unsynced_entries_are_no_loss(stored: list[Entry], tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"endIndex=29\ncommittedIndex=5\nsyncedIndex=24\n")
    change(tmp_path, stored[25].position, b"damage!!")
    log = open_log(tmp_path)
    assert (log.end_index, log.must_catch_up) == (24, False)
    log.stop()


def test_a_loss_is_remembered_until_the_log_has_caught_up(
    stored: list[Entry], tmp_path: Path
) -> None:
    change(tmp_path, stored[25].position, b"damage!!")
    open_log(tmp_path)  # and killed before anything is saved again
    log = open_log(tmp_path)
    log.append(stored[25:])
    log.stop()
    again = open_log(tmp_path)
    assert (again.end_index, again.must_catch_up) == (29, True)
    again.truncate(28)
    again.stop()
    (tmp_path / "truncation").write_bytes(
        encode_truncation(Truncation(27, stored[27].position, False))
    )
    again = open_log(tmp_path)
    assert (again.end_index, again.must_catch_up) == (26, True)
    again.caught_up()
    again.stop()
    log = open_log(tmp_path)
    assert not log.must_catch_up
    log.stop()


def test_bodies_after_the_synced_index_are_checked(stored: list[Entry], tmp_path: Path) -> None:
    asked: list[bytes] = []

    def check(body: memoryview) -> bool:
        asked.append(bytes(body))
        return bytes(body[:1]) != b"!"

    def start() -> RaftLog:
        asked.clear()
        return open_log(tmp_path, check_body=check)

    start().stop()
    assert asked == [], "all was on disk"
    (tmp_path / "checkpoint").write_bytes(b"endIndex=29\ncommittedIndex=5\nsyncedIndex=26\n")
    start().stop()
    assert asked == [entry.body for entry in stored[27:]]
    # Java tells nothing about what is on disk: all of the last three files.
    (tmp_path / "checkpoint").write_bytes(b"endIndex=29\ncommittedIndex=5\n")
    change(tmp_path, stored[28].position + 48, b"!")
    log = start()
    assert asked[:-1] == [entry.body for entry in stored[14:28]]
    assert log.end_index == 27
    log.stop()


def test_many_entries_are_compared_in_batches(
    stored: list[Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_BATCH", 3)
    log = open_log(tmp_path)
    assert entries_of(log) == stored
    log.stop()
    shutil.rmtree(tmp_path / "index")
    log = open_log(tmp_path)
    assert entries_of(log) == stored
    log.stop()
