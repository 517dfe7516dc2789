"""Pulls in the kernel: a store that is not what it should be. `test_plain_pulls` has the rest."""

from __future__ import annotations

import mmap
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pyromq.broker.handlers.pull_serving import found_pieces
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from pyromq.protocol.wire import pull_fields
from pyromq.protocol.wire.frame import Encoding, decode_frame
from tests import kernel_builds
from tests.support.requests import pull_request

RECORDS = (b"first", b"second", b"third")
SEGMENT = 8192


@pytest.fixture(
    scope="module", params=[kernel_builds.FAST, kernel_builds.CHECKED], ids=lambda build: build.name
)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return kernel_builds.load(request.param, "pulls")


class Store:
    """A queue of three records at the beginning of a log."""

    def __init__(self, module: ModuleType) -> None:
        entries, at = b"", 0
        for record in RECORDS:
            entries += CONSUME_QUEUE_ENTRY.pack(at, len(record), 0)
            at += len(record)
        self.queue_file = File(entries)
        self.log_file = File(b"".join(RECORDS))
        self.log = SimpleNamespace(files=[self.log_file], segment_size=SEGMENT)
        self.queue = SimpleNamespace(
            min_offset=0,
            next_offset=3,
            extension=None,
            segments=SimpleNamespace(files=[self.queue_file], segment_size=SEGMENT // 20 * 20),
        )
        self.queues: dict[tuple[str, int], Any] = {("T", 0): self.queue}
        self.watermarks = SimpleNamespace(written=at)
        self.commits: list[tuple[Any, ...]] = []
        self.pulls = module.Pulls(
            tuple(found_pieces(Encoding.JSON)),
            tuple(found_pieces(Encoding.ROCKETMQ)),
            self.queues,
            self.log,
            self.watermarks,
            SimpleNamespace(touched=[]),
            lambda *_: True,
            lambda *call: self.commits.append(call),
            (1 << 18, 1 << 40, 1 << 26, 100_000, 1 << 23),
        )
        fields = pull_request().ext_fields
        key = pull_fields.NAMES[: pull_fields.KEY_COUNT]
        values = tuple(fields[name].encode() if name in fields else None for name in key)
        self.pulls.add(values, "plan", ("T", 0), 32, 32, True, 0, None)

    def pull(self, **values: Any) -> list[bytes]:
        frame = pull_request(**values).encode()
        responses: list[bytes] = []
        end = self.pulls.run(frame, 0, "connection", responses, 1 << 20)
        assert end == (len(frame) if responses else 0)
        return responses


class File:
    """A mapped file at the beginning of its stream."""

    base = 0

    def __init__(self, content: bytes) -> None:
        self.mapping: Any = mmap.mmap(-1, SEGMENT)
        self.mapping[: len(content)] = content

    def lend(self) -> Any:
        return self.mapping


@pytest.fixture
def store(module: ModuleType) -> Store:
    return Store(module)


def test_a_sound_store(store: Store) -> None:
    (response,) = store.pull(commitOffset="2")
    assert decode_frame(response).body == b"".join(RECORDS)
    assert store.commits == [("connection", "plan", 2)]
    assert store.pulls.take_counts() == [("plan", 3, 16, 1, 3)]
    assert store.pulls.take_counts() == []


def test_mappings_that_are_missing_or_short(store: Store, module: ModuleType) -> None:
    for file in (store.queue_file, store.log_file):
        whole = file.mapping
        for mapping in (None, b"", whole[:10], bytearray(whole[:10])):
            file.mapping = mapping
            assert store.pull() == []
        file.mapping = object()
        with pytest.raises(TypeError):
            store.pull()
        file.mapping = whole
    assert store.commits == []
    assert len(store.pull()) == 1
    # Nothing is held after a call.
    store.queue_file.mapping.close()
    store.log_file.mapping.close()
    with pytest.raises(ValueError, match="closed"):
        store.pull()
    assert module.fault_count() == 0


def test_files_that_are_missing(store: Store) -> None:
    for segments in (store.queue.segments, store.log):
        files, segments.files = segments.files, []
        assert store.pull() == []
        segments.files = files
    store.log_file.base = 1
    assert store.pull() == []
    store.log_file.base = 0
    store.queue.next_offset = 1 << 60
    assert store.pull() == []  # the fourth entry is empty
    assert store.pull(queueOffset=str(1 << 59)) == []
    del store.queues["T", 0]
    assert store.pull() == []


def test_records_above_the_written_mark(store: Store) -> None:
    store.watermarks.written -= 1
    assert store.pull() == []
    store.watermarks.written = -1
    assert store.pull() == []


def test_responses_stop_when_they_fill_the_room(store: Store) -> None:
    frame = pull_request().encode()
    responses: list[bytes] = []
    assert store.pulls.run(frame * 3, 0, None, responses, 0) == 0
    assert store.pulls.run(frame * 3, 0, None, responses, 1) == len(frame)
    assert store.pulls.run(frame * 3, len(frame), None, responses, 1 << 20) == 3 * len(frame)
    assert store.pulls.run(frame[:-1], 0, None, responses, 1 << 20) == 0
    assert len(responses) == 3


def test_a_plan_with_too_many_messages_is_for_the_python_code(store: Store) -> None:
    store.pulls.clear()
    assert store.pull() == []
    store.pulls.add((b"",) * 10, "plan", ("T", 0), 1 << 20, 1 << 20, False, 0, None)
    assert store.pull() == []
