from __future__ import annotations

import orjson
import pytest

from pyromq.broker.handlers.locks import LockHandlers
from pyromq.broker.state.queue_locks import QueueLockTable
from pyromq.protocol.bodies import LockBatchResponseBody, MessageQueue
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.fastjson import BodyError
from pyromq.protocol.frame import RemotingCommand
from tests.unit.broker.fakes import FakeConnection

QUEUE = {"brokerName": "broker-a", "queueId": 3, "topic": "t"}


@pytest.fixture
def handlers() -> LockHandlers:
    return LockHandlers(QueueLockTable())


def request(code: RequestCode, client_id: str, *queues: object) -> RemotingCommand:
    """As Java's client writes it."""
    body = {"clientId": client_id, "consumerGroup": "g", "mqSet": queues}
    return RemotingCommand(code, opaque=9, body=orjson.dumps(body))


def lock(handlers: LockHandlers, client_id: str, *queues: object) -> set[MessageQueue]:
    answer = handlers.lock_queues(
        FakeConnection(), request(RequestCode.LOCK_BATCH_MQ, client_id, *queues)
    )
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 9)
    assert list(orjson.loads(answer.body)) == ["lockOKMQSet"]
    return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set


def test_one_client_at_a_time_has_a_queue(handlers: LockHandlers) -> None:
    assert lock(handlers, "c1", QUEUE) == {MessageQueue("t", "broker-a", 3)}
    assert lock(handlers, "c2", QUEUE) == set()
    answer = handlers.unlock_queues(
        FakeConnection(), request(RequestCode.UNLOCK_BATCH_MQ, "c1", QUEUE)
    )
    assert (answer.code, answer.opaque, answer.body) == (ResponseCode.SUCCESS, 9, b"")
    assert lock(handlers, "c2", QUEUE) == {MessageQueue("t", "broker-a", 3)}


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
