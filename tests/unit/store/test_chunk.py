"""The chunk: batches, limits, seals, the end of a segment."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

from pyromq.protocol.message.record import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    encode_inner_message,
)
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus, PutError, PutStatus
from tests.support.stores import (
    BORN_HOST,
    BORN_TIME,
    QUEUE_ENTRIES,
    SEGMENT,
    STORE_HOST,
    TOPIC,
    audit,
    bodies,
    body_for,
    killed_copy,
    open_store,
    put,
    put_batch,
    read_all,
    reopened,
    small_config,
)

# Batches and limits


def test_a_batch_is_its_messages_with_consecutive_offsets(store: MessageStore) -> None:
    put(store, b"before")
    offsets = put_batch(store, [b"a", b"bb", b""], tags="TagB", properties=b"CLUSTER\x01c")
    put(store, b"after")
    records = read_all(store)
    assert [record.body for record in records] == [b"before", b"a", b"bb", b"", b"after"]
    assert [record.physical_offset for record in records[1:4]] == offsets
    assert all(r.properties == {"TAGS": "TagB", "CLUSTER": "c"} for r in records[1:4])
    audit(store)


def test_an_empty_batch_is_refused(store: MessageStore) -> None:
    with pytest.raises(PutError) as refused:
        put_batch(store, [])
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    put(store)
    assert bodies(store) == [b"body"]


@pytest.mark.parametrize(
    "own",
    [
        b"TAGS\x01a\x02TAGS\x01b",
        b"TAGS\x01a\x02",
        b"xTAGS\x01a",
        b"xTAGS\x01a\x02TAGS\x01b",
        b"TAGS\x01b\x02xTAGS\x01a",
        b"TAGS\x01",
        b"TAGS\x01\x02A\x01b",
        b"KEYS\x01TAGS\x01a",
        "TAGS\x01Grüße\U0001f600".encode(),
        b"TAGS\x01\xff\xfe",
        b"\x02TAGS\x01a\x02\x02",
    ],
)
@pytest.mark.parametrize("shared", [b"", b"CLUSTER\x01c", b"A\x01b\x02TAGS\x01shared"])
def test_tags_of_a_batch_are_the_same_when_rebuilt_from_the_log(
    tmp_path: Path, own: bytes, shared: bytes
) -> None:
    store = open_store(tmp_path / "store")
    queue = store.queue(TOPIC, 0)
    store.put_batch(queue, encode_inner_message(b"b", own), shared, 0, 0, BORN_HOST, 0)
    store.seal()
    entry = queue.entry(0)
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    again = open_store(copy)
    assert again.queue(TOPIC, 0).entry(0) == entry
    again.stop()


def test_a_torn_batch_is_refused_whole(store: MessageStore) -> None:
    first = encode_inner_message(b"first", b"")
    batch = first + encode_inner_message(b"second", b"A\x01b")
    queue = store.queue(TOPIC, 0)
    for length in range(1, len(batch)):
        if length == len(first):
            continue
        with pytest.raises(PutError) as refused:
            store.put_batch(queue, batch[:length], b"", 0, 0, BORN_HOST, 0)
        assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
        assert (store.max_physical_offset, queue.next_offset) == (0, 0)
    put(store, b"good")
    assert bodies(store) == [b"good"]


@pytest.mark.parametrize("at", [0, 16])
@pytest.mark.parametrize("value", [-(1 << 31), -1, 0, 21, 22, 24, 26, 28, 1000, (1 << 31) - 1])
def test_wrong_lengths_in_a_batch_are_refused(store: MessageStore, at: int, value: int) -> None:
    batch = bytearray(encode_inner_message(b"first", b"") + encode_inner_message(b"second", b""))
    if struct.unpack_from(">i", batch, at)[0] == value:
        return
    struct.pack_into(">i", batch, at, value)
    with pytest.raises(PutError) as refused:
        store.put_batch(store.queue(TOPIC, 0), bytes(batch), b"", 0, 0, BORN_HOST, 0)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    assert (store.max_physical_offset, store.max_offset(TOPIC, 0)) == (0, 0)


@pytest.mark.parametrize("own_length", [32_767, 32_768, 65_535])
@pytest.mark.parametrize("shared", [b"", b"CLUSTER\x01DefaultCluster"])
def test_a_batch_with_too_long_properties_is_refused_or_survives_a_crash(
    tmp_path: Path, own_length: int, shared: bytes
) -> None:
    """A record that recovery would not take ends the log for all that was stored behind it."""
    store = open_store(tmp_path / "store", mapped_file_size_commit_log=1024 * 1024)
    queue = store.queue(TOPIC, 0)
    own = b"A\x01" + b"a" * (own_length - 2)
    batch = struct.pack(">iiiii", 26 + own_length, 0, 0, 0, 4) + b"long"
    batch += struct.pack(">H", own_length) + own
    fits = own_length + len(shared) + bool(shared) <= 32_767
    if fits:
        store.put_batch(queue, batch, shared, 0, 0, BORN_HOST, 0)
    else:
        with pytest.raises(PutError) as refused:
            store.put_batch(queue, batch, shared, 0, 0, BORN_HOST, 0)
        assert refused.value.status in (
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            PutStatus.MESSAGE_ILLEGAL,
        )
    put(store, b"behind")
    store.seal()
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    again = open_store(copy, mapped_file_size_commit_log=1024 * 1024)
    assert bodies(again) == ([b"long"] if fits else []) + [b"behind"]
    again.stop()


def test_properties_of_one_message_have_a_limit(store: MessageStore) -> None:
    queue = store.queue(TOPIC, 0)
    for length, fits in ((32_767, True), (32_768, False)):
        properties = b"A\x01" + b"a" * (length - 2)
        if fits:
            store.put(queue, b"", properties, 0, 0, 0, 0, BORN_HOST, 0)
            continue
        with pytest.raises(PutError) as refused:
            store.put(queue, b"", properties, 0, 0, 0, 0, BORN_HOST, 0)
        assert refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        assert str(length) in str(refused.value)
    assert len(audit(store)) == 1


@pytest.mark.parametrize("limit", [100, 40_000])
def test_a_body_above_max_message_size_is_refused(tmp_path: Path, limit: int) -> None:
    store = open_store(tmp_path, max_message_size=limit)
    put(store, b"x" * limit)
    with pytest.raises(PutError) as refused:
        put(store, b"x" * (limit + 1))
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    with pytest.raises(PutError):
        put_batch(store, [b"x" * (limit + 1)])
    assert [len(body) for body in bodies(store)] == [limit]
    store.stop()


@pytest.mark.parametrize("field", ["flag", "sys_flag", "born", "reconsume"])
@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_a_number_that_does_not_fit_gathers_nothing(
    store: MessageStore, field: str, value: int
) -> None:
    numbers = {"flag": 0, "sys_flag": 0, "born": 0, "reconsume": 0} | {field: value}
    queue = store.queue(TOPIC, 0)
    with pytest.raises(struct.error):
        store.put(queue, b"b", b"", 0, numbers["flag"], numbers["sys_flag"], numbers["born"],
                  BORN_HOST, numbers["reconsume"])  # fmt: skip
    put(store, b"good")
    assert bodies(store) == [b"good"]
    audit(store)


def test_one_seal_notifies_each_watched_queue_once(tmp_path: Path) -> None:
    notified: list[tuple[str, int]] = []
    store = MessageStore(
        small_config(tmp_path),
        STORE_HOST,
        lambda queue: notified.append((queue.topic, queue.queue_id)),
    )
    store.start()
    for queue_id in (0, 1):
        store.queue(TOPIC, queue_id).watched = True
    for queue_id in (0, 1, 2, 0, 1, 2):
        put(store, queue_id=queue_id)
    assert notified == []
    store.seal()
    assert notified == [(TOPIC, 0), (TOPIC, 1)]
    store.seal()
    assert len(notified) == 2
    store.stop()


def test_a_put_that_fails_after_a_roll_does_not_hide_earlier_messages(
    store: MessageStore,
) -> None:
    """A roll writes the gathered records; the seal must still write their entries."""
    put(store, body_for(store, SEGMENT - 200))
    store.seal()
    put(store, b"acknowledged")
    queue = store.queue(TOPIC, 0)
    with pytest.raises(struct.error):
        store.put(queue, b"x" * 500, b"", 0, 1 << 40, 0, 0, BORN_HOST, 0)
    store.seal()
    assert queue.entry(1) is not None
    assert bodies(store)[1:] == [b"acknowledged"]
    assert store.get(TOPIC, 0, 1, 1).status is GetStatus.FOUND


def test_a_full_disk_for_entries_after_a_roll_does_not_hide_earlier_messages(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, body_for(store, SEGMENT - 200))
    put(store, b"acknowledged")
    other = store.queue("Other", 0)

    def refuse(*_: object) -> None:
        raise PutError(PutStatus.CREATE_MAPEDFILE_FAILED, "full")

    monkeypatch.setattr(type(other), "extend", refuse)
    with pytest.raises(PutError):
        put(store, b"x" * 500, topic="Other")
    monkeypatch.undo()
    store.seal()
    assert bodies(store)[1:] == [b"acknowledged"]


@pytest.mark.parametrize("rest", [BLANK_SIZE, BLANK_SIZE + 1, 91, 200])
def test_the_blank_record_fills_the_segment(tmp_path: Path, rest: int) -> None:
    store = open_store(tmp_path / "store")
    put(store, body_for(store, SEGMENT - rest))
    assert store.max_physical_offset == SEGMENT - rest
    second = put(store, b"x" * 200)
    assert second == SEGMENT
    store.seal()
    first_file = (tmp_path / "store/commitlog" / f"{0:020d}").read_bytes()
    assert BLANK.unpack_from(first_file, SEGMENT - rest) == (rest, BLANK_MAGIC)
    copy = killed_copy(store, tmp_path / "copy")
    store.stop()
    for root in (store.config.root, copy):
        again = open_store(root)
        assert [record.physical_offset for record in audit(again)] == [0, SEGMENT]
        assert put(again, b"third") == again.queue(TOPIC, 0).fixed_size + 200 + SEGMENT
        again.stop()


@pytest.mark.parametrize("rest", range(BLANK_SIZE))
def test_a_record_never_takes_the_place_of_the_blank_one(tmp_path: Path, rest: int) -> None:
    store = open_store(tmp_path)
    put(store, b"first")
    used = store.max_physical_offset
    assert put(store, body_for(store, SEGMENT - used - rest)) == SEGMENT
    assert len(audit(store)) == 2
    store.stop()


def test_the_largest_record_of_a_segment_and_one_byte_more(store: MessageStore) -> None:
    largest = SEGMENT - BLANK_SIZE
    with pytest.raises(PutError) as refused:
        put(store, body_for(store, largest + 1))
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    assert put(store, body_for(store, largest)) == 0
    assert put(store, body_for(store, largest)) == SEGMENT
    assert put(store, b"") == 2 * SEGMENT
    assert len(audit(store)) == 3


def test_a_batch_does_not_cross_a_segment(store: MessageStore) -> None:
    put(store, body_for(store, SEGMENT - 1000))
    offsets = put_batch(store, [b"x" * 100] * 9)
    assert offsets[0] == SEGMENT, "the batch did not go to the next segment as a whole"
    assert len(audit(store)) == 10


def test_batches_fill_many_segments_of_log_and_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = []
    for number in range(60):
        chunk = [b"%d-%d" % (number, i) + b"." * (number * 17) for i in range(number % 29 + 1)]
        put_batch(store, chunk)
        sent += chunk
        if number % 3:
            store.seal()
    assert bodies(store) == sent
    assert len(audit(store)) == len(sent) > 4 * QUEUE_ENTRIES
    assert store.max_physical_offset > 5 * SEGMENT
    again = reopened(store)
    assert bodies(again) == sent
    again.stop()


def test_one_chunk_over_several_segments_of_log_and_queue(store: MessageStore) -> None:
    sent = [b"%02d" % number * 1000 for number in range(5 * QUEUE_ENTRIES)]
    for body in sent:
        put(store, body)
    store.seal()
    assert store.max_physical_offset > SEGMENT
    assert bodies(store) == sent
    audit(store)


def test_a_batch_larger_than_a_segment_is_refused(store: MessageStore) -> None:
    with pytest.raises(PutError) as refused:
        put_batch(store, [b"x" * 10_000] * 7)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_offset(TOPIC, 0) == 0


# State between put and seal


def test_records_are_written_by_the_seal_only(store: MessageStore) -> None:
    log = store._log
    first = put(store, b"one")
    second = put(store, b"two")
    assert (log.watermarks.written, store.max_physical_offset > second) == (0, True)
    store.seal()
    assert log.watermarks.written == store.max_physical_offset
    assert [record.physical_offset for record in read_all(store)] == [first, second]


def test_all_records_of_a_chunk_have_one_store_timestamp(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(BORN_TIME)
    monkeypatch.setattr("pyromq.store.chunk.now_ms", clock.__next__)
    put(store, body_for(store, SEGMENT - 200))
    assert store.chunk_time() == BORN_TIME
    put_batch(store, [b"in the next segment" * 20, b"b"])
    store.seal()
    put(store, b"in the next chunk")
    timestamps = [record.store_timestamp for record in read_all(store)]
    assert timestamps == [BORN_TIME] * 3 + [BORN_TIME + 1]


def test_a_put_may_set_the_store_timestamp_of_its_chunk(store: MessageStore) -> None:
    queue = store.queue(TOPIC, 0)
    store.put(queue, b"b", b"", 0, 0, 0, BORN_TIME, BORN_HOST, 0, store_timestamp=BORN_TIME + 5)
    assert store.chunk_time() == BORN_TIME + 5
    assert [record.store_timestamp for record in read_all(store)] == [BORN_TIME + 5]


def test_a_refusal_takes_effect_with_the_next_seal(store: MessageStore) -> None:
    put(store, b"before")
    store._fail("the disk broke")
    put(store, b"same chunk")
    store.seal()
    with pytest.raises(PutError, match="the disk broke; repair the disk and restart"):
        put(store, b"later")
    with pytest.raises(PutError, match="the disk broke"):
        put_batch(store, [b"later"])
    assert bodies(store) == [b"before", b"same chunk"]
    assert store.growth.refused_puts == 2


def test_a_stopped_store_refuses_puts(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store)
    encoder = store.encode_batch(
        store.queue(TOPIC, 0), encode_inner_message(b"b", b""), b"", BORN_HOST
    )
    assert not encoder.encode(1)
    store.stop()
    for refused in (
        lambda: put(store),
        lambda: put_batch(store, [b"b"]),
        lambda: store.put_encoded(store.queue(TOPIC, 0), encoder, 0, BORN_TIME, BORN_HOST, 0),
    ):
        with pytest.raises(PutError, match="the store is not running") as error:
            refused()
        assert error.value.status is PutStatus.SERVICE_NOT_AVAILABLE
