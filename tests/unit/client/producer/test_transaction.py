from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyromq.client.errors import BrokerError, IllegalMessageError, OptionError
from pyromq.client.hooks import EndingTransaction
from pyromq.client.message import HalfMessage, Message
from pyromq.client.producer.transaction import TransactionProducer
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import TransactionState
from pyromq.protocol.message.message_id import encode_message_id
from pyromq.protocol.message.properties import decode_properties, encode_properties
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.protocol.message.sysflag import TRANSACTION_PREPARED
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand
from pyromq.protocol.wire.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from tests.support.patience import until
from tests.unit.client.fake_cluster import HOST, FakeBroker, FakeCluster, running_cluster

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
STATES = dict(zip(TransactionState, (8, 12, 0), strict=True))


def never(message: ReceivedMessage) -> TransactionState:
    raise AssertionError(f"nobody shall ask about {message!r}")


def stored(
    broker: FakeBroker, code: int = ResponseCode.SUCCESS, offset: int = 5, physical: int = 4711
) -> None:
    """Answer the next send with this position."""
    header = SendMessageResponseHeader(encode_message_id(HOST, physical), 0, offset, "TX")
    broker.refusals[SEND].append((code, "", header.encode()))  # type: ignore[arg-type]


async def ends(broker: FakeBroker, count: int = 1) -> list[EndTransactionRequestHeader]:
    await until(lambda: len(broker.seen(END)) >= count)
    return [EndTransactionRequestHeader.decode(end.ext_fields) for end in broker.seen(END)]


@asynccontextmanager
async def transactions(
    check: Callable[[ReceivedMessage], Any] = never, **options: Any
) -> AsyncIterator[tuple[FakeBroker, TransactionProducer, FakeCluster]]:
    async with (
        running_cluster({"t": {"b0": 1}, "ns%t": {"b0": 1}}) as cluster,
        TransactionProducer(cluster.namesrv, group="g", check=check, **options) as producer,
    ):
        yield cluster.brokers[0], producer, cluster


@pytest.mark.parametrize("state", TransactionState)
async def test_the_outcome_is_sent_to_the_broker(state: TransactionState) -> None:
    async with transactions() as (broker, producer, _):
        stored(broker)
        seen: list[HalfMessage] = []

        async def execute(half: HalfMessage) -> TransactionState:
            assert broker.seen(SEND)
            assert not broker.seen(END)
            seen.append(half)
            return state

        message = Message("t", b"pay", tags="a", keys="k")
        result = await producer.send_in_transaction(message, execute, 42)
        assert (result.state, result.error) == (state, None)
        (half,) = seen
        assert (half.topic, half.body, half.tags, half.keys) == ("t", b"pay", "a", "k")
        assert (half.transaction_id, half.argument) == (result.msg_id, 42)
        sent = SendMessageRequestHeaderV2.decode(broker.seen(SEND)[0].ext_fields)
        properties = decode_properties(sent.properties or "")
        assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "g")
        assert sent.sys_flag == TRANSACTION_PREPARED
        assert await ends(broker) == [
            EndTransactionRequestHeader("g", 5, 4711, STATES[state], result.msg_id, False, "TX")
        ]
        (end,) = broker.seen(END)
        assert end.is_oneway
        assert end.ext_fields["bname"] == "b0"


async def cancelled_by_somebody_else(_message: object) -> TransactionState:
    inner = asyncio.create_task(asyncio.sleep(60))
    inner.cancel()
    await inner
    return COMMIT


async def test_an_execute_cancelled_from_inside_has_failed() -> None:
    async with transactions() as (broker, producer, _):
        stored(broker)
        result = await producer.send_in_transaction(Message("t", b"x"), cancelled_by_somebody_else)
        assert result.state is TransactionState.UNKNOWN
        assert "CancelledError" in repr(result.error)


async def test_a_check_cancelled_from_inside_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with transactions(cancelled_by_somebody_else, topics=["t"]) as (broker, producer, _):
        await ask(broker, producer, key="A")
        (end,) = await ends(broker)
        assert end.commit_or_rollback == STATES[TransactionState.UNKNOWN]
        assert "check of transaction A failed" in caplog.text


async def test_a_plain_function_runs_in_a_thread() -> None:
    async with transactions() as (broker, producer, _):
        stored(broker)
        threads: list[str] = []

        def execute(half: HalfMessage) -> TransactionState:
            threads.append(threading.current_thread().name)
            return COMMIT

        result = await producer.send_in_transaction(Message("t", b"x"), execute)
        assert result.state is COMMIT
        assert threads != [threading.current_thread().name]


