from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.raft.format import HEADER_SIZE, Vote
from pyromq.raft.offline.dump import RaftFile, RaftFileKind
from pyromq.raft.vote_file import VoteFile
from pyromq.store.offline.dump import DumpError, Item, describe
from tests.support.raft_logs import DATA_FILE, open_log
from tests.support.records import make_record


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "dledger-n0"
    log = open_log(directory)
    for body in (b"one", b"two"):
        (position,) = log.positions([len(make_record(body=body))])
        log.append_bodies(2, [make_record(body=body, physical_offset=position + HEADER_SIZE)])
    log.append_bodies(2, [b"not a record"])
    log.commit(1)
    log.stop()
    VoteFile(directory).save(Vote(2, "n1"))
    return directory


def opened(path: Path, kind: RaftFileKind | None = None) -> RaftFile:
    file = RaftFile.open(path, kind)
    assert file is not None
    return file


def items(path: Path, offset: int | None = None, kind: RaftFileKind | None = None) -> list[Item]:
    with opened(path, kind) as file:
        return list(file.items(offset))


def data(directory: Path) -> Path:
    return directory / "data" / f"{0:020d}"


def test_entries_and_their_messages(directory: Path) -> None:
    entry, message, second, _, third, invalid, end = items(data(directory))
    size = entry["size"]
    assert entry == {
        "type": "entry",
        "index": 0,
        "term": 2,
        "pos": 0,
        "size": size,
        "posMatches": True,
    }
    assert (message["type"], message["body"]) == ("message", "one")
    assert (message["physicalOffset"], message["physicalOffsetMatches"]) == (HEADER_SIZE, True)
    assert (second["index"], second["pos"]) == (1, size)
    assert (third["index"], invalid["type"]) == (2, "invalid record")
    assert (end["type"], end["reason"]) == ("end", "nothing was written from here on")
    assert describe(entry) == f"entry: index=0 term=2 pos=0 size={size} posMatches=True"
    assert items(data(directory), size)[0]["index"] == 1


def test_a_position_outside_of_the_file(directory: Path) -> None:
    with pytest.raises(DumpError, match=f"holds positions 0 to {DATA_FILE}, not 9999"):
        items(data(directory), 9999)


def test_ends_of_entries(tmp_path: Path) -> None:
    log = open_log(tmp_path / "dledger-n0")
    log.rebuild(5, 100)
    log.append_bodies(1, [b"x" * 3000, b"y" * 3000])
    log.stop()
    first, second = sorted((tmp_path / "dledger-n0" / "data").iterdir())
    found = items(first)
    assert [item.get("index") for item in found] == [5, None, None]
    assert found[-1]["reason"] == f"blank of {DATA_FILE - 100 - 3048} bytes to the end of the file"
    assert items(second)[0]["index"] == 6
    with second.open("r+b") as file:
        file.write(b"\1\2\3\4")
    with opened(second) as opening:
        assert [item["reason"] for item in opening.items()] == ["not the header of an entry"]


def test_the_index(directory: Path) -> None:
    path = directory / "index" / f"{0:020d}"
    found = items(path)
    assert [item.get("index") for item in found] == [0, 1, 2, None]
    assert found[0] == {"type": "unit", "index": 0, "term": 2, "pos": 0, "size": found[0]["size"]}
    assert [item.get("index") for item in items(path, 2)] == [2, None]
    with pytest.raises(DumpError, match="holds entries 0 to 16, not 17"):
        items(path, 17)


def test_text_files(directory: Path) -> None:
    assert items(directory / "currterm") == [
        {"type": "currterm", "currTerm": "2", "voteLeader": "n1"}
    ]
    (checkpoint,) = items(directory / "checkpoint")
    assert (checkpoint["type"], checkpoint["committedIndex"]) == ("checkpoint", "1")
    (directory / "currterm").write_bytes(b"\\uXYZW=1")
    with pytest.raises(DumpError, match="is not a text file of a node"):
        items(directory / "currterm")


def test_files_are_recognised(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"{0:020d}"
    copy.write_bytes(data(directory).read_bytes())
    with opened(copy) as file:
        assert file.kind is RaftFileKind.RAFT_DATA
    with opened(copy, RaftFileKind.RAFT_INDEX) as file:
        assert file.kind is RaftFileKind.RAFT_INDEX
    empty = tmp_path / "empty"
    empty.touch()
    assert RaftFile.open(empty) is None
    assert RaftFile.open(tmp_path) is None
    with pytest.raises(DumpError, match="cannot be read"):
        RaftFile.open(tmp_path / "missing")
