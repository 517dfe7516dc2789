"""Every rule of a raft node's files, broken one at a time."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pyromq.raft.format import HEADER_SIZE, INDEX_UNIT_SIZE, Entry, Vote
from pyromq.raft.log import RaftLog
from pyromq.raft.offline.check import Finding, Kind, NodeCheck, Remedy
from pyromq.raft.offline.files import find_node
from pyromq.raft.vote_file import VoteFile
from tests.support.raft_logs import DATA_FILE, INDEX_FILE, open_log
from tests.support.records import make_record

BODY = len(make_record(body=b"b" * 200))
ENTRY = HEADER_SIZE + BODY
PER_FILE = (DATA_FILE - 8) // ENTRY
COUNT = 5 * PER_FILE + 3


def append(log: RaftLog, count: int, term: int) -> None:
    for _ in range(count):
        (position,) = log.positions([BODY])
        record = make_record(body=b"b" * 200, physical_offset=position + HEADER_SIZE)
        log.append_bodies(term, [record])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six files of entries in two terms."""
    directory = tmp_path / "dledger-n0"
    log = open_log(directory)
    append(log, COUNT - 10, 1)
    append(log, 10, 3)
    log.commit(COUNT - 2)
    log.stop()
    VoteFile(directory).save(Vote(3, "n0"))
    return tmp_path


def run(root: Path) -> tuple[NodeCheck, list[Finding]]:
    check = NodeCheck(find_node(root), index_file_size=INDEX_FILE)
    return check, list(check.findings())


def findings(root: Path) -> list[Finding]:
    return run(root)[1]


def kinds(root: Path) -> list[tuple[Kind, Remedy]]:
    return [(each.kind, each.remedy) for each in findings(root)]


def data_file(root: Path, number: int) -> Path:
    return sorted((root / "dledger-n0" / "data").iterdir())[number]


def index_file(root: Path, index: int) -> tuple[Path, int]:
    number, at = divmod(index * INDEX_UNIT_SIZE, INDEX_FILE)
    return sorted((root / "dledger-n0" / "index").iterdir())[number], at


def write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_sound_log(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    check = NodeCheck(
        find_node(root),
        index_file_size=INDEX_FILE,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert list(check.findings()) == []
    assert (check.begin_index, check.end_index, check.end_term) == (0, COUNT - 1, 3)
    assert (check.begin_position, check.committed_index) == (0, COUNT - 2)
    assert check.end_position == 5 * DATA_FILE + 3 * ENTRY
    assert check.entries == COUNT
    assert check.vote == Vote(3, "n0")
    assert not check.may_move
    assert seen[-1][1] == 6 * DATA_FILE


def test_a_node_without_entries(tmp_path: Path) -> None:
    log = open_log(tmp_path / "dledger-n0")
    log.stop()
    check, found = run(tmp_path)
    assert found == []
    assert (check.begin_index, check.end_index, check.end_term) == (-1, -1, -1)
    assert (check.begin_position, check.end_position, check.vote) == (0, 0, None)


@pytest.mark.parametrize("position", [1000, DATA_FILE - 100])
def test_a_log_that_begins_in_the_middle_of_a_file(tmp_path: Path, position: int) -> None:
    log = open_log(tmp_path / "dledger-n0")
    log.rebuild(40, position)
    append(log, 20, 2)
    log.stop()
    VoteFile(tmp_path / "dledger-n0").save(Vote(2, None))
    check, found = run(tmp_path)
    assert found == []
    assert (check.begin_index, check.end_index) == (40, 59)
    assert check.entries == 20


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0, struct.pack(">i", 7), "not the header of an entry"),
        (4, struct.pack(">i", ENTRY - 1), "not the header of an entry"),
        (4, struct.pack(">i", DATA_FILE), "not the header of an entry"),
        (8, struct.pack(">q", 99_999), "entry 99999 after entry"),
        (16, struct.pack(">q", 0), "of term 0 after term 1"),
        (24, struct.pack(">q", 5), "the header of an entry of position 5"),
        (44, struct.pack(">i", 3), "not the header of an entry"),
        (0, bytes(48), "zeros"),
    ],
)
def test_a_wrong_header_is_found_and_the_rest_is_checked(
    root: Path, field: int, value: bytes, message: str
) -> None:
    write(data_file(root, 1), 2 * ENTRY + field, value)
    # Behind it, a record is damaged as well.
    write(data_file(root, 4), ENTRY + HEADER_SIZE + 120, b"?")
    found = findings(root)
    assert found[0].kind is Kind.ENTRY
    assert message in found[0].message
    assert (found[0].file, found[0].position) == (data_file(root, 1), 2 * ENTRY)
    assert found[-1].kind is Kind.RECORD
    assert {each.remedy for each in found} == {Remedy.FILL_AGAIN}
    assert all(each.is_damage for each in found)
    assert str(found[0]).startswith(f"{data_file(root, 1)} at {2 * ENTRY}: entry: ")


