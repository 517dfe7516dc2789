"""What every message store must do, through its public door only.

Another engine joins by adding its factory to ENGINES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.record import decode_record, encode_inner_message
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus, LargeBatchError, PutError, PutStatus
from tests.support.patience import wait_until
from tests.support.stores import (
    BORN_HOST,
    FOREVER,
    STORE_HOST,
    TOPIC,
    bodies,
    put,
    put_batch,
    read_all,
    small_config,
)

Engine = Callable[[Path], MessageStore]


def mapped_files(root: Path) -> MessageStore:
    """The store of this package, with files that roll often."""
    return MessageStore(small_config(root), STORE_HOST)


ENGINES: list[Engine] = [mapped_files]


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.__name__)
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.param
    return made


@pytest.fixture
def store(engine: Engine, tmp_path: Path) -> Iterator[MessageStore]:
    store = engine(tmp_path / "store")
    store.start()
    yield store
    store.stop()


def test_a_queue_that_nobody_wrote_to(store: MessageStore) -> None:
    result = store.get("Nowhere", 7, 0, 32)
    assert (result.status, result.count, result.pieces) == (
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        0,
        [],
    )
    assert (store.max_offset("Nowhere", 7), store.min_offset("Nowhere", 7)) == (0, None)
    assert store.offset_by_time("Nowhere", 7, 0) == 0
    assert store.query("Nowhere", "key", 32, 0, FOREVER) == []
    assert store.read_record(0) is None


def test_offsets_count_up_in_each_queue_of_its_own(store: MessageStore) -> None:
    for number in range(30):
        put(store, b"%d" % number, topic=f"T{number % 2}", queue_id=number % 3)
    store.seal()
    for name in {(f"T{number % 2}", number % 3) for number in range(30)}:
        records = read_all(store, *name)
        assert [record.queue_offset for record in records] == list(range(5))
        assert store.max_offset(*name) == 5
        assert store.min_offset(*name) == 0


def test_a_batch_is_all_or_nothing(store: MessageStore) -> None:
    put_batch(store, [b"a", b"b", b"c"], tags="T")
    whole = encode_inner_message(b"d", b"") + encode_inner_message(b"e", b"")
    with pytest.raises(PutError) as refused:
        store.put_batch(store.queue(TOPIC, 0), whole[:-1], b"", 0, 0, BORN_HOST, 0)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL
    put(store, b"f")
    assert bodies(store) == [b"a", b"b", b"c", b"f"]


def test_a_batch_in_slices_is_all_or_nothing(store: MessageStore) -> None:
    queue = store.queue(TOPIC, 0)
    batch = b"".join(encode_inner_message(b"%d" % number, b"TAGS\x01T") for number in range(20))
    encoder = store.encode_batch(queue, batch, b"CLUSTER\x01c", BORN_HOST)
    while encoder.encode(6):
        put(store, b"between")
    places = store.put_encoded(queue, encoder, 0, 0, BORN_HOST, 0)
    put(store, b"after")
    whole = [b"%d" % number for number in range(20)]
    assert bodies(store) == [b"between"] * 3 + whole + [b"after"]
    for offset, place in enumerate(places):
        record = store.read_record(place)
        assert record is not None
        assert decode_record(record).queue_offset == 3 + offset
    torn = store.encode_batch(queue, batch[:-1], b"", BORN_HOST)
    with pytest.raises(PutError):
        torn.encode(100)
    assert store.max_offset(TOPIC, 0) == 24


def test_a_large_batch_is_told_from_others(store: MessageStore) -> None:
    queue = store.queue(TOPIC, 0)
    batch = encode_inner_message(b"x", b"") * 3
    with pytest.raises(LargeBatchError):
        store.put_batch(queue, batch, b"", 0, 0, BORN_HOST, 0, 2)
    assert len(store.put_batch(queue, batch, b"", 0, 0, BORN_HOST, 0, 3)) == 3


def test_what_was_returned_is_where_it_is(store: MessageStore) -> None:
    places = [put(store, b"%d" % number * 500) for number in range(200)]
    places += put_batch(store, [b"x" * 100] * 50)
    store.seal()
    for offset, place in enumerate(places):
        record = store.read_record(place)
        assert record is not None
        assert decode_record(record).queue_offset == offset


def test_a_get_carries_whole_records_and_says_where_to_go_on(store: MessageStore) -> None:
    for number in range(100):
        put(store, b"%d" % number * 700)
    offset = 0
    seen: list[int] = []
    while (result := store.get(TOPIC, 0, offset, 10)).status is GetStatus.FOUND:
        data = b"".join(result.pieces)
        assert len(data) == result.size
        assert 1 <= result.count <= 10
        for _ in range(result.count):
            record = decode_record(data)
            seen.append(record.queue_offset)
            data = data[record.size :]
        assert data == b""
        assert result.next_offset == seen[-1] + 1
        offset = result.next_offset
    assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
    assert seen == list(range(100))


def test_offsets_outside_are_corrected(store: MessageStore) -> None:
    for _ in range(3):
        put(store)
    for offset, status, following in (
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
    ):
        result = store.get(TOPIC, 0, offset, 32)
        assert (result.status, result.next_offset) == (status, following)
        assert (result.min_offset, result.max_offset, result.count) == (0, 3, 0)


class OneTag:
    reads_records = False

    def __init__(self, tag: str) -> None:
        self.code = java_hash(tag)

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        return False

    def matches(
        self, tags_code: int, physical_offset: int, size: int, read: Callable[[int, int], bytes]
    ) -> bool:
        return tags_code == self.code


def test_a_filter_is_given_the_tags(store: MessageStore) -> None:
    for number in range(60):
        put(store, b"%d" % number, tags="odd" if number % 2 else "even")
    offset = 0
    found: list[bytes] = []
    while offset < store.max_offset(TOPIC, 0):
        result = store.get(TOPIC, 0, offset, 32, OneTag("odd"))
        assert result.next_offset > offset, "a pull that never goes on"
        offset = result.next_offset
        data = b"".join(result.pieces)
        while data:
            record = decode_record(data)
            found.append(record.body)
            data = data[record.size :]
    assert found == [b"%d" % number for number in range(1, 60, 2)]


def test_times_find_offsets(store: MessageStore) -> None:
    for _ in range(5):
        put(store)
    store.seal()
    stored = [record.store_timestamp for record in read_all(store)]
    assert 0 <= store.offset_by_time(TOPIC, 0, stored[0]) <= 4
    assert store.offset_by_time(TOPIC, 0, 0) == 0
    assert store.offset_by_time(TOPIC, 0, stored[-1] + 60_000) == 4


def test_keys_find_places_newest_first(store: MessageStore) -> None:
    places = [put(store, keys=f"all key{number}") for number in range(20)]
    store.seal()
    wait_until(lambda: len(store.query(TOPIC, "all", 64, 0, FOREVER)) == 20)
    assert store.query(TOPIC, "all", 64, 0, FOREVER) == places[::-1]
    assert store.query(TOPIC, "key7", 64, 0, FOREVER) == [places[7]]
    assert store.query("Other", "key7", 64, 0, FOREVER) == []


def test_a_removed_topic_is_gone_and_others_stay(store: MessageStore) -> None:
    put(store, b"goes", queue_id=0)
    put(store, b"goes", queue_id=1)
    put(store, b"stays", topic="Other")
    store.seal()
    store.remove_topic(TOPIC)
    for queue_id in (0, 1):
        assert store.get(TOPIC, queue_id, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert bodies(store, "Other") == [b"stays"]
    put(store, b"new")
    assert bodies(store) == [b"new"]


def test_a_closed_topic_takes_nothing_until_it_is_removed(store: MessageStore) -> None:
    put(store, b"old")
    held = store.queue(TOPIC, 0)
    store.close_topic(TOPIC)
    for queue_id in (0, 1):  # one that it has, and a new one
        with pytest.raises(PutError) as caught:
            put(store, queue_id=queue_id)
        assert caught.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.has_messages(TOPIC)
    assert bodies(store) == [b"old"]
    put(store, topic="Other")

    store.remove_topic(TOPIC)

    assert not store.has_messages(TOPIC)
    put(store, b"new")
    assert bodies(store) == [b"new"]
    with pytest.raises(PutError):
        store.put(held, b"lost", b"", 0, 0, 0, 0, BORN_HOST, 0)


def test_the_queues_of_a_removed_topic_take_nothing(store: MessageStore) -> None:
    put(store, b"old")
    held = store.queue(TOPIC, 0)
    store.remove_topic(TOPIC)
    with pytest.raises(PutError):
        store.put(held, b"lost", b"", 0, 0, 0, 0, BORN_HOST, 0)
    put(store, b"new")
    assert bodies(store) == [b"new"]


def test_a_restart_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    sent: list[bytes] = []
    for turn in range(4):
        store = engine(tmp_path)
        store.start()
        assert store.max_offset(TOPIC, 0) == len(sent)
        assert bodies(store) == sent
        for number in range(25):
            body = b"%d.%d" % (turn, number) * 200
            put(store, body, keys=f"t{turn}")
            sent.append(body)
        store.stop()
    store = engine(tmp_path)
    store.start()
    assert bodies(store) == sent
    for turn in range(4):
        assert len(store.query(TOPIC, f"t{turn}", 64, 0, FOREVER)) == 25
    store.stop()


def test_nothing_is_taken_outside_start_and_stop(engine: Engine, tmp_path: Path) -> None:
    store = engine(tmp_path)
    with pytest.raises(PutError) as refused:
        put(store)
    assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    store.start()
    put(store)
    store.stop()
    with pytest.raises(PutError) as refused:
        put(store)
    assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