@pytest.mark.parametrize("outcome", [RuntimeError("no money"), None, "commit"])
async def test_an_unknown_outcome(outcome: Any, caplog: Any) -> None:
    async def execute(half: HalfMessage) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with transactions() as (broker, producer, _):
        stored(broker)
        result = await producer.send_in_transaction(Message("t", b"x"), execute)
        assert result.state is TransactionState.UNKNOWN
        assert (await ends(broker))[0].commit_or_rollback == 0
        remark = broker.seen(END)[0].remark
        if outcome is None:
            assert (result.error, remark) == (None, None)
        else:
            assert remark is not None
            assert repr(result.error) in remark
            assert "outcome unknown" in caplog.text


async def test_a_half_message_not_stored_safely_is_rolled_back_without_execution() -> None:
    async with transactions() as (broker, producer, _):
        stored(broker, ResponseCode.FLUSH_DISK_TIMEOUT)
        result = await producer.send_in_transaction(Message("t", b"x"), never)  # type: ignore[arg-type]
        assert result.state is ROLLBACK
        assert (await ends(broker))[0].commit_or_rollback == 12


async def test_nothing_is_executed_if_the_half_message_is_not_stored() -> None:
    async with transactions() as (broker, producer, _):
        broker.refusals[SEND] = [(ResponseCode.MESSAGE_ILLEGAL, "bad")]
        with pytest.raises(BrokerError, match="bad"):
            await producer.send_in_transaction(Message("t", b"x"), never)  # type: ignore[arg-type]
        assert not broker.seen(END)


async def test_a_delayed_message_is_refused() -> None:
    async with transactions() as (_, producer, _):
        message = Message("t", b"x", delay_level=1)
        with pytest.raises(IllegalMessageError, match="delayed"):
            await producer.send_in_transaction(message, never)  # type: ignore[arg-type]


async def test_an_undecodable_id_leaves_the_outcome_to_a_check(caplog: Any) -> None:
    async with transactions() as (broker, producer, _):
        result = await producer.send_in_transaction(Message("t", b"x"), lambda _: COMMIT)
        assert result.state is COMMIT
        assert not broker.seen(END)
        assert "will ask" in caplog.text


async def test_cancelling_an_execution_sends_no_outcome() -> None:
    async with transactions() as (broker, producer, _):
        stored(broker)
        begun = asyncio.Event()

        async def execute(half: HalfMessage) -> TransactionState:
            begun.set()
            await asyncio.Event().wait()
            return COMMIT

        task = asyncio.create_task(producer.send_in_transaction(Message("t", b"x"), execute))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not broker.seen(END)


async def test_closing_waits_for_transactions_in_flight() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        broker = cluster.brokers[0]
        stored(broker)
        producer = TransactionProducer(cluster.namesrv, group="g", check=never)
        await producer.start()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def execute(half: HalfMessage) -> TransactionState:
            begun.set()
            await go_on.wait()
            return COMMIT

        sending = asyncio.create_task(producer.send_in_transaction(Message("t", b"x"), execute))
        await begun.wait()
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        assert (await sending).state is COMMIT
        assert (await ends(broker))[0].commit_or_rollback == 8
        await producer.close()


async def test_an_execution_may_close_its_producer() -> None:
    async with transactions() as (broker, producer, _):
        stored(broker)

        async def execute(half: HalfMessage) -> TransactionState:
            await producer.close()
            return COMMIT

        result = await producer.send_in_transaction(Message("t", b"x"), execute)
        assert result.state is COMMIT


# Checks


def question(key: str = "KEY", group: str = "g", offset: int = 9, topic: str = "t") -> Any:
    properties = encode_properties({"UNIQ_KEY": key, "PGROUP": group, "TAGS": "a"})
    record = MessageRecord(
        *(topic, 3, 1, 2, b"half", {}, 0, 0, 1, ("", 0), 2, ("", 0), 0, 0, 0, 0, "", properties)
    )
    header = CheckTransactionStateRequestHeader(offset, 1000 + offset, key, f"TX-{key}")
    return RemotingCommand(
        RequestCode.CHECK_TRANSACTION_STATE,
        ext_fields=header.encode(),
        body=encode_record(record, HOST, HOST),
        flag=FLAG_ONEWAY,
    )


async def ask(broker: FakeBroker, producer: TransactionProducer, **values: Any) -> None:
    await until(lambda: producer.client_id in broker.clients)
    broker.push(producer.client_id, question(**values))


@pytest.mark.parametrize("state", TransactionState)
async def test_a_check_is_answered(state: TransactionState) -> None:
    asked: list[ReceivedMessage] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return state

    async with transactions(check, topics=["t"]) as (broker, producer, _):
        await ask(broker, producer)
        assert await ends(broker) == [
            EndTransactionRequestHeader("g", 9, 1009, STATES[state], "KEY", True, "TX-KEY")
        ]
        (message,) = asked
        assert (message.body, message.tags, message.msg_id) == (b"half", "a", "KEY")
        assert message.queue == MessageQueue("t", "b0", 3)