def test_the_last_entry_of_a_file_is_damaged(root: Path) -> None:
    at = (PER_FILE - 1) * ENTRY
    write(data_file(root, 2), at, bytes(DATA_FILE - at))
    found = findings(root)
    assert [each.kind for each in found] == [Kind.ENTRY, Kind.ENTRY]
    assert found[0].message == "zeros"
    assert "1 entries before entry" in found[1].message


def test_a_missing_blank(root: Path) -> None:
    write(data_file(root, 0), PER_FILE * ENTRY, bytes(8))
    assert kinds(root) == [(Kind.ENTRY, Remedy.FILL_AGAIN), (Kind.BLANK, Remedy.FILL_AGAIN)]


def test_a_blank_of_another_size(root: Path) -> None:
    write(data_file(root, 0), PER_FILE * ENTRY + 4, struct.pack(">i", 1))
    (found,) = findings(root)
    assert (found.kind, found.remedy, found.is_damage) == (Kind.BLANK, Remedy.NONE, False)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (4, b"\0\0\0\0", "its body is not a record"),
        (0, struct.pack(">i", 100), "its body is not a record"),
        (28, struct.pack(">q", 1), "its record states offset 1, expected"),
        (120, b"?", "the CRC of its message is"),
    ],
)
def test_a_wrong_record(root: Path, offset: int, value: bytes, message: str) -> None:
    write(data_file(root, 3), 2 * ENTRY + HEADER_SIZE + offset, value)
    (found,) = findings(root)
    assert (found.kind, found.remedy) == (Kind.RECORD, Remedy.FILL_AGAIN)
    assert found.message.startswith(f"entry {3 * PER_FILE + 2}: {message}")
    assert found.position == 2 * ENTRY + HEADER_SIZE


def test_a_wrong_index_unit(root: Path) -> None:
    last, early = COUNT - 2, 1
    for index in (early, last):
        path, at = index_file(root, index)
        write(path, at + 4, struct.pack(">q", 77))
    first, second = findings(root)
    # A start compares the last three files, and rebuilds the index from there on.
    assert (first.kind, first.remedy) == (Kind.INDEX, Remedy.REMOVE_INDEX)
    assert first.message.startswith("entry 1 is at ")
    assert (second.kind, second.remedy) == (Kind.INDEX, Remedy.NEXT_START)
    log = open_log(root / "dledger-n0")
    log.stop()
    assert [each.remedy for each in findings(root)] == [Remedy.REMOVE_INDEX]
    for path in (root / "dledger-n0" / "index").iterdir():
        path.unlink()
    log = open_log(root / "dledger-n0")
    log.stop()
    assert findings(root) == []


def test_an_index_that_is_missing(root: Path) -> None:
    for path in (root / "dledger-n0" / "index").iterdir():
        path.unlink()
    found = findings(root)
    assert found[0].message == "units from entry 0 on are missing"
    assert found[0].remedy is Remedy.REMOVE_INDEX


def test_units_after_the_last_entry(root: Path) -> None:
    path, at = index_file(root, COUNT + 1)
    write(path, at, struct.pack(">iqiqq", 1, 0, 100, COUNT + 1, 3))
    assert kinds(root) == [(Kind.INDEX, Remedy.NEXT_START)]
    (root / "abort").touch()
    assert kinds(root) == []


def test_bytes_after_the_last_entry(root: Path) -> None:
    write(data_file(root, 5), 3 * ENTRY + 50, b"garbage")
    (found,) = findings(root)
    assert (found.kind, found.remedy, found.is_damage) == (
        Kind.LOG_END,
        Remedy.NEXT_START,
        False,
    )


