"""Bodies of admin requests, as Java writes and reads them."""

from __future__ import annotations

import json

import pytest

from pyromq.protocol.wire.bodies import BodyError, ConsumeType, MessageQueue
from pyromq.protocol.wire.bodies_admin import (
    BrokerStatsData,
    BrokerStatsItem,
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
#: A response of RocketMQ 4.9.7.
STATS = (
    b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},'
    b'"statsHour":{"avgpt":1.0,"sum":3,"tps":0.005},'
    b'"statsMinute":{"avgpt":1.5,"sum":3,"tps":0.3}}'
)


def test_queues_as_keys_in_fastjson_form() -> None:
    body = ResetOffsetBody({QUEUE: 7})
    assert body.encode() == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"T"}:7}}'
    )
    assert ResetOffsetBody.decode(body.encode()) == body


def test_numbers_as_keys_in_fastjson_form() -> None:
    body = QueryCorrectionOffsetBody({0: 7, 12: (1 << 63) - 1})
    assert body.encode() == b'{"correctionOffsets":{0:7,12:9223372036854775807}}'
    assert QueryCorrectionOffsetBody.decode(body.encode()) == body


def test_enums_are_written_by_name() -> None:
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


def test_irregular_wire_name() -> None:
    assert json.loads(ProducerInfo("id", "/127.0.0.1:5").encode())["remoteIP"] == "/127.0.0.1:5"


def test_lag() -> None:
    stats = ConsumeStats(
        {QUEUE: OffsetWrapper(10, 7), MessageQueue("T", "broker-a", 4): OffsetWrapper(5, 5)}, 1.5
    )
    assert stats.total_diff() == 3
    every = ConsumeStatsList([{"g": [stats]}], "127.0.0.1:10911", 3)
    assert ConsumeStatsList.decode(every.encode()) == every


def test_offsets_of_a_client() -> None:
    data = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":3,"topic":"T"}:9}}'
    assert GetConsumerStatusBody.decode(data).message_queue_table == {QUEUE: 9}
    with pytest.raises(BodyError):
        GetConsumerStatusBody.decode(b'{"messageQueueTable":{"x":9}}')


def test_statistics_are_written_as_java_writes_them() -> None:
    data = BrokerStatsData(BrokerStatsItem(3, 0.3, 1.5), BrokerStatsItem(3, 0.005, 1.0))

    assert data.encode() == STATS
    assert BrokerStatsData.decode(STATS) == data


def test_statistics_accept_integers_and_numeric_strings_only() -> None:
    assert BrokerStatsItem.decode(b'{"sum":1,"tps":2,"avgpt":"2.5"}') == BrokerStatsItem(
        1, 2.0, 2.5
    )
    for wrong in (b"true", b'"much"', b"[]", b"{}"):
        with pytest.raises(BodyError, match="tps"):
            BrokerStatsItem.decode(b'{"tps":' + wrong + b"}")
