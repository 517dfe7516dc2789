"""Batches that are encoded in slices are, byte by byte, what others are; limits of batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.message_store import MessageStore
from pyromq.store.results import LargeBatchError, PutError, PutStatus
from tests.support.stores import (
    BORN_HOST,
    BORN_HOST_V6,
    BORN_TIME,
    TOPIC,
    audit,
    bodies,
    open_store,
    put,
)

SHARED = b"CLUSTER\x01c"
LARGE = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 1000 * CONSUME_QUEUE_ENTRY_SIZE,
}


def messages(count: int, properties: bytes = b"TAGS\x01a\x02n\x01#") -> bytes:
    return b"".join(
        encode_inner_message(
            b"x" * (number % 7), properties.replace(b"#", b"%d" % number), number - 7
        )
        for number in range(count)
    )


def put_sliced(
    store: MessageStore, batch: bytes, properties: bytes, born_host: bytes, size: int
) -> list[int]:
    queue = store.queue(TOPIC, 3)
    encoder = store.encode_batch(queue, batch, properties, born_host)
    while encoder.encode(size):
        put(store, b"between", queue_id=3)
    return store.put_encoded(queue, encoder, 2, BORN_TIME, born_host, 2)


@pytest.mark.parametrize("shared", [b"", SHARED, b"TAGS\x01all"])
@pytest.mark.parametrize("born_host", [BORN_HOST, BORN_HOST_V6], ids=["IPv4", "IPv6"])
def test_slices_make_the_same_bytes(
    tmp_path: Path, shared: bytes, born_host: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With others' messages between, the batch stands behind them as one piece."""
    monkeypatch.setattr("pyromq.store.chunk.now_ms", lambda: 10**12)
    batch = messages(300)
    found = []
    for name, size in (("sliced", 32), ("whole", 1000)):
        store = open_store(tmp_path / name, **LARGE)
        if name == "sliced":
            offsets = put_sliced(store, batch, shared, born_host, size)
        else:
            for _ in range(9):
                put(store, b"between", queue_id=3)
            queue = store.queue(TOPIC, 3)
            offsets = store.put_batch(queue, batch, shared, 2, BORN_TIME, born_host, 2)
        put(store, b"after", queue_id=3)
        audit(store)
        store.stop()
        (log,) = (tmp_path / name / "commitlog").iterdir()
        (entries,) = (tmp_path / name / "consumequeue" / TOPIC / "3").iterdir()
        found.append((offsets, log.read_bytes(), entries.read_bytes()))
    assert found[0] == found[1]
    assert len(found[0][0]) == 300


def test_a_batch_that_is_torn_in_a_later_slice_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LARGE)
    with pytest.raises(PutError, match="malformed"):
        put_sliced(store, messages(300)[:-1], SHARED, BORN_HOST, 32)
    assert set(bodies(store, queue_id=3)) == {b"between"}
    store.stop()


def test_a_sliced_batch_goes_to_the_next_segment_as_a_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    batch = messages(300)
    put(store, b"x" * 30_000, queue_id=3)
    offsets = put_sliced(store, batch, SHARED, BORN_HOST, 1000)
    assert offsets[0] == 64 * 1024
    assert len(bodies(store, queue_id=3)) == 301
    audit(store)
    store.stop()


def test_a_stopped_store_takes_no_sliced_batch(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LARGE)
    encoder = store.encode_batch(store.queue(TOPIC, 3), messages(10), b"", BORN_HOST)
    encoder.encode(100)
    store.stop()
    with pytest.raises(PutError) as refused:
        store.put_encoded(store.queue(TOPIC, 3), encoder, 0, BORN_TIME, BORN_HOST, 0)
    assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("even", [True, False])
def test_a_batch_of_too_many_messages_is_refused(tmp_path: Path, even: bool) -> None:
    store = open_store(tmp_path, **LARGE, max_batch_messages=200)
    queue = store.queue(TOPIC, 0)
    one = encode_inner_message(b"x", b"a\x01b")
    for count in (200, 201):
        batch = one * count if even else messages(count)
        for max_count in (0, 100, 5000):
            try:
                store.put_batch(queue, batch, b"", 0, 0, BORN_HOST, 0, max_count)
                refusal = None
            except PutError as error:
                refusal = error
            if max_count == 100 or (count > 200 and max_count):
                assert isinstance(refusal, LargeBatchError)
            elif count > 200:
                assert refusal is not None
                assert refusal.status is PutStatus.MESSAGE_ILLEGAL
                assert refusal.reason.endswith("more than 200 messages (maxBatchMessages)")
            else:
                assert refusal is None
    with pytest.raises(PutError, match="maxBatchMessages"):
        store.encode_batch(queue, messages(201), b"", BORN_HOST)
    assert queue.next_offset == 400
    store.stop()


@pytest.mark.parametrize("count", [1, 50, 300])
def test_properties_of_a_batch_cannot_fill_the_log(tmp_path: Path, count: int) -> None:
    """Each message gets them: kilobytes on the wire would become megabytes in the log."""
    store = open_store(tmp_path, **LARGE, max_batch_records_size=200_000)
    queue = store.queue(TOPIC, 0)
    properties = b"p\x01" + b"x" * 3000
    batch = encode_inner_message(b"", b"") * count
    if count * 3000 < 200_000:
        assert len(store.put_batch(queue, batch, properties, 0, 0, BORN_HOST, 0)) == count
    else:
        for put_it in (
            lambda: store.put_batch(queue, batch, properties, 0, 0, BORN_HOST, 0),
            lambda: store.encode_batch(queue, batch, properties, BORN_HOST),
        ):
            with pytest.raises(PutError) as refused:
                put_it()
            assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
            assert refused.value.reason.endswith("limit 200000 (maxBatchRecordsSize)")
        assert queue.next_offset == 0
    store.stop()