def test_stale_entries_that_java_leaves_after_a_truncation_are_no_damage(root: Path) -> None:
    log = open_log(root / "dledger-n0")
    position = log.place(COUNT - 1).position
    old = log.entry(COUNT - 1)
    log.commit(COUNT - 2)
    log.truncate(COUNT - 1)
    log.append([Entry(COUNT - 1, 4, position, make_record(physical_offset=position + 48))])
    log.stop()
    VoteFile(root / "dledger-n0").save(Vote(4, None))
    # An entry of an older term remains behind the new one.
    stale = struct.pack(
        ">iiqqqiiii", 1, old.size, COUNT, 3, position + ENTRY, 0, 0, 0, old.size - HEADER_SIZE
    )
    write(data_file(root, 5), 3 * ENTRY, stale + bytes(old.body))
    assert kinds(root) == [(Kind.LOG_END, Remedy.NEXT_START)]


def test_lost_entries_that_were_committed(root: Path) -> None:
    write(data_file(root, 5), 0, bytes(DATA_FILE))
    found = findings(root)
    assert found[-1].kind is Kind.CHECKPOINT
    assert "but the log ends at" in found[-1].message
    assert found[-1].is_damage


def test_files_that_do_not_fit(root: Path) -> None:
    (root / "dledger-n0" / "data" / "notes.txt").touch()
    (root / "dledger-n0" / "index" / f"{INDEX_FILE * 50:020d}").write_bytes(b"short")
    assert kinds(root) == [
        (Kind.FILE, Remedy.REMOVE_INDEX),
        (Kind.FILE, Remedy.RESTORE),
    ]


def test_a_missing_data_file(root: Path) -> None:
    data_file(root, 2).unlink()
    found = findings(root)
    assert found[0].kind is Kind.FILE
    assert [each.kind for each in found[1:]] == [Kind.ENTRY]
    assert f"{PER_FILE} entries before entry {3 * PER_FILE} are missing" in found[1].message


def test_text_files(root: Path) -> None:
    directory = root / "dledger-n0"
    (directory / "checkpoint").write_text("endIndex=what")
    (directory / "currterm").write_text("currTerm=-4")
    (directory / "truncation").write_text("nextIndex=9\nnextPosition=7\nrebuild=false\n")
    found = findings(root)
    assert [(each.kind, each.remedy) for each in found] == [
        (Kind.CHECKPOINT, Remedy.NEXT_START),
        (Kind.TERM, Remedy.FILL_AGAIN),
        (Kind.TRUNCATION, Remedy.NEXT_START),
    ]
    assert found[2].message == "was interrupted before entry 9"
    (directory / "truncation").write_text("nonsense")
    assert (Kind.TRUNCATION, Remedy.FILL_AGAIN) in kinds(root)


def test_terms(root: Path) -> None:
    votes = VoteFile(root / "dledger-n0")
    votes.save(Vote(2, None))
    (found,) = findings(root)
    assert found.message == "has term 2, but the log has entries of term 3"
    (root / "dledger-n0" / "currterm").unlink()
    (found,) = findings(root)
    assert (found.kind, found.is_damage) == (Kind.TERM, True)
    assert found.message == "is missing, but the log has entries of term 3"


def test_a_node_that_must_catch_up(root: Path) -> None:
    path = root / "dledger-n0" / "checkpoint"
    path.write_text(path.read_text() + "mustCatchUp=true\n")
    (found,) = findings(root)
    assert (found.kind, found.remedy) == (Kind.CHECKPOINT, Remedy.NONE)


def test_the_tail_of_a_killed_node(root: Path) -> None:
    (root / "abort").touch()
    last = 2 * ENTRY + HEADER_SIZE + 120
    path = root / "dledger-n0" / "checkpoint"
    path.write_text(f"endIndex={COUNT - 1}\ncommittedIndex={COUNT - 2}\nsyncedIndex={COUNT - 2}\n")
    write(data_file(root, 5), last, b"?")
    check, found = run(root)
    assert check.may_move
    assert [(each.kind, each.remedy) for each in found] == [(Kind.RECORD, Remedy.NEXT_START)]


def test_many_findings_are_cut(root: Path) -> None:
    for number in range(6):
        for entry in range(PER_FILE if number < 5 else 3):
            write(data_file(root, number), entry * ENTRY + HEADER_SIZE + 120, b"?")
    found = findings(root)
    assert len(found) == 21
    assert found[-1].message.startswith("more findings of this kind, not listed: ")
