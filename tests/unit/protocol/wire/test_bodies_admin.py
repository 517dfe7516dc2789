"""Bodies of administration: as Java writes and reads them."""

from __future__ import annotations

import json

import pytest

from pyromq.protocol.wire.bodies import BodyError, ConsumeType, MessageQueue
from pyromq.protocol.wire.bodies_admin import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    OffsetWrapper,
    ProducerInfo,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
)
from pyromq.protocol.wire.codes import LanguageCode

QUEUE = MessageQueue("T", "broker-a", 3)


def test_queues_are_keys_as_fastjson_writes_them() -> None:
    body = ResetOffsetBody({QUEUE: 7})
    assert body.encode() == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"T"}:7}}'
    )
    assert ResetOffsetBody.decode(body.encode()) == body


def test_numbers_are_keys_as_fastjson_writes_them() -> None:
    body = QueryCorrectionOffsetBody({0: 7, 12: (1 << 63) - 1})
    assert body.encode() == b'{"correctionOffsets":{0:7,12:9223372036854775807}}'
    assert QueryCorrectionOffsetBody.decode(body.encode()) == body


def test_names_of_enums() -> None:
    body = ConsumerConnection(
        [Connection("id", "127.0.0.1:5", LanguageCode.CPP, 395)],
        consume_type=ConsumeType.CONSUME_PASSIVELY,
    )
    assert json.loads(body.encode()) == {
        "connectionSet": [
            {"clientAddr": "127.0.0.1:5", "clientId": "id", "language": "CPP", "version": 395}
        ],
        "consumeType": "CONSUME_PASSIVELY",
        "subscriptionTable": {},
    }
    assert ConsumerConnection.decode(body.encode()) == body


def test_a_wire_name_that_is_out_of_the_ordinary() -> None:
    assert json.loads(ProducerInfo("id", "/127.0.0.1:5").encode())["remoteIP"] == "/127.0.0.1:5"


def test_what_is_not_read_yet() -> None:
    stats = ConsumeStats(
        {QUEUE: OffsetWrapper(10, 7), MessageQueue("T", "broker-a", 4): OffsetWrapper(5, 5)}, 1.5
    )
    assert stats.total_diff() == 3
    every = ConsumeStatsList([{"g": [stats]}], "127.0.0.1:10911", 3)
    assert ConsumeStatsList.decode(every.encode()) == every


def test_a_client_s_status() -> None:
    data = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":3,"topic":"T"}:9}}'
    assert GetConsumerStatusBody.decode(data).message_queue_table == {QUEUE: 9}
    with pytest.raises(BodyError):
        GetConsumerStatusBody.decode(b'{"messageQueueTable":{"x":9}}')
