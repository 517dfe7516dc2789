from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.inner_messages import InnerMessage, Stored
from pyromq.broker.services import transaction_check
from pyromq.broker.transaction_messages import end_of
from pyromq.protocol.message.record import decode_record
from pyromq.protocol.names import (
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.store.results import PutError, PutStatus
from tests.support.patience import until
from tests.unit.broker.fakes import FakeConnection
from tests.unit.broker.transactional import (
    COMMIT,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    Half,
    Transactional,
    opened,
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Transactional]:
    assembled = await opened(tmp_path)
    assembled.join()
    yield assembled
    await assembled.close()


# Asking


async def test_an_open_transaction_is_asked_about(broker: Transactional) -> None:
    broker.prepare(1)

    (question,) = await broker.round()

    first, second = broker.halves
    assert question.code == RequestCode.CHECK_TRANSACTION_STATE
    assert question.is_oneway
    assert question.ext_fields == {
        "tranStateTableOffset": "1",
        "commitLogOffset": str(second.physical_offset),
        "msgId": "key-1",
        "transactionId": "key-1",
        "offsetMsgId": second.message_id,
    }
    message = decode_record(question.body)
    assert (message.topic, message.queue_id, message.body) == ("T", 2, b"body 1")
    assert second.properties == {
        **first.properties,
        "TRANSACTION_CHECK_TIMES": "1",
        "TRAN_PREPARED_QUEUE_OFFSET": "0",
    }
    assert broker.transactions.half_offset == 1
    assert broker.topics.get(TRANSACTION_HALF_TOPIC) is not None


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
async def test_the_answer_ends_it(broker: Transactional, outcome: int) -> None:
    broker.prepare(1)
    (question,) = await broker.round()

    answer = broker.end(Half.asked(question), outcome, fromTransactionCheck="true")

    assert answer.code == ResponseCode.SUCCESS
    assert broker.delivered == ([b"body 1"] if outcome == COMMIT else [])
    assert await broker.round() == []
    assert len(broker.halves) == 2
    assert broker.transactions.half_offset == 2
    assert broker.transactions.op_offset == len(broker.ends)


async def test_it_is_asked_about_until_it_is_known(broker: Transactional) -> None:
    broker.prepare()
    for number in range(3):
        (question,) = await broker.round()
        assert broker.halves[-1].properties["TRANSACTION_CHECK_TIMES"] == str(number + 1)
        assert broker.halves[-1].properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        broker.end(Half.asked(question), UNKNOWN, fromTransactionCheck="true")
    broker.end(Half.asked(question), COMMIT, fromTransactionCheck="true")
    assert broker.delivered == [b"body 0"]
    assert await broker.round() == []


async def test_the_end_of_the_first_half_counts_after_a_check(broker: Transactional) -> None:
    """A slow producer is asked, does not know yet, then commits what it once sent.

    RocketMQ delivers twice: the half that was put back is asked about again.
    """
    half = broker.prepare()
    (question,) = await broker.round()
    broker.end(Half.asked(question), UNKNOWN, fromTransactionCheck="true")
    (question,) = await broker.round()

    broker.end(half, COMMIT)

    assert await broker.round() == []
    broker.end(Half.asked(question), COMMIT, fromTransactionCheck="true")
    assert broker.delivered == [b"body 0"]


async def test_young_halves_are_left_alone(broker: Transactional) -> None:
    broker.prepare(0)
    broker.prepare(1, bornTimestamp=str(broker.now + 4000))
    assert await broker.round(5.999) == []
    asked = [await broker.round(seconds) for seconds in (0.001, 3.0, 1.0)]
    assert [[question.ext_fields["msgId"] for question in round_] for round_ in asked] == [
        ["key-0"],
        [],  # the second half is still too young, and so all behind it
        ["key-1", "key-0"],
    ]


async def test_ended_ones_between_open_ones_are_passed(broker: Transactional) -> None:
    halves = [broker.prepare(number) for number in range(100)]
    for half in halves[1::2]:
        broker.end(half, COMMIT)

    questions = await broker.round()

    assert [question.ext_fields["msgId"] for question in questions] == [
        f"key-{number}" for number in range(0, 100, 2)
    ]
    assert broker.transactions.half_offset == 100
    assert broker.transactions.op_offset == 50


async def test_a_round_does_not_come_to_its_own_halves(broker: Transactional) -> None:
    for number in range(50):
        broker.prepare(number)
    assert [len(await broker.round()) for _ in range(2)] == [50, 50]
    assert len(broker.halves) == 150


async def test_the_loop_turns_during_a_round(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_check, "_MAX_STEP_SECONDS", 0.0)
    for number in range(20):
        broker.prepare(number)
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count)

    count()
    assert len(await broker.round()) == 20
    assert turns >= 20


