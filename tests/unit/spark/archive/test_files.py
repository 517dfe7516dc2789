from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyromq.spark.archive import files as archive_files
from pyromq.spark.archive.defaults import COMPRESSIONS
from pyromq.spark.archive.files import (
    FILE_COLUMNS,
    TOPIC_KEY,
    FileSettings,
    ParquetFiles,
    archive_ranges,
)
from pyromq.spark.arrow import RecordDecoder
from pyromq.spark.columns import MAP, RAW, arrow_schema
from pyromq.spark.origins.origin import LostRecords, OriginError, Queue, QueueRange, RecordBlock
from tests.unit.spark.fake_origin import FakeOrigin

A = Queue("Orders", "broker-a", 0)
B = Queue("Orders", "broker-b", 1)
#: EPOCH of the fake origin is 22:13:20; offsets are seconds.
FIRST_HOUR = 2800
HOUR_NAMES = ["2023-11-14-22", "2023-11-14-23", "2023-11-15-00"]


def write(
    staging: Path, origin: FakeOrigin, *ranges: QueueRange, settings: FileSettings | None = None
) -> ParquetFiles:
    files = ParquetFiles(staging, settings or FileSettings())
    archive_ranges(origin, ranges, files)
    files.close()
    return files


def expected(origin: FakeOrigin, wanted: QueueRange, include_properties: str = RAW) -> pa.Table:
    decoder = RecordDecoder(FILE_COLUMNS, include_properties, wanted.queue.broker_name)
    return pa.Table.from_batches(
        [
            decoder.decode(block).batch
            for block in origin.blocks(wanted)
            if isinstance(block, RecordBlock)
        ]
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("include_properties", [RAW, MAP])
def test_files_contain_the_messages(
    tmp_path: Path, compression: str, include_properties: str
) -> None:
    origin = FakeOrigin({A: (0, 1000)})
    wanted = QueueRange(A, 10, 700)
    settings = FileSettings(include_properties, compression)
    files = write(tmp_path, origin, wanted, settings=settings)
    (staged,) = files.staged
    assert (staged.topic, staged.hour, staged.rows) == ("Orders", HOUR_NAMES[0], 690)
    assert staged.bytes == Path(staged.path).stat().st_size
    assert Path(staged.path).suffix == ".staged"
    table = pq.read_table(staged.path)
    assert table.schema.equals(arrow_schema(FILE_COLUMNS, include_properties))
    assert table.equals(expected(origin, wanted, include_properties))
    assert pq.read_metadata(staged.path).metadata[TOPIC_KEY] == b"Orders"
    assert files.lost == []


@pytest.mark.parametrize("room", [0, 2000, 100_000])
def test_a_full_disk_is_named(tmp_path: Path, room: int) -> None:
    origin = FakeOrigin({A: (0, 1000)})
    origin.body = lambda offset: random.Random(offset).randbytes(300)
    limit, hardest = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hardest))
    try:
        # Like a full disk.
        with pytest.raises(OSError, match=f"File too large: free some space.*{tmp_path}"):
            write(tmp_path, origin, QueueRange(A, 0, 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hardest))
    # Another attempt has other files.
    (staged,) = write(tmp_path, origin, QueueRange(A, 0, 1000)).staged
    assert pq.read_table(staged.path).num_rows == 1000


def test_each_hour_has_its_file(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 8000), B: (0, 8000)})
    files = write(tmp_path, origin, QueueRange(A, 2000, 7000), QueueRange(B, 0, 3000))
    assert sorted((file.hour, file.rows) for file in files.staged) == [
        (HOUR_NAMES[0], FIRST_HOUR - 2000 + FIRST_HOUR),
        (HOUR_NAMES[1], 3600 + 200),
        (HOUR_NAMES[2], 7000 - FIRST_HOUR - 3600),
    ]
    for file in files.staged:
        table = pq.read_table(file.path)
        hours = {str(time.as_py())[:13].replace(" ", "-") for time in table["storeTimestamp"]}
        assert hours == {file.hour}
        for queue in (A, B):
            offsets = [
                row["queueOffset"]
                for row in table.select(["brokerName", "queueOffset"]).to_pylist()
                if row["brokerName"] == queue.broker_name
            ]
            assert offsets == sorted(offsets)


def test_topics_have_their_own_files(tmp_path: Path) -> None:
    other = Queue("Payments", "broker-a", 0)
    origin = FakeOrigin({A: (0, 10), other: (0, 20)})
    files = write(tmp_path, origin, QueueRange(A, 0, 10), QueueRange(other, 0, 20))
    assert sorted((file.topic, file.rows) for file in files.staged) == [
        ("Orders", 10),
        ("Payments", 20),
    ]


