from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.inner_messages import InnerMessage, MessageWriter
from pyromq.broker.services import delay
from pyromq.broker.services.delay import DelayService
from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.properties import encode_properties
from pyromq.protocol.message.record import MessageRecord, decode_record
from pyromq.protocol.message.sysflag import MULTI_TAGS, TRANSACTION_COMMIT
from pyromq.protocol.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC
from pyromq.store.config import FlushDiskType
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetResult, GetStatus, PutError, PutStatus
from tests.support.brokers import small_store
from tests.support.patience import until

HOST = encode_host("127.0.0.1", 10911)
BORN_HOST = encode_host("10.1.2.3", 4567)
BORN = 1_700_000_000_000
MILLISECOND = 1_000_000
HOUR = 3_600_000 * MILLISECOND


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = time.time_ns()
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return self.now


class Delayed:
    """A store, a writer and the service, on a clock of their own."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.config = small_store(root, message_delay_level="1s 5s 1h", **settings)
        self.clock = Clock()
        self.open()

    def open(self, **settings: Any) -> None:
        for name, value in settings.items():
            object.__setattr__(self.config, name, value)
        directory = self.config.config_directory
        self.table = DelayOffsetTable(directory, self.config.root / "abort")
        self.table.load()
        self.store = MessageStore(self.config, HOST)
        self.store.start()
        self.table.begin(self.store.max_physical_offset)
        self.writer = MessageWriter(self.store)
        self.service = DelayService(
            self.store, self.writer, self.table, now=self.clock, max_sleep=0.002
        )

    async def close(self) -> None:
        await self.service.stop()
        self.store.stop()
        self.table.settle(self.store.flushed_offset)
        await self.table.close()

    def put(
        self, body: bytes, level: int = 1, *, queue_id: int = 0, topic: str = "T", **more: Any
    ) -> int:
        """Put a message with a delay; when it is due, in milliseconds."""
        properties = {**more.pop("properties", {}), "DELAY": str(level)}
        queue, offset, _ = self.writer.put(
            InnerMessage(topic, queue_id, body, properties, born_host=BORN_HOST, **more)
        )
        self.store.seal()
        entry = queue.entry(offset)
        assert entry is not None
        return entry[2]

    def put_raw(self, properties: dict[str, str], body: bytes = b"wrong") -> None:
        """A record in level 1's queue, due at once, with any properties."""
        queue = self.store.queue(SCHEDULE_TOPIC, 0)
        self.store.put(queue, body, encode_properties(properties), 0, 0, 0, BORN, BORN_HOST, 0)
        self.store.seal()

    def delivered(self, topic: str = "T", queue_id: int = 0) -> list[MessageRecord]:
        queue = self.store.queue(topic, queue_id)
        records = []
        for offset in range(queue.min_offset, queue.next_offset):
            entry = queue.entry(offset)
            assert entry is not None
            data = self.store.read_record(entry[0])
            assert data is not None
            records.append(decode_record(data))
        return records

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.delivered(topic, queue_id)]

    def behind(self) -> dict[int, tuple[int, int]]:
        """By level: the offset of the next message to deliver, and the queue's end."""
        return {
            level: (offset, self.store.max_offset(SCHEDULE_TOPIC, level - 1))
            for level, offset in self.table.table().offset_table.items()
        }

    async def looked(self) -> None:
        """Wait until the service has looked at the clock some more times."""
        before = self.clock.asked
        await until(lambda: self.clock.asked >= before + 3)


@pytest.fixture
async def delayed(tmp_path: Path) -> AsyncIterator[Delayed]:
    made = Delayed(tmp_path)
    yield made
    await made.close()


async def test_a_message_is_delivered_when_it_is_due_and_not_before(delayed: Delayed) -> None:
    delayed.service.start()
    due = delayed.put(b"later", level=3)
    delayed.clock.now = due * MILLISECOND - 1
    await delayed.looked()
    assert delayed.bodies() == []

    delayed.clock.now = due * MILLISECOND
    await until(lambda: delayed.bodies() == [b"later"])