async def test_nobody_is_asked_when_no_producer_is_there(
    broker: Transactional, caplog: pytest.LogCaptureFixture
) -> None:
    broker.producers.unregister(GROUP, broker.producer)
    broker.prepare()
    assert await broker.round() == []
    line = "no producer to ask about 1 halves, the first is 1: no producer of group"
    assert f"{line} {GROUP} is connected" in caplog.text
    assert broker.check.without_producer == 1
    broker.join()
    assert len(await broker.round()) == 1
    assert broker.check.without_producer == 0
    assert broker.halves[-1].properties["TRANSACTION_CHECK_TIMES"] == "2"


async def test_many_halves_without_a_producer_are_a_few_lines_in_the_log(
    broker: Transactional, caplog: pytest.LogCaptureFixture
) -> None:
    broker.producers.unregister(GROUP, broker.producer)
    for number in range(30):
        broker.prepare(number, properties=f"PGROUP\x01group-{number % 10}")
    broker.prepare(30, properties="PGROUP\x01group-7")
    await broker.round()
    assert broker.check.without_producer == 31
    lines = [line for line in caplog.messages if line.startswith("no producer to ask about")]
    assert len(lines) == 6
    assert lines[0].startswith("no producer to ask about 4 halves")
    assert lines[0].endswith("no producer of group group-7 is connected")
    assert lines[5] == "no producer to ask about 15 other halves, for 5 other reasons"


async def test_producers_of_a_group_are_asked_in_turn(broker: Transactional) -> None:
    other = FakeConnection("127.0.0.1:2")
    broker.join(other)
    for number in range(4):
        broker.prepare(number)
    assert len(await broker.round()) == 2
    assert len(other.sent) == 2


async def test_a_producer_that_does_not_read_is_asked_nothing_more(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transaction_check, "_CONGESTION_SECONDS", 0.02)
    monkeypatch.setattr(transaction_check, "_MAX_STEP_HALVES", 10)
    monkeypatch.setattr(transaction_check, "_MAX_STEP_SECONDS", 60.0)
    reading = FakeConnection("127.0.0.1:2")
    broker.join(reading)
    broker.producer.congested = True
    for number in range(40):
        broker.prepare(number)

    assert len(await broker.round()) == 5
    assert len(reading.sent) == 35
    assert "127.0.0.1:40404 does not read" in caplog.text


async def test_a_producer_that_reads_again_is_waited_for(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_check, "_MAX_STEP_HALVES", 10)
    monkeypatch.setattr(transaction_check, "_MAX_STEP_SECONDS", 60.0)
    for number in range(30):
        broker.prepare(number)
    broker.producer.congested = True
    checking = asyncio.create_task(broker.round())
    await until(lambda: len(broker.producer.sent) == 10)
    broker.producer.congested = False
    assert len(await checking) == 30


# Leaving and giving up


