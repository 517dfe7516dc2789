from __future__ import annotations

import pytest

from pyromq.acl import classification as access
from pyromq.acl.classification import (
    COMPATIBLE_ADMIN,
    Need,
    allowed_heartbeat,
    compatible_needs,
    strict_need,
    strictly_allows,
)
from pyromq.acl.rules import Account, Permission, group_resource
from pyromq.protocol.wire.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from pyromq.protocol.wire.codes import RequestCode

PUB, SUB, ANY = Permission.PUB, Permission.SUB, Permission.ANY


def group(name: str) -> Need:
    return Need(group_resource(name), SUB)


def heartbeat(*consumers: ConsumerData, producers: int = 0) -> bytes:
    names = [ProducerData(f"p{number}") for number in range(producers)]
    return HeartbeatData("client", names, list(consumers)).encode()


def consumer(name: str, *topics: str) -> ConsumerData:
    return ConsumerData(name, subscription_data_set=[SubscriptionData(each) for each in topics])


OFFSET = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "5"}


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "t", "group": "g"}, [Need("t", PUB)]),
        (RequestCode.SEND_MESSAGE, {"topic": "%RETRY%x", "group": "g"}, [group("g")]),
        (RequestCode.SEND_MESSAGE, {}, []),
        (RequestCode.SEND_MESSAGE_V2, {"b": "t", "a": "g"}, [Need("t", PUB)]),
        (RequestCode.SEND_MESSAGE_V2, {"b": "%RETRY%x", "a": "g"}, [group("g")]),
        (RequestCode.SEND_MESSAGE_V2, {"b": "%DLQ%x", "a": "g"}, [Need("%DLQ%x", PUB)]),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g"}, [group("g")]),
        (
            RequestCode.PULL_MESSAGE,
            {"topic": "t", "consumerGroup": "g"},
            [Need("t", SUB), group("g")],
        ),
        (RequestCode.QUERY_MESSAGE, {"topic": "t"}, [Need("t", SUB)]),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"}, [group("g")]),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "g"}, []),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, [group("g")]),
        (RequestCode.UPDATE_CONSUMER_OFFSET, OFFSET, [group("g"), Need("t", SUB)]),
        # What RocketMQ leaves open.
        (RequestCode.SEND_BATCH_MESSAGE, {"b": "t", "a": "g"}, []),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"b": "t", "a": "g"}, []),
        (RequestCode.END_TRANSACTION, {"producerGroup": "g"}, []),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "1"}, []),
        (RequestCode.QUERY_CONSUMER_OFFSET, OFFSET, []),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "t", "group": "g"}, []),
    ],
)
def test_rocketmqs_table(code: int, fields: dict[str, str], expected: list[Need]) -> None:
    assert list(compatible_needs(code, fields, b"")) == expected


def test_rocketmqs_heartbeat_needs_everything() -> None:
    body = heartbeat(consumer("g1", "t1", "t2"), consumer("g2"), producers=1)
    assert list(compatible_needs(RequestCode.HEART_BEAT, {}, body)) == [
        group("g1"),
        Need("t1", SUB),
        Need("t2", SUB),
        group("g2"),
    ]
    with pytest.raises(ValueError, match="JSON"):
        list(compatible_needs(RequestCode.HEART_BEAT, {}, b"nonsense"))


def test_rocketmqs_admin_codes() -> None:
    assert sorted(COMPATIBLE_ADMIN) == [17, 25, 200, 207, 215]


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (access.SEND, {"topic": "t"}, [Need("t", PUB)]),
        (access.SEND, {"topic": "%RETRY%x", "group": "g"}, [group("x")]),
        (access.SEND_V2, {"b": "%DLQ%x", "a": "g"}, [group("x")]),
        (access.REPLY_V2, {"b": "c_REPLY_TOPIC"}, [Need("c_REPLY_TOPIC", PUB)]),
        (access.PULL, {"topic": "%DLQ%x", "consumerGroup": "g"}, [group("x"), group("g")]),
        (access.CONSUMER_OFFSET, OFFSET, [Need("t", SUB), group("g")]),
        (access.QUERY_TOPIC, {"topic": "t"}, [Need("t", SUB)]),
        (access.QUEUE, {"topic": "t"}, [Need("t", ANY)]),
        (access.GROUP, {"consumerGroup": "g"}, [group("g")]),
        (access.GROUP, {}, []),
        (access.SEND_BACK, {"group": "g", "offset": "5"}, [group("g")]),
    ],
)
def test_strict_classes(kind: access.Access, fields: dict[str, str], expected: list[Need]) -> None:
    assert kind.needs is not None
    assert list(kind.needs(fields, b"")) == expected