async def test_names_in_a_namespace() -> None:
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return COMMIT

    async with transactions(check, topics=["t"], namespace="ns") as (broker, producer, _):
        await ask(broker, producer, group="ns%g", topic="ns%t")
        assert (await ends(broker))[0].producer_group == "ns%g"
        assert asked[0].topic == "t"


async def test_a_failed_check_answers_unknown(caplog: Any) -> None:
    def check(message: ReceivedMessage) -> TransactionState:
        raise OSError("database gone")

    async with transactions(check, topics=["t"]) as (broker, producer, _):
        await ask(broker, producer)
        assert (await ends(broker))[0].commit_or_rollback == 0
        assert "database gone" in (broker.seen(END)[0].remark or "")
        assert "check of transaction KEY failed" in caplog.text


async def test_checks_of_other_groups_are_ignored(caplog: Any) -> None:
    async with transactions(lambda _: COMMIT, topics=["t"]) as (broker, producer, _):
        await ask(broker, producer, group="other")
        await ask(broker, producer, key="MINE")
        assert [end.msg_id for end in await ends(broker)] == ["MINE"]
        assert "group other is not ours" in caplog.text


async def test_only_the_latest_check_of_a_message_is_answered() -> None:
    go_on, begun = asyncio.Event(), asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        begun.set()
        await go_on.wait()
        return COMMIT

    async with transactions(check, topics=["t"]) as (broker, producer, _):
        await ask(broker, producer, offset=9)
        await begun.wait()
        await ask(broker, producer, offset=10)
        await until(lambda: producer._asked["KEY"].header.tran_state_table_offset == 10)
        go_on.set()
        assert [end.tran_state_table_offset for end in await ends(broker)] == [10]
        await ask(broker, producer, offset=11)
        assert [end.tran_state_table_offset for end in await ends(broker, 2)] == [10, 11]


async def test_checks_are_bounded() -> None:
    running: set[str] = set()
    most = 0
    go_on = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        nonlocal most
        running.add(message.msg_id)
        most = max(most, len(running))
        await go_on.wait()
        running.discard(message.msg_id)
        return COMMIT

    async with transactions(check, topics=["t"], max_checks=2) as (broker, producer, _):
        for number in range(6):
            await ask(broker, producer, key=f"KEY-{number}")
        await until(lambda: len(producer._asked) == 6 and len(running) == 2)
        go_on.set()
        assert len(await ends(broker, 6)) == 6
        assert most == 2


async def test_a_producer_closes_despite_a_hanging_check(monkeypatch: Any) -> None:
    monkeypatch.setattr("pyromq.client.producer.transaction._CLOSE_SECONDS", 0.05)
    begun = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        begun.set()
        await asyncio.Event().wait()
        return COMMIT

    async with transactions(check, topics=["t"]) as (broker, producer, _):
        await ask(broker, producer)
        await begun.wait()
    assert not broker.seen(END)


async def test_finding_brokers_is_retried(
    monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("pyromq.client.producer.transaction._MIN_BACKOFF_SECONDS", 0.01)
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        broker = cluster.brokers[0]
        broker.refusals[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [(ResponseCode.SYSTEM_BUSY, "no")] * 3
        async with TransactionProducer(
            cluster.namesrv, group="g", check=never, topics=["t"]
        ) as producer:
            await until(lambda: producer.client_id in broker.clients)
        assert "finding the brokers" in caplog.text


async def test_hooks_see_the_outcome() -> None:
    class Hook:
        def __init__(self) -> None:
            self.seen: list[EndingTransaction] = []

        def end_transaction(self, ending: EndingTransaction) -> None:
            self.seen.append(ending)
            raise ValueError("a hook may fail")

    hook = Hook()
    async with transactions(lambda _: ROLLBACK, topics=["t"], hooks=[hook]) as (
        broker,
        producer,
        _,
    ):
        stored(broker)
        result = await producer.send_in_transaction(Message("t", b"x"), lambda _: COMMIT)
        await ask(broker, producer)
        await ends(broker, 2)
        first, second = hook.seen
        assert (first.msg_id, first.state, first.is_checked) == (result.msg_id, COMMIT, False)
        assert (first.group, first.address) == ("g", broker.address)
        assert (second.msg_id, second.state, second.is_checked) == ("KEY", ROLLBACK, True)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(OptionError, match="check="):
        TransactionProducer("127.0.0.1:1", group="g", check=None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="max_checks"):
        TransactionProducer("127.0.0.1:1", group="g", check=never, max_checks=0)
    with pytest.raises(OptionError, match="topics"):
        TransactionProducer("127.0.0.1:1", group="g", check=never, topics="t")
    with pytest.raises(IllegalMessageError):
        TransactionProducer("127.0.0.1:1", group="g", check=never, topics=["no topic"])