async def test_who_asked_not_to_be_asked_is_not(broker: Transactional) -> None:
    half = broker.prepare(properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x01150")
    for _ in range(2):
        assert await broker.round() == []
    assert "TRANSACTION_CHECK_TIMES" not in broker.halves[-1].properties
    assert broker.halves[-1].properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert len(broker.halves) == 3

    broker.end(half, COMMIT)

    assert await broker.round() == []
    assert (broker.delivered, len(broker.halves)) == ([b"body 0"], 3)
    assert broker.transactions.half_offset == 3


async def test_it_is_asked_when_that_time_is_over(broker: Transactional) -> None:
    broker.prepare(properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x01100")
    assert [len(await broker.round()) for _ in range(3)] == [0, 1, 1]


async def test_after_the_last_question_it_is_given_up(tmp_path: Path) -> None:
    broker = await opened(tmp_path, settings={"transaction_check_max": 2})
    broker.join()
    half = broker.prepare(1)
    assert [len(await broker.round()) for _ in range(3)] == [1, 1, 0]

    (given_up,) = broker.of_topic(TRANSACTION_GIVEN_UP_TOPIC)
    last = broker.halves[-1]
    assert (given_up.queue_id, given_up.body, given_up.flag) == (0, b"body 1", last.flag)
    assert given_up.properties == last.properties
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert broker.topics.get(TRANSACTION_GIVEN_UP_TOPIC) is not None
    assert await broker.round() == []
    # As with RocketMQ, whoever made it may still end it.
    assert broker.end(half, COMMIT).code == ResponseCode.SUCCESS
    assert broker.delivered == [b"body 1"]
    await broker.close()


async def test_what_was_given_up_is_asked_about_again_when_resumed(tmp_path: Path) -> None:
    broker = await opened(tmp_path, settings={"transaction_check_max": 1})
    broker.join()
    half = broker.prepare(1)
    assert [len(await broker.round()) for _ in range(2)] == [1, 0]
    (given_up,) = broker.of_topic(TRANSACTION_GIVEN_UP_TOPIC)
    broker.fast.exchange(
        RemotingCommand(
            RequestCode.RESUME_CHECK_HALF_MESSAGE, ext_fields={"msgId": given_up.message_id}
        )
    )
    await until(broker.fast.received)

    (question,) = await broker.round()
    broker.end(half, COMMIT)
    broker.end(Half.asked(question), COMMIT)

    assert broker.delivered == [b"body 1"]
    assert await broker.round() == []
    assert len(broker.of_topic(TRANSACTION_GIVEN_UP_TOPIC)) == 1
    await broker.close()


async def test_a_resumed_half_of_an_ended_transaction_is_passed(broker: Transactional) -> None:
    half = broker.prepare()
    (record,) = broker.halves
    broker.end(half, COMMIT)
    # As it stands in the queue when a resumption and an end cross each other.
    properties = {**record.properties, "TRAN_PREPARED_QUEUE_OFFSET": "0"}
    broker.writer.put(InnerMessage(TRANSACTION_HALF_TOPIC, 0, b"again", properties))
    assert await broker.round() == []
    assert broker.transactions.half_offset == 2


async def test_a_half_older_than_messages_are_kept_is_given_up(broker: Transactional) -> None:
    broker.prepare()
    assert await broker.round(72 * 3600 + 1) == []
    assert len(broker.of_topic(TRANSACTION_GIVEN_UP_TOPIC)) == 1


async def test_a_half_that_does_not_fit_any_more_is_given_up(broker: Transactional) -> None:
    """RocketMQ tries it for a minute, again and again, and comes to no other."""
    size = 32767 - 120 - len("key-0")
    broker.prepare(properties="x\x01" + "y" * size)
    broker.prepare(1)
    used = len(broker.halves[0].raw_properties)
    assert 32767 - 50 < used <= 32767, f"{used} bytes of properties"

    questions = await broker.round()

    assert [question.ext_fields["msgId"] for question in questions] == ["key-1"]
    assert broker.transactions.half_offset == 2


# Faults


@pytest.mark.parametrize("seconds", [60, 10**6], ids=["put-back", "give-up"])
async def test_a_disk_that_is_full_stops_the_round(
    broker: Transactional,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.prepare()

    def refuse(_: InnerMessage) -> Stored:
        raise PutError(PutStatus.SERVICE_NOT_AVAILABLE, "the disk")

    with monkeypatch.context() as patch:
        patch.setattr(broker.writer, "put", refuse)
        assert await broker.round(seconds) == []
    assert broker.transactions.half_offset == 0
    assert "the disk" in caplog.text
    await broker.round()
    assert broker.transactions.half_offset == 1


async def test_a_half_that_cannot_be_read_is_passed(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = broker.prepare()
    broker.prepare(1)
    read = broker.store.read_record
    monkeypatch.setattr(
        broker.store,
        "read_record",
        lambda place: None if place == lost.physical else read(place),
    )
    assert len(await broker.round()) == 1
    assert "half 0 cannot be read" in caplog.text
    assert broker.transactions.half_offset == 2


async def test_a_half_without_a_target_troubles_nobody(
    broker: Transactional, caplog: pytest.LogCaptureFixture
) -> None:
    broker.writer.put(
        InnerMessage(TRANSACTION_HALF_TOPIC, 0, b"", {"PGROUP": GROUP}, born_timestamp=broker.now)
    )
    broker.prepare(1)
    assert len(await broker.round()) == 1
    assert "question about half 0 not built" in caplog.text


async def test_what_is_not_in_memory_is_read_elsewhere(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = [broker.prepare(number) for number in range(3)]
    monkeypatch.setattr(broker.store, "is_cold", lambda place: place == halves[1].physical)
    read = broker.store.fetch_record
    loop = asyncio.get_running_loop()

    def read_and_end(place: int) -> bytes | None:
        if place == halves[1].physical:
            # Its producer ends it while it is being read.
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            loop.call_soon_threadsafe(broker.transactions.end, 1, 1)
        return read(place)

    monkeypatch.setattr(broker.store, "fetch_record", read_and_end)
    questions = await broker.round()
    assert [question.ext_fields["msgId"] for question in questions] == ["key-0", "key-2"]


async def test_a_round_that_fails_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await opened(tmp_path, settings={"transaction_check_interval": 5})
    broker.join()
    broker.prepare()
    broker.pass_seconds(60)
    rounds = 0
    create = broker.topics.create_for_send_back

    def fail_once(*arguments: int) -> object:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise RuntimeError("a mistake")
        return create(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.topics, "create_for_send_back", fail_once)
    broker.check.start()
    await until(lambda: broker.producer.sent)
    assert "transaction check failed" in caplog.text
    await broker.close()


# What is kept


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    halves = [broker.prepare(number) for number in range(6)]
    broker.end(halves[0], COMMIT)
    broker.end(halves[3], ROLLBACK)

    broker = await broker.reopen(tmp_path)
    broker.join()

    assert broker.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) == 1
    assert broker.offsets.query(TRANSACTION_GROUP, TRANSACTION_OP_TOPIC, 0) == 1
    assert broker.transactions.half_offset == 1
    # A second end is known, too, as far as the offsets do not say that it is done with.
    broker.end(halves[3], COMMIT)
    assert broker.delivered == [b"body 0"]
    questions = await broker.round()
    assert [q.ext_fields["msgId"] for q in questions] == [f"key-{n}" for n in (1, 2, 4, 5)]
    broker.end(halves[1], COMMIT)

    broker = await broker.reopen(tmp_path)
    broker.join()
    # The end of a half that was put back before the restart, by its first offset.
    broker.end(halves[2], COMMIT)
    questions = await broker.round()
    assert [q.ext_fields["msgId"] for q in questions] == ["key-4", "key-5"]
    assert sorted(broker.delivered) == [b"body 0", b"body 1", b"body 2"]
    await broker.close()


async def test_offsets_that_were_not_saved_cost_nothing(tmp_path: Path) -> None:
    """After a kill: the offsets are older than the queues."""
    broker = await opened(tmp_path)
    broker.join()
    halves = [broker.prepare(number) for number in range(4)]
    broker.end(halves[0], COMMIT)
    (_, second, third) = await broker.round()
    broker.end(Half.asked(second), COMMIT)
    await broker.close()
    forget_offsets(tmp_path)

    broker = await opened(tmp_path)
    broker.join()
    assert broker.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) is None
    # 0 and 2 are ended, 1 and 3 were put back: only these are open, once each.
    assert [half for half in range(7) if broker.transactions.is_open(half)] == [4, 6]
    broker.end(halves[3], COMMIT)
    broker.end(Half.asked(third), COMMIT)
    questions = await broker.round()
    assert [q.ext_fields["msgId"] for q in questions] == ["key-1"]
    assert sorted(broker.delivered) == [b"body 0", b"body 2", b"body 3"]
    await broker.close()


def forget_offsets(root: Path) -> None:
    for path in root.glob("config/consumerOffset.json*"):
        path.unlink()


async def test_offsets_outside_their_queues_are_brought_back(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    broker.prepare()
    broker.offsets.commit(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0, 99)
    broker.offsets.commit(TRANSACTION_GROUP, TRANSACTION_OP_TOPIC, 0, 99)
    await broker.check.load()
    assert (broker.transactions.half_offset, broker.transactions.op_offset) == (1, 0)
    await broker.close()


async def test_ends_that_are_none_are_passed(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    for number in range(2):
        broker.prepare(number)
    for half in (2**62, -5, 0):
        broker.writer.put(end_of(half, broker.host, 0))
    broker.writer.put(InnerMessage(TRANSACTION_OP_TOPIC, 0, b"x", {"TAGS": "d"}))
    await broker.writer.stored()
    await broker.check.load()
    assert (broker.transactions.half_offset, broker.transactions.op_offset) == (1, 4)
    await broker.close()


async def test_progress_is_committed_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await opened(tmp_path)
    flushed = 0
    monkeypatch.setattr(
        type(broker.store), "flushed_offset", property(lambda _: flushed), raising=True
    )
    broker.end(broker.prepare(), COMMIT)

    def committed() -> int | None:
        return broker.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0)

    for _ in range(2):
        broker.check.note_progress()
        assert committed() is None
    seen = broker.store.max_physical_offset
    broker.end(broker.prepare(1), COMMIT)
    flushed = seen
    broker.check.note_progress()
    assert committed() == 1
    broker.check.note_progress()
    assert committed() == 1
    flushed = broker.store.max_physical_offset
    broker.check.note_progress()
    assert committed() == 2
    monkeypatch.undo()
    await broker.close()


async def test_a_broker_without_transactions_keeps_no_offsets(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    broker.check.note_progress()
    await broker.check.check()
    broker.check.note_progress()
    assert broker.offsets.topics_of(TRANSACTION_GROUP) == set()
    await broker.close()


async def test_expired_halves_are_passed(
    broker: Transactional, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        broker.prepare(number)
    broker.store.queue(TRANSACTION_HALF_TOPIC, 0).min_offset = 3
    with caplog.at_level(logging.WARNING):
        assert len(await broker.round()) == 1
    assert "halves 0 to 2 expired before their transactions ended" in caplog.text
