from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.send_back import retry_limit
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.record import MessageRecord
from pyromq.protocol.message.sysflag import COMPRESSED, TRANSACTION_COMMIT, TRANSACTION_PREPARED
from pyromq.protocol.wire.bodies import SubscriptionGroupConfig, TopicConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, Encoding, RemotingCommand
from pyromq.store.config import FlushDiskType
from tests.support.patience import until
from tests.support.requests import BORN, send_request
from tests.unit.broker.assembled import STORE_HOST, AssembledBroker

CONFIG = BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")


@pytest.fixture
def sent_back(broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return group and topic of each message counted as sent back."""
    counted: list[tuple[str, str]] = []
    monkeypatch.setattr(broker.stats, "sent_back", lambda *each: counted.append(each))
    return counted


def send(broker: AssembledBroker, **values: Any) -> MessageRecord:
    """Send a message and return its record."""
    since = broker.store.max_physical_offset
    fields = {"properties": "KEYS\x01k\x02TAGS\x01a", **values}
    assert broker.slow.exchange(send_request(**fields))[0].code == ResponseCode.SUCCESS
    (record,) = broker.records(since)
    return record


def back(
    record: MessageRecord | int,
    *,
    version: int = 407,
    encoding: Encoding = Encoding.JSON,
    oneway: bool = False,
    **fields: str | None,
) -> RemotingCommand:
    """Return a request as Java's consumer sends it."""
    offset = record if isinstance(record, int) else record.physical_offset
    filled: dict[str, str | None] = {
        "offset": str(offset),
        "group": "g",
        "delayLevel": "0",
        "originMsgId": "whatever",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
        **fields,
    }
    return RemotingCommand(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        opaque=11,
        ext_fields={name: value for name, value in filled.items() if value is not None},
        version=version,
        encoding=encoding,
        flag=FLAG_ONEWAY if oneway else 0,
    )


async def ask(broker: AssembledBroker, request: RemotingCommand) -> RemotingCommand:
    """Return the one response, whenever it arrives."""
    answers = broker.fast.exchange(request)
    if not answers:
        await until(lambda: broker.fast.transport.written)
        answers = broker.fast.received()
    (answer,) = answers
    assert answer.opaque == request.opaque
    return answer


async def retried(broker: AssembledBroker, request: RemotingCommand) -> MessageRecord:
    """Send a message back and return the new record."""
    since = broker.store.max_physical_offset
    answer = await ask(broker, request)
    assert (answer.code, answer.remark, answer.ext_fields) == (ResponseCode.SUCCESS, None, {})
    (record,) = broker.records(since)
    return record


# Retries


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_a_message_is_stored_again_for_its_group(
    broker: AssembledBroker, sent_back: list[tuple[str, str]], encoding: Encoding
) -> None:
    original = send(broker, sysFlag=str(COMPRESSED), body=b"compressed")

    again = await retried(broker, back(original, encoding=encoding))

    assert (again.topic, again.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert again.properties == {
        "KEYS": "k",
        "TAGS": "a",
        "CLUSTER": "DefaultCluster",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": original.message_id,
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    assert (again.body, again.flag, again.sys_flag) == (b"compressed", 7, COMPRESSED)
    assert (again.born_timestamp, again.born_host) == (BORN, ("127.0.0.1", 40404))
    assert (again.store_host, again.reconsume_times) == (STORE_HOST, 1)
    assert broker.topics.get("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1, 6)
    assert "%DLQ%g" not in broker.topics
    assert sent_back == [("g", "T")]


async def test_each_retry_waits_longer_and_keeps_its_origin(
    broker: AssembledBroker,
    sent_back: list[tuple[str, str]],
) -> None:
    original = send(broker, reconsumeTimes="4")
    second = await retried(broker, back(original))
    assert (second.properties["DELAY"], second.reconsume_times) == ("7", 5)

    # The delayed delivery stores it in the retry topic.
    delivered = send(
        broker,
        topic="%RETRY%g",
        queueId="0",
        reconsumeTimes="5",
        properties="RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x01first",
    )
    third = await retried(broker, back(delivered))
    assert third.properties["RETRY_TOPIC"] == "T"
    assert third.properties["ORIGIN_MESSAGE_ID"] == "first"
    assert (third.properties["DELAY"], third.reconsume_times) == ("8", 6)
    assert sent_back == [("g", "T"), ("g", "T")]


async def test_the_consumer_may_set_the_delay(broker: AssembledBroker) -> None:
    original = send(broker, reconsumeTimes="4")
    assert (await retried(broker, back(original, delayLevel="2"))).properties["DELAY"] == "2"
    highest = await retried(broker, back(original, delayLevel="99"))
    assert (highest.properties["DELAY"], highest.queue_id) == ("18", 17)


async def test_a_negative_count_of_retries_is_not_delayed(broker: AssembledBroker) -> None:
    original = send(broker, reconsumeTimes="-9")
    again = await retried(broker, back(original))
    assert (again.topic, again.reconsume_times) == ("%RETRY%g", -8)
    assert broker.entries()[0][::3] == ("%RETRY%g", java_hash("a"))


async def test_a_committed_message_can_be_retried(broker: AssembledBroker) -> None:
    original = send(broker, sysFlag=str(TRANSACTION_COMMIT))
    again = await retried(broker, back(original))
    assert (again.topic, again.sys_flag) == ("SCHEDULE_TOPIC_XXXX", TRANSACTION_COMMIT)
    assert again.prepared_transaction_offset == 0


async def test_retries_are_spread_over_the_groups_queues(broker: AssembledBroker) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", retry_queue_nums=2))
    original = send(broker)
    queues = {(await retried(broker, back(original))).properties["REAL_QID"] for _ in range(100)}
    assert queues == {"0", "1"}
    assert broker.topics.get("%RETRY%g") == TopicConfig("%RETRY%g", 2, 2, 6)


async def test_queues_that_the_retry_topic_lacks_are_not_used(broker: AssembledBroker) -> None:
    broker.topics.update(TopicConfig("%RETRY%g", 1, 1, 6))
    broker.groups.update(SubscriptionGroupConfig("g", retry_queue_nums=64))
    original = send(broker)
    for _ in range(20):
        assert (await retried(broker, back(original))).properties["REAL_QID"] == "0"


@pytest.mark.parametrize(("unit_mode", "flag"), [("true", 2), ("false", 0), (None, 0)])
async def test_the_retry_topic_of_a_unit_is_flagged(
    broker: AssembledBroker, unit_mode: str | None, flag: int
) -> None:
    await retried(broker, back(send(broker), unitMode=unit_mode))
    topic = broker.topics.get("%RETRY%g")
    assert topic is not None
    assert topic.topic_sys_flag == flag


# Dead letters


async def test_a_message_becomes_a_dead_letter_after_the_last_retry(
    broker: AssembledBroker,
) -> None:
    original = send(broker, reconsumeTimes="16", properties="DELAY\x010\x02TAGS\x01a")
    again = await retried(broker, back(original))
    assert (again.topic, again.queue_id, again.reconsume_times) == ("%DLQ%g", 0, 17)
    assert again.properties["RETRY_TOPIC"] == "T"
    assert again.properties["ORIGIN_MESSAGE_ID"] == original.message_id
    assert again.properties["DELAY"] == "0"
    assert broker.topics.get("%DLQ%g") == TopicConfig("%DLQ%g", 1, 1, 6)
    assert ("%DLQ%g", 0, 0, java_hash("a")) in broker.entries()
    assert broker.stats.dead_letters == {("g", "T"): 1}


async def test_a_consumer_may_abandon_a_message(broker: AssembledBroker) -> None:
    again = await retried(broker, back(send(broker), delayLevel="-1"))
    assert (again.topic, again.reconsume_times) == ("%DLQ%g", 1)


@pytest.mark.parametrize(
    ("version", "asked_for", "limit"),
    [
        (407, None, 2),
        (407, "5", 5),
        (407, "0", 0),
        (121, "5", 5),
        (120, "5", 2),
    ],
)
async def test_the_limit_of_the_client_or_the_group(
    broker: AssembledBroker, version: int, asked_for: str | None, limit: int
) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", retry_max_times=2))
    for times in range(limit + 2):
        original = send(broker, reconsumeTimes=str(times))
        request = back(original, version=version, maxReconsumeTimes=asked_for)
        again = await retried(broker, request)
        assert (again.topic == "%DLQ%g") == (times >= limit)


def test_the_limit_of_the_group_is_the_default() -> None:
    group = SubscriptionGroupConfig("g", retry_max_times=9)
    assert retry_limit(group, 407, None) == 9
    assert retry_limit(group, 407, 0) == 0
    assert retry_limit(group, 0, 3) == 9


async def test_a_count_of_retries_never_overflows(broker: AssembledBroker) -> None:
    again = await retried(broker, back(send(broker, reconsumeTimes="2147483647")))
    assert (again.topic, again.reconsume_times) == ("%DLQ%g", 2147483647)


# Refusals, in this order


async def test_a_group_that_does_not_exist(tmp_path: Path) -> None:
    broker = AssembledBroker(
        tmp_path, dataclasses.replace(CONFIG, auto_create_subscription_group=False)
    )
    answer = await ask(broker, back(0))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer.remark == "subscription group not exist, g"
    await broker.close()


async def test_a_group_is_created_when_it_first_appears(broker: AssembledBroker) -> None:
    await retried(broker, back(send(broker)))
    assert "g" in broker.groups


async def test_a_broker_that_may_not_be_written_to(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path, dataclasses.replace(CONFIG, broker_permission=4))
    answer = await ask(broker, back(0))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[127.0.0.1] sending message is forbidden"
    await broker.close()


async def test_a_group_without_retry_queues_wants_no_retries(
    broker: AssembledBroker, sent_back: list[tuple[str, str]]
) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", retry_queue_nums=0))
    answer = await ask(broker, back(99))
    assert answer.code == ResponseCode.SUCCESS
    assert broker.records() == []
    assert "%RETRY%g" not in broker.topics
    assert sent_back == []


async def test_a_retry_topic_that_may_not_be_written_to(broker: AssembledBroker) -> None:
    broker.topics.update(TopicConfig("%RETRY%g", 1, 1, 4))
    answer = await ask(broker, back(99))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the topic[%RETRY%g] sending message is forbidden"


async def test_a_group_whose_name_is_too_long_for_a_topic(broker: AssembledBroker) -> None:
    group = "g" * 127
    answer = await ask(broker, back(send(broker), group=group))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith(f"topic[%RETRY%{group}] not exist")
    assert f"%RETRY%{group}" not in broker.topics


@pytest.mark.parametrize("offset", [1, -1, 10**15, 2**63 - 1, -(2**63)])
async def test_an_unknown_message(
    broker: AssembledBroker, sent_back: list[tuple[str, str]], offset: int
) -> None:
    send(broker)
    answer = await ask(broker, back(offset))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"look message by offset failed, {offset}"
    assert len(broker.records()) == 1
    assert sent_back == []


async def test_a_message_that_no_consumer_can_have_received(broker: AssembledBroker) -> None:
    queue = broker.store.queue("T", 0)
    physical = broker.store.put(queue, b"half", b"", 0, 0, TRANSACTION_PREPARED, BORN, bytes(8), 0)
    broker.store.seal()
    answer = await ask(broker, back(physical))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        f"look message by offset failed, {physical}",
    )


async def test_a_message_that_was_damaged(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = send(broker, body=b"as it was sent")
    data = broker.store.read_record(original.physical_offset)
    assert data is not None
    damaged = data.replace(b"as it was", b"as it isn")
    monkeypatch.setattr(broker.store, "read_record", lambda _: damaged)
    answer = await ask(broker, back(original))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"look message by offset failed, {original.physical_offset}"


async def test_a_message_whose_properties_become_too_long(
    broker: AssembledBroker, sent_back: list[tuple[str, str]]
) -> None:
    original = send(broker, properties="k\x01" + "v" * 32_700)
    answer = await ask(broker, back(original))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("PROPERTIES_SIZE_EXCEEDED")
    assert sent_back == []


@pytest.mark.parametrize("field", ["offset", "group", "delayLevel"])
async def test_a_torn_header_names_its_field(broker: AssembledBroker, field: str) -> None:
    missing: dict[str, Any] = {field: None}
    answer = await ask(broker, back(0, **missing))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert field in (answer.remark or "")


# Time of the response


async def test_a_oneway_request_is_stored_and_not_answered(broker: AssembledBroker) -> None:
    original = send(broker)
    await retried(broker, back(original))
    before = len(broker.records())
    assert broker.fast.exchange(back(original, oneway=True)) == []
    assert len(broker.records()) == before + 1


async def test_a_created_topic_is_registered_before_the_response(broker: AssembledBroker) -> None:
    known = asyncio.Event()
    calls: list[int] = []

    async def announce() -> None:
        calls.append(len(calls))
        await known.wait()

    original, dead = send(broker), send(broker, reconsumeTimes="16")
    broker.announce = announce
    for message in (original, dead):
        known.clear()
        calls.clear()
        stored = len(broker.records())
        assert broker.fast.exchange(back(message)) == []
        assert len(broker.records()) == stored + 1
        await until(lambda: calls)
        assert broker.fast.received() == []
        known.set()
        await until(lambda: broker.fast.transport.written)
        assert broker.fast.received()[0].code == ResponseCode.SUCCESS
        # The topic exists for the next one.
        assert broker.fast.ask(back(message)).code == ResponseCode.SUCCESS
        assert calls == [0]


async def test_a_cold_message_is_read_on_a_lane(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await retried(broker, back(send(broker)))
    original = send(broker)
    monkeypatch.setattr(broker.store, "is_cold", lambda offset: offset == original.physical_offset)
    assert broker.fast.exchange(back(original)) == []
    await until(lambda: broker.fast.transport.written)
    assert broker.fast.received()[0].code == ResponseCode.SUCCESS
    assert broker.records()[-1].properties["ORIGIN_MESSAGE_ID"] == original.message_id

    before = len(broker.records())
    assert broker.fast.exchange(back(original, oneway=True)) == []
    await until(lambda: len(broker.records()) == before + 1)

    monkeypatch.setattr(broker.store, "is_cold", lambda offset: True)
    assert (await ask(broker, back(1))).remark == "look message by offset failed, 1"


async def test_with_sync_flush_the_response_waits_for_the_fsync(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    broker.topics.update(TopicConfig("%RETRY%g", 1, 1, 6))
    assert broker.slow.exchange(send_request()) == []
    await until(lambda: broker.slow.transport.written)
    (original,) = broker.records()
    assert broker.fast.exchange(back(original)) == []
    await until(lambda: broker.fast.transport.written)
    assert broker.fast.received()[0].code == ResponseCode.SUCCESS
    assert broker.store.flushed_offset >= broker.store.max_physical_offset
    await broker.close()
