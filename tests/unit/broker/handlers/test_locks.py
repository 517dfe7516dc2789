from __future__ import annotations

import asyncio
import dataclasses

import orjson
import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.locks import LockHandlers
from pyromq.broker.services.flow_control import Lanes
from pyromq.broker.state.queue_locks import QueueLockTable
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.wire.bodies import (
    LOCK_ENDS_WITH_CONNECTION,
    LockBatchResponseBody,
    MessageQueue,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from tests.unit.broker.fakes import FakeConnection

QUEUE = {"brokerName": "broker-a", "queueId": 3, "topic": "t"}


CONFIG = BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")


@pytest.fixture
def handlers() -> LockHandlers:
    return LockHandlers(CONFIG, QueueLockTable(), Lanes(CONFIG).heartbeat)


def request(code: RequestCode, client_id: str, *queues: object) -> RemotingCommand:
    """Return a request as Java's client writes it."""
    body = {"clientId": client_id, "consumerGroup": "g", "mqSet": queues}
    return RemotingCommand(code, opaque=9, body=orjson.dumps(body))


def lock(handlers: LockHandlers, client_id: str, *queues: object) -> set[MessageQueue]:
    answer = handlers.lock_queues(
        FakeConnection(), request(RequestCode.LOCK_BATCH_MQ, client_id, *queues)
    )
    assert isinstance(answer, RemotingCommand)
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 9)
    assert list(orjson.loads(answer.body)) == ["lockOKMQSet"]
    return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set


def test_one_client_at_a_time_holds_a_queue(handlers: LockHandlers) -> None:
    assert lock(handlers, "c1", QUEUE) == {MessageQueue("t", "broker-a", 3)}
    assert lock(handlers, "c2", QUEUE) == set()
    answer = handlers.unlock_queues(
        FakeConnection(), request(RequestCode.UNLOCK_BATCH_MQ, "c1", QUEUE)
    )
    assert isinstance(answer, RemotingCommand)
    assert (answer.code, answer.opaque, answer.body) == (ResponseCode.SUCCESS, 9, b"")
    assert lock(handlers, "c2", QUEUE) == {MessageQueue("t", "broker-a", 3)}


@pytest.mark.parametrize("count", [1, 2000])
async def test_locks_end_with_their_connection_on_request(
    handlers: LockHandlers, count: int
) -> None:
    queues = [
        {"brokerName": "broker-a", "queueId": number, "topic": "t"} for number in range(count)
    ]

    async def lock_on(connection: FakeConnection, client_id: str) -> int:
        command = request(RequestCode.LOCK_BATCH_MQ, client_id, *queues)
        command.ext_fields = {LOCK_ENDS_WITH_CONNECTION: "true"}
        answer = handlers.lock_queues(connection, command)
        done = answer if isinstance(answer, RemotingCommand) else await answer
        return len(LockBatchResponseBody.decode(done.body).lock_ok_mq_set)

    first, second = FakeConnection(), FakeConnection()
    assert await lock_on(first, "c1") == count
    assert await lock_on(second, "c2") == 0
    first.close()
    assert await lock_on(second, "c2") == count


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"clientId":"c"}',
        b'{"consumerGroup":"g","mqSet":[]}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"t"}]}',
        b'{"clientId":"c","consumerGroup":"g","mqSet":3}',
    ],
)
def test_bad_requests_are_errors(handlers: LockHandlers, body: bytes) -> None:
    command = RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body)
    with pytest.raises(BodyError):
        handlers.lock_queues(FakeConnection(), command)
    with pytest.raises(BodyError):
        handlers.unlock_queues(FakeConnection(), command)


async def test_many_queues_yield_to_the_loop() -> None:
    lanes, locks = Lanes(CONFIG), QueueLockTable()
    handlers = LockHandlers(CONFIG, locks, lanes.heartbeat)
    queues = [QUEUE | {"queueId": number} for number in range(10_000)]

    async def counts_during(code: RequestCode) -> set[int]:
        handle = (
            handlers.lock_queues if code is RequestCode.LOCK_BATCH_MQ else handlers.unlock_queues
        )
        answering = handle(FakeConnection(), request(code, "c1", *queues))
        assert not isinstance(answering, RemotingCommand)
        answer = asyncio.ensure_future(answering)
        counts = set()
        while not answer.done():
            counts.add(len(locks))
            await asyncio.sleep(0)
        if code is RequestCode.LOCK_BATCH_MQ:
            locked = LockBatchResponseBody.decode(answer.result().body).lock_ok_mq_set
            assert len(locked) == len(queues)
        return counts

    assert await counts_during(RequestCode.LOCK_BATCH_MQ) >= {0, 2000, 4000, 6000, 8000}
    assert len(locks) == 10_000
    assert await counts_during(RequestCode.UNLOCK_BATCH_MQ) >= {10_000, 8000, 6000, 4000, 2000}
    assert len(locks) == 0
    await lanes.stop()


def test_a_request_names_a_limited_number_of_queues() -> None:
    config = dataclasses.replace(CONFIG, max_queues_per_lock_request=3)
    locks = QueueLockTable()
    handlers = LockHandlers(config, locks, Lanes(config).heartbeat)
    queues = [QUEUE | {"queueId": number} for number in range(4)]
    lock(handlers, "c1", *queues[:3])
    for code, handle in (
        (RequestCode.LOCK_BATCH_MQ, handlers.lock_queues),
        (RequestCode.UNLOCK_BATCH_MQ, handlers.unlock_queues),
    ):
        with pytest.raises(RequestError, match=r"4 queues, limit 3 \(maxQueuesPerLockRequest\)"):
            handle(FakeConnection(), request(code, "c1", *queues))
        with pytest.raises(RequestError, match="a name has more than 1024 characters"):
            handle(FakeConnection(), request(code, "c1", QUEUE | {"topic": "t" * 2000}))
    assert len(locks) == 3