def test_large_files_are_split(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 2000)})
    origin.body = lambda offset: b"x" * 1000
    settings = FileSettings(file_bytes=200_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_files, "_MAX_ROW_GROUP_BYTES", 100_000)
        files = write(tmp_path, origin, QueueRange(A, 0, 2000), settings=settings)
    assert len(files.staged) > 5
    assert sum(file.rows for file in files.staged) == 2000
    merged = pa.concat_tables(pq.read_table(file.path) for file in files.staged)
    assert merged["queueOffset"].to_pylist() == list(range(2000))


@pytest.mark.parametrize(
    ("name", "limit"), [("_MAX_OPEN_FILES", 2), ("_MAX_BUFFERED_BYTES", 50_000)]
)
def test_many_hours_take_little_memory(tmp_path: Path, name: str, limit: int) -> None:
    origin = FakeOrigin({A: (0, 100_000)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_files, name, limit)
        patch.setattr(archive_files, "_MAX_OPEN_FILES", limit if name == "_MAX_OPEN_FILES" else 16)
        files = ParquetFiles(tmp_path, FileSettings())
        for start in range(0, 50_000, 3600):
            archive_ranges(origin, [QueueRange(A, start, start + 100)], files)
            assert len(files._open) <= archive_files._MAX_OPEN_FILES
            assert files._buffered <= archive_files._MAX_BUFFERED_BYTES
        files.close()
    assert sum(file.rows for file in files.staged) == 1400
    assert {pq.read_metadata(file.path).num_rows for file in files.staged} == {100}


def test_names_are_never_used_twice(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 10)})
    first = write(tmp_path, origin, QueueRange(A, 0, 10))
    again = write(tmp_path, origin, QueueRange(A, 0, 10))
    assert first.staged[0].path != again.staged[0].path


def test_missing_records_are_listed_as_lost(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (5, 250)})
    origin.damaged = {20, 21, 120}
    files = write(tmp_path, origin, QueueRange(A, 0, 260))
    assert [(lost.start, lost.end) for lost in files.lost] == [
        (0, 5),
        (20, 22),
        (120, 121),
        (250, 260),
    ]
    assert "expired" in files.lost[0].reason
    assert "is damaged" in files.lost[1].reason
    assert "did not return them" in files.lost[3].reason
    assert sum(file.rows for file in files.staged) == 260 - 5 - 3 - 10


def test_the_last_records_of_a_range_damaged(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 10)})
    origin.damaged = set(range(10))
    files = write(tmp_path, origin, QueueRange(A, 0, 10))
    assert files.staged == []
    assert [(lost.start, lost.end) for lost in files.lost] == [(0, 10)]


class WrongOrigin(FakeOrigin):
    """Returns offsets that were not requested."""

    def __init__(self, *answers: range | LostRecords) -> None:
        super().__init__({A: (0, 100)})
        self.answers = answers

    def blocks(self, wanted: QueueRange) -> Iterator[RecordBlock | LostRecords]:
        for answer in self.answers:
            yield answer if isinstance(answer, LostRecords) else self._block(A, answer)


@pytest.mark.parametrize(
    "answers",
    [
        [range(9, 20)],
        [range(10, 21)],
        [range(10, 15), range(14, 20)],
        [range(10, 15), range(10, 20)],
        [LostRecords(A, 10, 15, "x"), range(14, 20)],
        [LostRecords(A, 10, 21, "x")],
    ],
)
def test_offsets_that_were_not_requested_are_rejected(
    tmp_path: Path, answers: list[range | LostRecords]
) -> None:
    with pytest.raises(OriginError, match=r"instead of|requested"):
        write(tmp_path, WrongOrigin(*answers), QueueRange(A, 10, 20))


def test_incompressible_bodies_use_snappy(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 500)})
    codecs = {}
    for name, body in {
        "text": lambda offset: b"order %d was shipped" % offset * 10,
        "random": lambda offset: random.Random(offset).randbytes(256),
    }.items():
        origin.body = body
        (staged,) = write(tmp_path, origin, QueueRange(A, 0, 500)).staged
        group = pq.read_metadata(staged.path).row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
        codecs[name] = {column.path_in_schema: column.compression for column in columns}
    assert set(codecs["text"].values()) == {"ZSTD"}
    assert codecs["random"].pop("body") == "SNAPPY"
    assert set(codecs["random"].values()) == {"ZSTD"}


def test_files_can_be_merged(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 5000)})
    for include_properties in (RAW, MAP):
        settings = FileSettings(include_properties)
        files = ParquetFiles(tmp_path, settings)
        for start in (0, 100, 200):
            (staged,) = write(
                tmp_path, origin, QueueRange(A, start, start + 100), settings=settings
            ).staged
            files.add_table("Orders", staged.hour, pq.read_table(staged.path))
        files.close()
        (merged,) = files.staged
        assert merged.hour == HOUR_NAMES[0]
        assert pq.read_table(merged.path).equals(
            expected(origin, QueueRange(A, 0, 300), include_properties)
        )
