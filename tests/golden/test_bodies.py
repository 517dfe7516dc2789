"""JSON bodies of Java's fastjson decode to typed values, and encode back to equal JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from pyromq.protocol.java.fastjson import parse_json
from pyromq.protocol.wire import bodies
from pyromq.protocol.wire.body_codec import Body
from tests.golden.golden_data import Entry, read_index

BODIES: dict[str, Entry] = read_index("bodies")
TIMESTAMP = 1_700_000_000_000

VERSION = bodies.DataVersion(timestamp=TIMESTAMP, counter=42)
TOPIC_CONFIGS = bodies.TopicConfigSerializeWrapper(
    topic_config_table={
        "GoldenTopic": bodies.TopicConfig(
            topic_name="GoldenTopic",
            read_queue_nums=8,
            write_queue_nums=4,
            perm=6,
            topic_sys_flag=2,
            order=True,
        ),
        "TBW102": bodies.TopicConfig(
            topic_name="TBW102", read_queue_nums=8, write_queue_nums=8, perm=7
        ),
    },
    data_version=VERSION,
)
BROKER_A = bodies.BrokerData(
    cluster="DefaultCluster",
    broker_name="broker-a",
    broker_addrs={0: "127.0.0.1:10911", 1: "127.0.0.2:10911"},
)
ROUTE = bodies.TopicRouteData(
    queue_datas=[
        bodies.QueueData("broker-a", 8, 4, 6, 0),
        bodies.QueueData("broker-b", 16, 16, 4, 1),
    ],
    broker_datas=[
        BROKER_A,
        bodies.BrokerData("DefaultCluster", "broker-b", {0: "[::1]:10911"}),
    ],
)
MESSAGE_QUEUES = {
    bodies.MessageQueue(topic="GoldenTopic", broker_name="broker-a", queue_id=0),
    bodies.MessageQueue(topic="GoldenTopic", broker_name="broker-b", queue_id=3),
}

#: The values that Java encoded, as ours.
EXPECTED: dict[str, Body] = {
    "TopicRouteData": ROUTE,
    "TopicRouteData-ordered": dataclasses.replace(
        ROUTE,
        order_topic_conf="broker-a:4;broker-b:16",
        filter_server_table={"127.0.0.1:10911": ["127.0.0.1:30000"]},
    ),
    "ClusterInfo": bodies.ClusterInfo(
        broker_addr_table={"broker-a": BROKER_A},
        cluster_addr_table={"DefaultCluster": {"broker-a"}},
    ),
    "HeartbeatData": bodies.HeartbeatData(
        client_id="127.0.0.1@4711",
        producer_data_set=[bodies.ProducerData("golden_producer")],
        consumer_data_set=[
            bodies.ConsumerData(
                group_name="golden_consumer",
                consume_type=bodies.ConsumeType.CONSUME_PASSIVELY,
                message_model=bodies.MessageModel.CLUSTERING,
                consume_from_where=bodies.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                subscription_data_set=[
                    bodies.SubscriptionData(
                        topic="GoldenTopic",
                        sub_string="tag-ä || b",
                        tags_set={"tag-ä", "b"},
                        code_set={110118769, 98},
                        sub_version=TIMESTAMP,
                    )
                ],
            )
        ],
    ),
    "TopicConfigSerializeWrapper": TOPIC_CONFIGS,
    "RegisterBrokerBody": bodies.RegisterBrokerBody(
        topic_config_serialize_wrapper=TOPIC_CONFIGS,
        filter_server_list=["127.0.0.1:30000", "127.0.0.1:30001"],
    ),
    "RegisterBrokerBody-empty": bodies.RegisterBrokerBody(
        topic_config_serialize_wrapper=bodies.TopicConfigSerializeWrapper(
            data_version=bodies.DataVersion(timestamp=TIMESTAMP, counter=0)
        )
    ),
    "KVTable": bodies.KVTable(
        table={
            "brokerVersionDesc": "V4_9_7",
            "größe": "äöü 消息 🚀 \"'\\/<>&",
            "empty": "",
        }
    ),
    "TopicList": bodies.TopicList(topic_list={"TopicA", "%RETRY%group"}),
    "SubscriptionGroupWrapper": bodies.SubscriptionGroupWrapper(
        subscription_group_table={
            "plain": bodies.SubscriptionGroupConfig(group_name="plain"),
            "changed": bodies.SubscriptionGroupConfig(
                group_name="changed",
                consume_enable=False,
                consume_from_min_enable=False,
                consume_broadcast_enable=False,
                retry_queue_nums=2,
                retry_max_times=3,
                broker_id=4,
                which_broker_when_consume_slowly=5,
                notify_consumer_ids_changed_enable=False,
            ),
        },
        data_version=VERSION,
    ),
    "ConsumerOffsetSerializeWrapper": bodies.ConsumerOffsetSerializeWrapper(
        offset_table={
            "GoldenTopic@golden_consumer": {0: 10, 1: 1 << 40},
            "Other@golden_consumer": {7: 0},
        }
    ),
    "LockBatchRequestBody": bodies.LockBatchRequestBody(
        consumer_group="golden_consumer", client_id="127.0.0.1@1", mq_set=MESSAGE_QUEUES
    ),
    "LockBatchResponseBody": bodies.LockBatchResponseBody(lock_ok_mq_set=MESSAGE_QUEUES),
    "UnlockBatchRequestBody": bodies.UnlockBatchRequestBody(
        consumer_group="golden_consumer", client_id="127.0.0.1@1", mq_set=MESSAGE_QUEUES
    ),
    "GetConsumerListByGroupResponseBody": bodies.GetConsumerListByGroupResponseBody(
        consumer_id_list=["127.0.0.1@1", "127.0.0.1@2"]
    ),
    "DataVersion": VERSION,
}

#: Bodies without a class, which only the generic parser reads.
UNTYPED = {"ConsumeStats", "TopicStatsTable"}

typed = pytest.mark.parametrize("name", EXPECTED)


def test_every_golden_body_is_tested() -> None:
    assert set(EXPECTED) | UNTYPED == set(BODIES)


@typed
@pytest.mark.parametrize("form", ["text", "standard"])
def test_decodes_to_the_values_that_went_in(name: str, form: str) -> None:
    expected = EXPECTED[name]
    decoded = type(expected).decode(BODIES[name][form].encode())
    assert plain(decoded) == plain(expected)


@typed
def test_encodes_as_fastjson(name: str) -> None:
    encoded = EXPECTED[name].encode()
    golden = BODIES[name]["text"].encode()
    assert plain(parse_json(encoded)) == plain(parse_json(golden))
    # 4.9 clients depend on which keys are quoted.
    assert (b"{0:" in encoded) == (b"{0:" in golden)
    assert (b'{"0":' in encoded) == (b'{"0":' in golden)


@typed
def test_encodes_standard_json_when_asked(name: str) -> None:
    encoded = EXPECTED[name].encode(standard_json=True)
    assert plain(json.loads(encoded)) == plain(json.loads(BODIES[name]["standard"]))


@pytest.mark.parametrize("compressed", [False, True])
def test_registration_in_both_forms(compressed: bool) -> None:
    """Decode a registration that Java encoded, plain and compressed.

    The compressed form has one line per topic, without system flag and order.
    """
    name = f"register-broker{'-compressed' if compressed else ''}-json"
    (entry,) = (entry for entry in read_index("frames") if entry["name"] == name)
    topics = dict(TOPIC_CONFIGS.topic_config_table)
    if compressed:
        topics["GoldenTopic"] = dataclasses.replace(
            topics["GoldenTopic"], topic_sys_flag=0, order=False
        )
    expected = bodies.RegisterBrokerBody(
        topic_config_serialize_wrapper=bodies.TopicConfigSerializeWrapper(topics, VERSION),
        filter_server_list=["127.0.0.1:30000"],
    )
    decode = bodies.RegisterBrokerBody.decode
    assert decode(bytes.fromhex(entry["body"]), compressed=compressed) == expected
    assert decode(expected.encode(compress=compressed), compressed=compressed) == expected


@pytest.mark.parametrize("name", sorted(UNTYPED))
def test_reads_maps_keyed_by_queues(name: str) -> None:
    table = parse_json(BODIES[name]["text"].encode())["offsetTable"]
    assert len(table) == BODIES[name]["text"].count("queueId")
    for value in table.values():
        assert TIMESTAMP in value.values()


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries; sort lists and sets, because Java keeps no order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return sorted((plain(inner) for inner in value), key=repr)
    return value
