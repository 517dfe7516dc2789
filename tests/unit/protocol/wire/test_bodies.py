"""The JSON texts here are what RocketMQ 4.9.7 itself writes for the same values."""

from __future__ import annotations

import struct
import zlib

import pytest

from pyromq.protocol.wire import bodies
from pyromq.protocol.wire.bodies import (
    Body,
    BodyError,
    BrokerData,
    ClusterInfo,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerOffsetSerializeWrapper,
    ConsumeType,
    DataVersion,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    MessageQueue,
    ProducerData,
    QueueData,
    RegisterBrokerBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
    TopicList,
    TopicRouteData,
    UnlockBatchRequestBody,
)

BROKER = BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:10911", 1: "127.0.0.2:10911"})
QUEUES = QueueData("broker-a", read_queue_nums=8, write_queue_nums=4, perm=6, topic_sys_flag=1)
VERSION = DataVersion(timestamp=1700000000000, counter=7)
REGISTRATION = RegisterBrokerBody(
    TopicConfigSerializeWrapper({"Topicä": TopicConfig("Topicä", 8, 4, 6)}, VERSION), ["f:1"]
)

JAVA = [
    (
        TopicRouteData([QUEUES], [BROKER], {"127.0.0.1:10911": ["f:1"]}),
        (
            '{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.2:10911"},'
            '"brokerName":"broker-a","cluster":"DefaultCluster"}],'
            '"filterServerTable":{"127.0.0.1:10911":["f:1"]},'
            '"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":1,'
            '"writeQueueNums":4}]}'
        ),
    ),
    (
        ClusterInfo({"broker-a": BROKER}, {"DefaultCluster": {"broker-a"}}),
        (
            '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.2:10911"},'
            '"brokerName":"broker-a","cluster":"DefaultCluster"}},'
            '"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
        ),
    ),
    (TopicList({"t"}), '{"topicList":["t"]}'),
    (KVTable({"k": "v"}), '{"table":{"k":"v"}}'),
    (
        REGISTRATION,
        (
            '{"filterServerList":["f:1"],"topicConfigSerializeWrapper":{"dataVersion":{"counter":7,'
            '"timestamp":1700000000000},"topicConfigTable":{"Topicä":{"order":false,"perm":6,'
            '"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"Topicä","topicSysFlag":0,'
            '"writeQueueNums":4}}}}'
        ),
    ),
    (
        HeartbeatData(
            "127.0.0.1@1",
            [ProducerData("pg")],
            [
                ConsumerData(
                    "cg",
                    ConsumeType.CONSUME_PASSIVELY,
                    MessageModel.CLUSTERING,
                    ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                    [SubscriptionData("t", "a || b", {"a", "b"}, {97, 98}, 5)],
                )
            ],
        ),
        (
            '{"clientID":"127.0.0.1@1","consumerDataSet":[{'
            '"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY",'
            '"groupName":"cg","messageModel":"CLUSTERING","subscriptionDataSet":['
            '{"classFilterMode":false,"codeSet":[97,98],"expressionType":"TAG",'
            '"subString":"a || b","subVersion":5,"tagsSet":["a","b"],"topic":"t"}],'
            '"unitMode":false}],"producerDataSet":[{"groupName":"pg"}]}'
        ),
    ),
    (
        SubscriptionGroupWrapper({"g": SubscriptionGroupConfig("g")}, VERSION),
        (
            '{"dataVersion":{"counter":7,"timestamp":1700000000000},"subscriptionGroupTable":{"g":'
            '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
            '"consumeFromMinEnable":true,"groupName":"g","notifyConsumerIdsChangedEnable":true,'
            '"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}'
        ),
    ),
    (
        ConsumerOffsetSerializeWrapper({"t@g": {0: 10, 1: 3}}),
        '{"offsetTable":{"t@g":{0:10,1:3}}}',
    ),
    (
        LockBatchRequestBody("g", "c", {MessageQueue("t", "b", 0)}),
        '{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"t"}]}',
    ),
    (
        UnlockBatchRequestBody("g", "c", {MessageQueue("t", "b", 0)}),
        '{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"t"}]}',
    ),
    (
        LockBatchResponseBody({MessageQueue("t", "b", 0)}),
        '{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"t"}]}',
    ),
    (GetConsumerListByGroupResponseBody(["a", "b"]), '{"consumerIdList":["a","b"]}'),
]


@pytest.mark.parametrize(("body", "text"), JAVA, ids=lambda item: type(item).__name__)
def test_bodies_are_written_and_read_as_java_does(body: Body, text: str) -> None:
    assert body.encode().decode() == text
    assert type(body).decode(text.encode()) == body
    assert type(body).decode(body.encode(standard_json=True)) == body


