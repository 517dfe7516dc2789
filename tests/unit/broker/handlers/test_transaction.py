from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyromq.broker.inner_messages import InnerMessage, Stored
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import decode_record, encode_record
from pyromq.protocol.message.sysflag import TRANSACTION_COMMIT
from pyromq.protocol.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.store.config import BrokerRole
from pyromq.store.results import PutError, PutStatus
from tests.support.patience import until
from tests.support.requests import send_request
from tests.unit.broker.transactional import (
    COMMIT,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    Half,
    Transactional,
    end_request,
    half_request,
    opened,
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Transactional]:
    assembled = await opened(tmp_path)
    yield assembled
    await assembled.close()


async def test_a_committed_message_is_delivered(broker: Transactional) -> None:
    half = broker.prepare(1)
    assert broker.delivered == []

    answer = broker.end(half, COMMIT)

    assert (answer.code, answer.opaque, answer.remark) == (ResponseCode.SUCCESS, 7, None)
    (message,) = broker.of_topic("T")
    assert (message.queue_id, message.queue_offset, message.body) == (2, 0, b"body 1")
    assert (message.sys_flag, message.flag) == (TRANSACTION_COMMIT, 7)
    assert message.prepared_transaction_offset == half.physical
    assert message.properties["UNIQ_KEY"] == "key-1"
    assert broker.ends == [b"0"]
    assert [entry[:3] for entry in broker.entries()] == [
        (TRANSACTION_HALF_TOPIC, 0, 0),
        (TRANSACTION_OP_TOPIC, 0, 0),
        ("T", 2, 0),
    ]
    assert not broker.transactions.is_open(0)


async def test_a_message_that_was_rolled_back_is_not_delivered(broker: Transactional) -> None:
    half = broker.prepare()
    assert broker.end(half, ROLLBACK).code == ResponseCode.SUCCESS
    assert (broker.delivered, broker.ends) == ([], [b"0"])


@pytest.mark.parametrize("from_check", ["true", "false"])
async def test_an_unknown_outcome_changes_nothing(broker: Transactional, from_check: str) -> None:
    half = broker.prepare()
    answer = broker.end(half, UNKNOWN, fromTransactionCheck=from_check)
    assert answer.code == ResponseCode.SUCCESS
    assert (broker.delivered, broker.ends) == ([], [])
    assert broker.transactions.is_open(0)


@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.ROCKETMQ])
async def test_a_oneway_end_is_stored(broker: Transactional, encoding: Encoding) -> None:
    """Return a request as Java's client sends it."""
    halves = [broker.prepare(number) for number in range(3)]
    requests = [
        end_request(half, outcome, oneway=True)
        for half, outcome in zip(halves, (COMMIT, ROLLBACK, COMMIT), strict=True)
    ]
    for request in requests:
        request.encoding = encoding

    assert broker.fast.exchange(*requests) == []

    assert broker.delivered == [b"body 0", b"body 2"]
    assert broker.ends == [b"0", b"1", b"2"]
    assert broker.transactions.half_offset == 3


async def test_half_and_end_may_be_in_one_chunk(broker: Transactional) -> None:
    broker.prepare()
    half = broker.prepare(1)
    following = Half("2", half.physical * 2, "key-2")  # records of one length
    sent, ended = broker.fast.exchange(half_request(2), end_request(following, COMMIT))
    assert Half.sent(sent).physical == following.physical
    assert ended.code == ResponseCode.SUCCESS
    assert broker.delivered == [b"body 2"]