async def test_the_copy_is_the_message_but_for_its_place_and_time(delayed: Delayed) -> None:
    properties = {"TAGS": "a || ä", "KEYS": "k1 k2", "UNIQ_KEY": "u", "own": "消息"}
    delayed.put(
        b"body \x00\xff",
        2,
        queue_id=3,
        properties=properties,
        flag=-7,
        sys_flag=MULTI_TAGS | TRANSACTION_COMMIT,
        born_timestamp=BORN,
        reconsume_times=5,
        prepared_offset=99,
    )
    (waiting,) = delayed.delivered(SCHEDULE_TOPIC, 1)
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(lambda: delayed.bodies("T", 3))

    (copy,) = delayed.delivered("T", 3)
    assert copy.body == b"body \x00\xff"
    assert copy.properties == {**properties, "DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert copy.raw_properties == waiting.raw_properties
    assert (copy.flag, copy.sys_flag) == (-7, MULTI_TAGS | TRANSACTION_COMMIT)
    assert (copy.born_timestamp, copy.born_host) == (BORN, ("10.1.2.3", 4567))
    assert (copy.reconsume_times, copy.prepared_transaction_offset) == (5, 0)
    assert copy.store_timestamp >= waiting.store_timestamp
    entry = delayed.store.queue("T", 3).entry(0)
    assert entry is not None
    assert entry[2] == java_hash("a || ä")


async def test_the_born_host_may_be_ipv6(delayed: Delayed) -> None:
    queue = delayed.store.queue(SCHEDULE_TOPIC, 0)
    properties = encode_properties({"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"})
    host = encode_host("2001:db8::1", 9)
    delayed.store.put(queue, b"v6", properties, 0, 0, 0, BORN, host, 0)
    delayed.service.start()
    await until(delayed.bodies)
    (copy,) = delayed.delivered()
    assert copy.born_host == ("2001:db8::1", 9)


async def test_a_level_keeps_its_order_and_levels_do_not_wait_for_each_other(
    delayed: Delayed,
) -> None:
    for number in range(100):
        delayed.put(b"%d" % number, 1 + number % 2)
    far = delayed.put(b"far", 3)
    delayed.clock.now += 10_000 * MILLISECOND
    delayed.service.start()
    await until(lambda: len(delayed.bodies()) == 100)
    numbers = [int(body) for body in delayed.bodies()]
    assert [n for n in numbers if n % 2 == 0] == list(range(0, 100, 2))
    assert [n for n in numbers if n % 2] == list(range(1, 100, 2))
    assert delayed.behind() == {1: (50, 50), 2: (50, 50)}

    delayed.clock.now = far * MILLISECOND
    await until(lambda: delayed.bodies()[-1] == b"far")


async def test_a_message_wakes_an_idle_level(delayed: Delayed) -> None:
    delayed.service.start()
    for number in range(3):
        delayed.clock.now = delayed.put(b"%d" % number) * MILLISECOND
        await until(lambda count=number + 1: len(delayed.bodies()) == count)  # type: ignore[misc]


async def test_a_turn_of_the_loop_is_bounded(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "_TURN_NS", 0)  # every turn ends after one message
    for number in range(50):
        delayed.put(b"%d" % number)
    delayed.clock.now += HOUR
    delayed.service.start()
    turns = 0
    while len(delayed.bodies()) < 50:
        await asyncio.sleep(0)
        turns += 1
        assert len(delayed.bodies()) <= turns
    assert turns >= 50


async def test_a_put_that_fails_for_a_while_is_tried_again_in_order(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delay, "_FIRST_RETRY_SECONDS", 0.001)
    for number in range(5):
        delayed.put(b"%d" % number)
    real, refusals = delayed.store.put, [PutStatus.SERVICE_NOT_AVAILABLE] * 3

    def put(*arguments: Any, **more: Any) -> int:
        if len(delayed.bodies()) == 2 and refusals:
            raise PutError(refusals.pop(), "disk full")
        return real(*arguments, **more)

    monkeypatch.setattr(delayed.store, "put", put)
    delayed.clock.now += HOUR
    monkeypatch.setattr(delay, "_TURN_NS", 0)  # each message is sealed before the next put
    with caplog.at_level(logging.INFO, "pyromq.broker.services.delay"):
        delayed.service.start()
        await until(lambda: len(delayed.bodies()) == 5)
    assert refusals == []
    assert delayed.bodies() == [b"%d" % number for number in range(5)]
    assert delayed.behind() == {1: (5, 5)}
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "offset 2 failed, retrying: SERVICE_NOT_AVAILABLE: disk full" in caplog.text


async def test_what_the_store_will_never_take_does_not_block_its_level(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"first", b"too large", b"last"):
        delayed.put(body)
    real = delayed.store.put

    def put(queue: Any, body: bytes, *arguments: Any) -> int:
        if body == b"too large":
            raise PutError(PutStatus.MESSAGE_ILLEGAL, "body of 9 bytes")
        return real(queue, body, *arguments)

    monkeypatch.setattr(delayed.store, "put", put)
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(lambda: delayed.bodies() == [b"first", b"last"])
    assert "undeliverable message(s) from offset 1 on" in caplog.text


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"REAL_QID": "0"}, "name is blank"),
        ({"REAL_TOPIC": "../../etc", "REAL_QID": "0"}, "illegal characters"),
        ({"REAL_TOPIC": "T"}, "REAL_QID"),
        ({"REAL_TOPIC": "T", "REAL_QID": "one"}, "not a number"),
        ({"REAL_TOPIC": "T", "REAL_QID": "-1"}, "is -1"),
        ({"REAL_TOPIC": "T", "REAL_QID": "2147483648"}, "out of range"),
        ({"REAL_TOPIC": TRANSACTION_HALF_TOPIC, "REAL_QID": "0"}, TRANSACTION_HALF_TOPIC),
        ({"REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "0"}, SCHEDULE_TOPIC),
    ],
)
async def test_a_wrong_record_is_skipped_and_logged(
    delayed: Delayed,
    caplog: pytest.LogCaptureFixture,
    properties: dict[str, str],
    reason: str,
) -> None:
    delayed.put_raw(properties)
    delayed.put(b"right")
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(delayed.bodies)
    assert delayed.bodies() == [b"right"]
    assert delayed.behind() == {1: (2, 2)}
    assert "delay level 1: skipped 1 undeliverable message(s) from offset 0 on" in caplog.text
    assert reason in caplog.text
    assert delayed.store.max_offset(SCHEDULE_TOPIC, 0) == 2
    assert delayed.store.max_offset(TRANSACTION_HALF_TOPIC, 0) == 0