def test_route_in_standard_json() -> None:
    route = TopicRouteData([QUEUES], [BROKER], {}, order_topic_conf="broker-a:4")
    text = route.encode(standard_json=True)
    assert b'"brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.2:10911"}' in text
    assert b'"orderTopicConf":"broker-a:4"' in text


def test_java_defaults_of_absent_fields() -> None:
    assert TopicConfig.decode(b'{"topicName":"t"}') == TopicConfig(
        "t", 16, 16, 6, TopicFilterType.SINGLE_TAG, 0, False
    )
    assert SubscriptionData.decode(b'{"topic":"t"}').expression_type == "TAG"


def test_data_version_changes_with_every_step() -> None:
    assert DataVersion(1700000000000, 7) == VERSION
    assert DataVersion(1700000000000, 8) != VERSION
    assert VERSION.next(1700000000005) == DataVersion(1700000000005, 8)


def test_message_queues_sort_as_java_sorts_them() -> None:
    first, second = MessageQueue("a", "b", 10), MessageQueue("a", "c", 2)
    assert sorted([MessageQueue("b", "a", 0), second, first]) == [
        first, second, MessageQueue("b", "a", 0)
    ]  # fmt: skip


def test_a_heartbeat_as_the_c_client_sends_it() -> None:
    heartbeat = HeartbeatData.decode(
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"g","messageModel":1,"subscriptionDataSet":[{"codeSet":["97"],'
        b'"subString":"a","subVersion":"17","tagsSet":["a"],"topic":"t"}]}],"producerDataSet":[]}'
    )
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    (subscription,) = consumer.subscription_data_set
    assert (subscription.sub_version, subscription.code_set) == (17, {97})


#: REGISTRATION, compressed by RocketMQ 4.9.7.
JAVA_COMPRESSED = bytes.fromhex(
    "78da63606050af564ace2fcd2b492d52b232d7512ac9cc4d2d2e49cc2d50b232343740805a06060646209608c9"
    "2fc84c3ebc44c142c144c14c21d8d3cfddc7353ec4d11d28c71ead946665a8140b00c660153d"
)


def test_compressed_registration_both_ways() -> None:
    assert RegisterBrokerBody.decode(JAVA_COMPRESSED, compressed=True) == REGISTRATION
    # The deflater may choose other bytes; what they hold must be the same, byte for byte.
    ours = REGISTRATION.encode(compress=True)
    assert zlib.decompress(ours) == zlib.decompress(JAVA_COMPRESSED)


def test_compressed_registration_without_topics() -> None:
    empty = RegisterBrokerBody()
    assert RegisterBrokerBody.decode(empty.encode(compress=True), compressed=True) == empty


def registration(*parts: bytes | int) -> bytes:
    pieces = (
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part
        for part in parts
    )
    return zlib.compress(b"".join(pieces))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated at byte 0"),
        (b"not zlib", "cannot be decompressed"),
        (JAVA_COMPRESSED[:-40], "RegisterBrokerBody"),
        (registration(-1), "a section of -1 bytes"),
        (registration(1000), "ends inside a section of 1000 bytes"),
        (registration(b"{}"), "truncated"),
        (registration(b"[]", 0, b"[]"), "DataVersion is not a JSON object"),
        (registration(b"{}", 2**31 - 1), "truncated"),
        (registration(b"{}", -5, b"[]"), "a section of -5 bytes"),
        (registration(b"{}", 1, b"t 1 2 6", b"[]"), "five words"),
        (registration(b"{}", 1, b" 1 2 6 SINGLE_TAG", b"[]"), "five words"),
        (registration(b"{}", 1, b"t x 2 6 SINGLE_TAG", b"[]"), "'x' is not a number"),
        (registration(b"{}", 1, b"t 99999999999 2 6 SINGLE_TAG", b"[]"), "out of range"),
        (registration(b"{}", 1, b"t 1 2 6 OTHER", b"[]"), "unknown topic filter type"),
        (registration(b"{}", 1, b"\xff 1 2 6 SINGLE_TAG", b"[]"), "not UTF-8"),
        (registration(b"{}", 0, b"{}"), "filterServerList"),
        (registration(b"{}", 0, b"[1]"), "filterServerList"),
    ],
)
def test_broken_compressed_registrations(data: bytes, message: str) -> None:
    with pytest.raises(BodyError, match=message):
        RegisterBrokerBody.decode(data, compressed=True)


def test_a_registration_cannot_decompress_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_REGISTRATION", 1000)
    with pytest.raises(BodyError, match="more than 1000 bytes"):
        RegisterBrokerBody.decode(zlib.compress(b"\0" * 100_000), compressed=True)