def test_strict_classes_of_bodies() -> None:
    assert access.LOCKS.needs is not None
    assert access.CLIENT_CONFIG.needs is not None
    queues = {MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)}
    lock = LockBatchRequestBody("g", "c", queues).encode()
    assert list(access.LOCKS.needs({}, lock)) == [group("g"), Need("t", SUB)]
    check = CheckClientRequestBody("c", "g", SubscriptionData("t")).encode()
    assert list(access.CLIENT_CONFIG.needs({}, check)) == [group("g"), Need("t", SUB)]


def test_topics_of_a_group_need_the_group() -> None:
    assert strict_need("%RETRY%ns%g", PUB) == group("ns%g")
    assert strict_need("%DLQ%g", PUB) == group("g")
    assert strict_need("t", PUB) == Need("t", PUB)


@pytest.mark.parametrize(
    ("topic", "permission"),
    [
        ("SCHEDULE_TOPIC_XXXX", SUB),
        ("RMQ_SYS_TRANS_HALF_TOPIC", SUB),
        ("rmq_sys_anything", PUB),
        ("RMQ_SYS_TRACE_TOPIC", SUB),
        ("DefaultCluster_REPLY_TOPIC", SUB),
    ],
)
def test_a_default_never_covers_a_system_topic(topic: str, permission: Permission) -> None:
    both = PUB | SUB
    need = Need(topic, permission)
    assert not strictly_allows(Account("alice_key", "alice_secret", default_topic=both), need)
    named = Account("alice_key", "alice_secret", resources={topic: both})
    assert strictly_allows(named, need)
    assert strictly_allows(Account("admin_key", "admin_secret", is_admin=True), need)


def test_a_default_covers_replies() -> None:
    account = Account("alice_key", "alice_secret", default_topic=PUB)
    assert strictly_allows(account, Need("DefaultCluster_REPLY_TOPIC", PUB))


def test_one_forbidden_topic_does_not_cut_off_the_group() -> None:
    account = Account(
        "alice_key",
        "alice_secret",
        resources={"t1": SUB, group_resource("g1"): SUB, group_resource("g3"): SUB},
    )
    body = heartbeat(consumer("g1", "t1", "%RETRY%g1", "secret"), consumer("g2", "t1"), producers=1)
    result = allowed_heartbeat(account, body)
    decoded = HeartbeatData.decode(result.body)
    assert result.is_useful
    assert set(result.refused) == {Need("secret", SUB), group("g2")}
    (left,) = decoded.consumer_data_set
    assert left.group_name == "g1"
    assert [each.topic for each in left.subscription_data_set] == ["t1", "%RETRY%g1"]
    assert [each.group_name for each in decoded.producer_data_set] == ["p0"]


def test_a_heartbeat_of_nothing_but_forbidden_groups_is_useless() -> None:
    account = Account("alice_key", "alice_secret")
    assert not allowed_heartbeat(account, heartbeat(consumer("g"))).is_useful
    assert allowed_heartbeat(account, heartbeat(producers=1)).is_useful
    assert allowed_heartbeat(account, heartbeat()).is_useful


def test_an_allowed_heartbeat_stays_as_it_is() -> None:
    account = Account("alice_key", "alice_secret", default_topic=SUB, default_group=SUB)
    body = heartbeat(consumer("g", "t"))
    assert allowed_heartbeat(account, body).body is body