async def test_a_delay_starts_at_the_commit(broker: Transactional) -> None:
    half = broker.prepare(properties="DELAY\x013")
    assert [record.topic for record in broker.records()] == [TRANSACTION_HALF_TOPIC]

    assert broker.end(half, COMMIT).code == ResponseCode.SUCCESS

    (waiting,) = broker.of_topic(SCHEDULE_TOPIC)
    assert waiting.queue_id == 2
    assert waiting.properties["REAL_TOPIC"] == "T"
    assert waiting.properties["REAL_QID"] == "2"
    assert broker.ends == [b"0"]


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
async def test_a_transaction_ends_once(
    broker: Transactional, first: int, second: int, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ delivers it twice."""
    half = broker.prepare()
    broker.end(half, first)
    delivered = broker.delivered

    with caplog.at_level(logging.WARNING):
        answer = broker.end(half, second)

    assert answer.code == ResponseCode.SUCCESS
    assert broker.delivered == delivered
    assert broker.ends == [b"0"]
    assert "ignored: already ended" in caplog.text


async def test_refusals_name_the_cause(broker: Transactional) -> None:
    half = broker.prepare()
    plain = Half.sent(broker.fast.ask(send_request(properties=f"PGROUP\x01{GROUP}")))
    other = broker.prepare(1)
    for wrong, values, remark in (
        (half, {"producerGroup": "others"}, "The producer group wrong"),
        (half, {"tranStateTableOffset": "1"}, "The transaction state table offset wrong"),
        (Half("0", other.physical), {}, "The transaction state table offset wrong"),
        (plain, {}, "Find prepared transaction message failed"),
        (Half("0", 2**40), {}, "Find prepared transaction message failed"),
        (Half("0", -1), {}, "Find prepared transaction message failed"),
        (Half("0", half.physical + 1), {}, "Find prepared transaction message failed"),
    ):
        for outcome in (COMMIT, ROLLBACK):
            answer = broker.end(wrong, outcome, **values)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert (broker.delivered, broker.ends) == ([b"body"], [])


async def test_a_half_inside_a_body_is_not_found(broker: Transactional) -> None:
    half = broker.prepare()
    record = broker.halves[0]
    place = broker.store.max_physical_offset + 88  # where the body of the next message begins
    for queue_offset in (0, 2**62):
        forged = replace(record, queue_offset=queue_offset, physical_offset=place)
        host = encode_host(*record.store_host)
        broker.fast.ask(send_request(body=encode_record(forged, host, host)))
        data = broker.store.read_record(place)
        assert data is not None, "the body looks like a record"
        assert decode_record(data).physical_offset == place
        answer = broker.end(Half(str(queue_offset), place), COMMIT)
        assert answer.remark == "Find prepared transaction message failed"
        place = broker.store.max_physical_offset + 88
    assert broker.ends == []
    assert broker.end(half, COMMIT).code == ResponseCode.SUCCESS


async def test_an_invalid_outcome_is_refused(broker: Transactional) -> None:
    half = broker.prepare()
    for outcome in (4, 1, -1):
        answer = broker.end(half, outcome)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"commitOrRollback is {outcome}" in (answer.remark or "")
    assert broker.transactions.is_open(0)


async def test_a_half_without_a_group_cannot_be_ended(broker: Transactional) -> None:
    half = Half.sent(broker.fast.ask(send_request(properties="TRAN_MSG\x01true", sysFlag="4")))
    answer = broker.end(half, COMMIT)
    assert answer.remark == "The producer group wrong"


async def test_a_replica_ends_nothing(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    half = broker.prepare()
    broker.parts.role.change(BrokerRole.SLAVE, 1)
    answer = broker.end(half, COMMIT)
    assert (answer.code, answer.remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, None)
    assert (broker.delivered, broker.ends) == ([], [])

    broker.parts.role.change(BrokerRole.ASYNC_MASTER, 0)
    assert broker.end(half, COMMIT).code == ResponseCode.SUCCESS
    assert len(broker.delivered) == 1
    await broker.close()


async def test_a_commit_that_failed_can_be_retried(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = broker.prepare()
    for status, code in (
        (PutStatus.SERVICE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (PutStatus.CREATE_MAPEDFILE_FAILED, ResponseCode.SYSTEM_ERROR),
        (PutStatus.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL),
        (PutStatus.UNKNOWN_ERROR, ResponseCode.SYSTEM_ERROR),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(broker.writer, "put", refuse(status))
            answer = broker.end(half, COMMIT)
        assert answer.code == code
        assert "the disk" in (answer.remark or "")
    assert broker.transactions.is_open(0)

    assert broker.end(half, COMMIT).code == ResponseCode.SUCCESS
    assert (broker.delivered, broker.ends) == ([b"body 0"], [b"0"])


async def test_an_end_that_cannot_be_stored_is_remembered(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    half = broker.prepare()
    put = broker.writer.put

    def refuse_ends(message: InnerMessage) -> Stored:
        if message.topic == TRANSACTION_OP_TOPIC:
            raise PutError(PutStatus.SERVICE_NOT_AVAILABLE, "the disk")
        return put(message)

    with monkeypatch.context() as patch:
        patch.setattr(broker.writer, "put", refuse_ends)
        assert broker.end(half, COMMIT).code == ResponseCode.SUCCESS
    assert "end of half 0 not stored" in caplog.text

    broker.end(half, COMMIT)
    assert (broker.delivered, broker.ends) == ([b"body 0"], [])
    assert broker.transactions.half_offset == 1


@pytest.mark.parametrize("oneway", [False, True])
async def test_a_cold_half_is_read_on_a_lane(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch, oneway: bool
) -> None:
    half = broker.prepare()
    monkeypatch.setattr(broker.store, "is_cold", lambda _: True)

    # Both are in flight at the same time: only one of them may count.
    requests = [end_request(half, COMMIT, oneway=oneway) for _ in range(2)]
    assert broker.fast.exchange(*requests) == []
    await until(lambda: broker.store.max_offset(TRANSACTION_OP_TOPIC, 0))

    assert broker.delivered == [b"body 0"]
    if not oneway:
        answers = await received(broker, 2)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


def resume_request(message_id: str | None) -> RemotingCommand:
    fields = {} if message_id is None else {"msgId": message_id}
    return RemotingCommand(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext_fields=fields)


async def resume(broker: Transactional, message_id: str | None) -> RemotingCommand:
    assert broker.fast.exchange(resume_request(message_id)) == []
    (answer,) = await received(broker, 1)
    return answer


async def received(broker: Transactional, count: int) -> list[RemotingCommand]:
    """Wait for `count` answers on the fast connection."""
    answers: list[RemotingCommand] = []

    def have_come() -> bool:
        answers.extend(broker.fast.received())
        return len(answers) >= count

    await until(have_come)
    return answers


async def test_a_half_is_put_back_for_an_administrator(broker: Transactional) -> None:
    broker.prepare()
    answer = await resume(broker, broker.halves[0].message_id)
    assert answer.code == ResponseCode.SUCCESS
    first, second = broker.halves
    assert second.properties == {
        **first.properties,
        "TRANSACTION_CHECK_TIMES": "0",
        "TRAN_PREPARED_QUEUE_OFFSET": "0",
    }
    assert (second.queue_offset, second.body, second.flag) == (1, first.body, first.flag)
    assert broker.transactions.half_offset == 1, "only the second one is open"


async def test_an_end_before_or_after_a_resumption_counts_once(broker: Transactional) -> None:
    half = broker.prepare()
    assert (await resume(broker, broker.halves[0].message_id)).code == ResponseCode.SUCCESS
    assert broker.end(half, COMMIT).code == ResponseCode.SUCCESS
    assert broker.end(Half("1", broker.halves[1].physical_offset), COMMIT).code == 0
    assert (broker.delivered, broker.ends) == ([b"body 0"], [b"1", b"0"])

    for record in broker.halves:
        answer = await resume(broker, record.message_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "has ended" in (answer.remark or "")
    assert broker.transactions.half_offset == 2


async def test_a_message_that_is_not_a_half_is_not_put_back(broker: Transactional) -> None:
    """RocketMQ turns any message into a half."""
    broker.put(b"plain")
    plain = broker.records()[0].message_id
    for message_id in (plain, None, "", "xyz", plain[:-2] + "FF"):
        answer = await resume(broker, message_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(
            "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: "
        )
    assert len(broker.records()) == 1


async def test_a_half_that_cannot_be_put_back_is_an_error(
    broker: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.prepare()
    monkeypatch.setattr(broker.writer, "put", refuse(PutStatus.SERVICE_NOT_AVAILABLE))
    answer = await resume(broker, broker.halves[0].message_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "SERVICE_NOT_AVAILABLE: the disk" in (answer.remark or "")


def refuse(status: PutStatus) -> object:
    def put(_: InnerMessage) -> Stored:
        raise PutError(status, "the disk")

    return put
