"""Helpers for tests of sends."""

from __future__ import annotations

from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding
from tests.support.requests import send_request
from tests.unit.broker.assembled import AssembledBroker

SINGLE = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
ALL_FORMS = (*SINGLE, RequestCode.SEND_BATCH_MESSAGE)
BOTH_ENCODINGS = (Encoding.JSON, Encoding.ROCKETMQ)
ALL_PATHS = ("fast", "hot", "slow")
MIB = 1024 * 1024
CLUSTER = b"CLUSTER\x01DefaultCluster"


def warm(broker: AssembledBroker, topic: str = "T", queue_id: int = 1) -> None:
    """Let the next messages to a queue take the hot path."""
    answer = broker.fast.ask(send_request(topic=topic, queueId=str(queue_id), body=b"first"))
    assert answer.code == ResponseCode.SUCCESS


def body_for(code: RequestCode, body: bytes = b"body", properties: bytes = b"") -> bytes:
    return encode_inner_message(body, properties, 7) if code == ALL_FORMS[2] else body


def inner_batch(count: int = 3) -> bytes:
    return b"".join(
        encode_inner_message(b"body %d" % number, b"K\x01%d" % number, number)
        for number in range(count)
    )