async def test_entries_that_point_at_no_waiting_record_are_skipped(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    first = delayed.put(b"right")
    plain = delayed.writer.put(InnerMessage("other", 0, b"of another topic"))
    damaged = delayed.store.max_physical_offset
    delayed.put(b"damage me")
    end = delayed.store.max_physical_offset
    segment = delayed.store._log.segments.find(damaged)
    assert segment is not None
    body = segment.read(damaged, end).index(b"damage me") + damaged
    segment.write(body, b"D")
    queue = delayed.store.queue(SCHEDULE_TOPIC, 0)
    size = delayed.delivered("other")[0].size
    for physical, length in ((plain.physical, size), (plain.physical + 1, size), (0, 5)):
        queue.append_many(struct.pack(">qiq", physical, length, first))
        queue.write_pending()
    delayed.put(b"last")
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(lambda: delayed.bodies() == [b"right", b"last"])
    assert delayed.bodies("other") == [b"of another topic"]
    assert "4 undeliverable message(s) from offset 1 on" in caplog.text
    assert "is damaged" in caplog.text


async def test_wrong_records_alone_are_skipped(delayed: Delayed) -> None:
    for _ in range(100):
        delayed.put_raw({})
    delayed.service.start()
    await until(lambda: delayed.behind() == {1: (100, 100)})
    delayed.clock.now = delayed.put(b"right") * MILLISECOND
    await until(delayed.bodies)


@pytest.mark.parametrize(("offset", "corrected"), [(0, 2), (77, 5)])
async def test_an_offset_outside_the_queue_is_corrected(
    delayed: Delayed, caplog: pytest.LogCaptureFixture, offset: int, corrected: int
) -> None:
    for number in range(5):
        delayed.put(b"%d" % number)
    delayed.store.queue(SCHEDULE_TOPIC, 0).min_offset = 2  # the first two have expired
    delayed.table.move({1: offset}, 0)
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(lambda: delayed.behind() == {1: (5, 5)})
    assert delayed.bodies() == [b"%d" % number for number in range(corrected, 5)]
    assert f"offset {offset} is outside its queue (2 to 5)" in caplog.text


async def test_an_offset_of_a_queue_that_is_gone_begins_anew(delayed: Delayed) -> None:
    delayed.table.move({1: 77}, 0)
    delayed.service.start()
    await until(lambda: delayed.behind() == {1: (0, 0)})
    delayed.clock.now = delayed.put(b"first of a new queue") * MILLISECOND
    await until(delayed.bodies)


async def test_a_clock_that_was_set_back_delays_nothing_for_longer_than_its_level(
    delayed: Delayed,
) -> None:
    due = delayed.put(b"body", level=2)
    delayed.clock.now = (due - 5_000) * MILLISECOND
    delayed.service.start()
    await delayed.looked()
    assert delayed.bodies() == []
    delayed.clock.now -= MILLISECOND
    await until(delayed.bodies)


async def test_a_level_that_is_no_more_waits_for_its_return(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.put(b"level 3", 3)
    delayed.put(b"level 1", 1)
    delayed.clock.now += 2 * HOUR
    await delayed.close()
    delayed.open(message_delay_level="1s 5s")
    delayed.service.start()
    await until(delayed.bodies)
    assert "1 messages of delay level 3 wait: " in caplog.text
    await delayed.close()
    assert delayed.behind() == {1: (1, 1)}

    delayed.open(message_delay_level="1s 5s 1h")
    delayed.service.start()
    await until(lambda: delayed.bodies() == [b"level 1", b"level 3"])


async def test_cold_messages_are_read_in_a_thread_first(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        delayed.put(b"%d" % number)
    real, threads = delayed.store.get, []
    loop = asyncio.get_running_loop()

    def bring_in() -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        threads.append(loop)
        if len(threads) == 2:
            raise OSError("unreadable")

    def get(*arguments: Any, may_wait: bool) -> GetResult:
        if may_wait and len(threads) < 2:
            return GetResult(GetStatus.NOT_IN_MEMORY, 0, 0, 0, bring_in=bring_in)
        return real(*arguments, may_wait=may_wait)

    monkeypatch.setattr(delayed.store, "get", get)
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(lambda: len(delayed.bodies()) == 40)
    assert threads


async def test_pages_that_never_stay_in_memory_are_read_all_the_same(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed.put(b"body")
    real = delayed.store.get

    def get(*arguments: Any, may_wait: bool) -> GetResult:
        if may_wait:
            return GetResult(GetStatus.NOT_IN_MEMORY, 0, 0, 0, bring_in=lambda: None)
        return real(*arguments, may_wait=may_wait)

    monkeypatch.setattr(delayed.store, "get", get)
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(delayed.bodies)


async def test_a_mistake_in_one_level_is_logged_and_leaves_the_others_alone(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delay, "_FAULT_SECONDS", 0.01)
    delayed.put(b"one", 1)
    delayed.put(b"two", 2)
    real, faults = delayed.store.get, [ZeroDivisionError("mistake")]

    def get(topic: str, queue_id: int, *arguments: Any, **more: Any) -> GetResult:
        if queue_id == 0 and faults:
            raise faults.pop()
        return real(topic, queue_id, *arguments, **more)

    monkeypatch.setattr(delayed.store, "get", get)
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(lambda: delayed.bodies() == [b"two", b"one"])
    assert "delay level 1: delivery failed at offset 0" in caplog.text
    assert "mistake" in caplog.text


async def test_a_turn_that_could_not_be_sealed_is_counted_with_the_next(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "_TURN_NS", 0)
    for number in range(3):
        delayed.put(b"%d" % number)
    real, faults = delayed.store.end_chunk, [OSError("no room")]
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))

    def end_chunk() -> Any:
        if faults:
            raise faults.pop()
        return real()

    monkeypatch.setattr(delayed.store, "end_chunk", end_chunk)
    delayed.clock.now += HOUR
    delayed.service.start()
    await until(lambda: delayed.behind() == {1: (3, 3)})
    assert delayed.bodies() == [b"0", b"1", b"2"]
    assert [str(told["exception"]) for told in reported] == ["no room"]


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_restart_goes_on_where_it_was(tmp_path: Path, flush: FlushDiskType) -> None:
    delayed = Delayed(tmp_path, flush_disk_type=flush)
    delayed.service.start()
    due = [delayed.put(b"%d" % number, 3) for number in range(3)]
    delayed.clock.now = due[0] * MILLISECOND
    await until(delayed.bodies)
    count = len(delayed.bodies())
    await delayed.close()
    assert f"{{3:{count}\n" in (tmp_path / "config" / "delayOffset.json").read_text()

    delayed.open()
    delayed.service.start()
    delayed.clock.now = due[2] * MILLISECOND
    await until(lambda: len(delayed.bodies()) == 3)
    await delayed.close()
    delayed.open()
    assert delayed.bodies() == [b"0", b"1", b"2"]
    await delayed.close()


async def test_progress_is_saved_now_and_then(tmp_path: Path) -> None:
    delayed = Delayed(tmp_path, flush_delay_offset_interval=5, flush_interval_commit_log=5)
    object.__setattr__(delayed.config, "flush_commit_log_least_pages", 0)
    delayed.service.start()
    delayed.clock.now = delayed.put(b"body", 2) * MILLISECOND
    file = tmp_path / "config" / "delayOffset.json"
    await until(lambda: file.exists() and b"{2:1\n" in file.read_bytes())
    await delayed.close()


async def test_nothing_is_delivered_after_the_stop(delayed: Delayed) -> None:
    delayed.service.start()
    await delayed.service.stop()
    delayed.put(b"body")
    delayed.clock.now += HOUR
    for _ in range(10):
        await asyncio.sleep(0)
    assert delayed.bodies() == []
