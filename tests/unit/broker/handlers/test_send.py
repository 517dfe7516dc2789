"""Sends: records and responses, topics, queues, and the two paths of one message."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers import send, send_slow
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.message.sysflag import COMPRESSED, MULTI_TAGS
from pyromq.protocol.wire.bodies import TopicConfig, TopicFilterType
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding
from pyromq.store import chunk
from tests.support.examples import examples
from tests.support.requests import BORN, send_request
from tests.unit.broker.assembled import STORE_HOST, AssembledBroker, Client
from tests.unit.broker.handlers.sends import (
    ALL_FORMS,
    ALL_PATHS,
    BOTH_ENCODINGS,
    CLUSTER,
    body_for,
    warm,
)

# Records and responses


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_message_is_stored_and_its_place_returned(
    broker: AssembledBroker, code: RequestCode, encoding: Encoding, path: str
) -> None:
    warm(broker)
    client: Client = getattr(broker, path)
    request = send_request(
        code,
        body_for(code),
        opaque=77,
        encoding=encoding,
        properties="KEYS\x01k",
        reconsumeTimes="3",
        sysFlag=str(COMPRESSED),
    )

    answer = client.ask(request)

    record = broker.records()[-1]
    assert (answer.code, answer.opaque, answer.encoding) == (ResponseCode.SUCCESS, 77, encoding)
    assert answer.is_response
    assert answer.remark is None
    assert answer.body == b""
    assert answer.ext_fields == {
        "msgId": record.message_id,
        "queueId": "1",
        "queueOffset": "1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert decode_message_id(record.message_id) == (*STORE_HOST, record.physical_offset)
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 1, 1)
    assert (record.body, record.flag, record.sys_flag) == (b"body", 7, COMPRESSED)
    assert record.raw_properties == b"KEYS\x01k\x02" + CLUSTER
    assert (record.born_timestamp, record.reconsume_times) == (BORN, 3)
    assert (record.born_host, record.store_host) == (("127.0.0.1", 40404), STORE_HOST)
    assert record.prepared_transaction_offset == 0


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
@pytest.mark.parametrize(
    ("code", "batch"),
    [(ALL_FORMS[0], False), (ALL_FORMS[1], False), *((code, True) for code in ALL_FORMS)],
)
async def test_plain_sends_take_the_hot_path(
    broker: AssembledBroker,
    monkeypatch: pytest.MonkeyPatch,
    code: RequestCode,
    encoding: Encoding,
    batch: bool,
) -> None:
    warm(broker)
    body = body_for(ALL_FORMS[2], properties=b"TAGS\x01a\x02K\x01k") * 3 if batch else b"body"
    request = send_request(code, body, opaque=77, encoding=encoding, batch=str(batch).lower())
    slow = broker.slow.ask(request)
    before = len(broker.records())

    def refuse(*_: object) -> None:
        raise AssertionError("the slow path was taken")

    monkeypatch.setattr(send_slow.SlowSends, "_send_now", refuse)
    fast = broker.fast.ask(request)

    assert fast == replace(slow, ext_fields=fast.ext_fields)
    records = broker.records()[before:]
    assert [record.body for record in records] == [b"body"] * (3 if batch else 1)
    assert fast.ext_fields == {
        **slow.ext_fields,
        "msgId": ",".join(record.message_id for record in records),
        "queueOffset": str(records[0].queue_offset),
    }


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_oneway_message_is_stored_and_not_answered(
    broker: AssembledBroker, code: RequestCode, encoding: Encoding
) -> None:
    requests = [
        send_request(code, body_for(code), oneway=True, encoding=encoding) for _ in range(3)
    ]

    assert broker.fast.exchange(*requests) == []
    assert [record.queue_offset for record in broker.records()] == [0, 1, 2]
    assert not broker.fast.closed


async def test_a_refused_oneway_message_is_not_answered_either(broker: AssembledBroker) -> None:
    warm(broker)

    refused = send_request(oneway=True, properties="DELAY\x01soon", opaque=1)
    assert broker.fast.exchange(refused, send_request(opaque=2))[0].opaque == 2
    assert len(broker.records()) == 2


@pytest.mark.parametrize("path", ALL_PATHS)
async def test_responses_are_in_the_order_of_the_requests(
    broker: AssembledBroker, path: str
) -> None:
    warm(broker)
    requests = [
        send_request(opaque=1),
        send_request(opaque=2, queueId="99"),
        send_request(RequestCode.SEND_MESSAGE, opaque=3),
        send_request(RequestCode.SEND_BATCH_MESSAGE, body_for(ALL_FORMS[2]), opaque=4),
        send_request(opaque=5, encoding=Encoding.ROCKETMQ),
        send_request(opaque=6, properties="DELAY\x01soon"),
        send_request(opaque=7),
    ]

    answers = getattr(broker, path).exchange(*requests)

    assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5, 6, 7]
    assert [answer.code for answer in answers] == [0, 1, 0, 0, 0, 1, 0]
    offsets = [a.ext_fields["queueOffset"] for a in answers if a.code == 0]
    assert offsets == ["1", "2", "3", "4", "5"]


async def test_the_response_to_a_batch_names_every_message(
    broker: AssembledBroker,
) -> None:
    warm(broker)
    batch = b"".join(encode_inner_message(b"%d" % number, b"", number) for number in range(5))

    for client in (broker.fast, broker.slow):
        before = len(broker.records())
        answer = client.ask(send_request(RequestCode.SEND_BATCH_MESSAGE, batch))

        records = broker.records()[before:]
        assert answer.ext_fields["msgId"].split(",") == [r.message_id for r in records]
        assert answer.ext_fields["queueOffset"] == str(records[0].queue_offset)
        assert [r.body for r in records] == [b"0", b"1", b"2", b"3", b"4"]
        assert [r.flag for r in records] == [0, 1, 2, 3, 4]
        assert [r.queue_offset for r in records] == list(range(before, before + 5))


async def test_messages_of_ipv6_and_ipv4_clients_are_stored(broker: AssembledBroker) -> None:
    warm(broker)
    client = broker.connect(("2001:db8::7", 555))
    batch = body_for(ALL_FORMS[2]) * 2

    client.exchange(send_request(), send_request(RequestCode.SEND_BATCH_MESSAGE, batch))
    mapped = broker.connect(("::ffff:10.0.0.9", 5))
    mapped.exchange(send_request(), send_request(RequestCode.SEND_BATCH_MESSAGE, batch))

    hosts = [record.born_host for record in broker.records()[1:]]
    assert hosts == [("2001:db8::7", 555)] * 3 + [("10.0.0.9", 5)] * 3


# Topics


@pytest.mark.parametrize(
    ("asked", "made"), [(4, 4), (8, 8), (9, 8), (2**31 - 1, 8), (1, 1), (0, 1), (-5, 1)]
)
async def test_a_send_creates_its_topic(broker: AssembledBroker, asked: int, made: int) -> None:
    answer = broker.fast.ask(
        send_request(topic="new", defaultTopicQueueNums=str(asked), queueId="0")
    )

    topic = broker.topics.get("new")
    assert answer.code == ResponseCode.SUCCESS
    assert topic is not None
    assert (topic.write_queue_nums, topic.read_queue_nums) == (made, made)


async def test_a_topic_needs_a_template_that_exists(broker: AssembledBroker) -> None:
    for template in ("nothing", "BenchmarkTest", ""):
        answer = broker.fast.ask(send_request(topic="new", defaultTopic=template))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "topic[new] not exist, apply first please!" in (answer.remark or "")
        assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert broker.records() == []
    assert "new" not in broker.topics


async def test_no_topic_is_created_if_disabled(tmp_path: Path) -> None:
    broker = AssembledBroker(
        tmp_path, BrokerConfig(broker_ip1="127.0.0.1", auto_create_topic_enable=False)
    )

    assert broker.fast.ask(send_request()).code == ResponseCode.TOPIC_NOT_EXIST
    broker.topics.update(TopicConfig("T", 2, 2))
    assert broker.fast.ask(send_request()).code == ResponseCode.SUCCESS
    await broker.close()


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_illegal_topics_are_refused(broker: AssembledBroker, code: RequestCode) -> None:
    for topic in ("", " ", "a b", "a/../b", "..", "ü", "a\x01b", "t" * 128, "a.b", "a@b"):
        answer = broker.fast.ask(send_request(code, body_for(code), topic=topic))

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "topic" in (answer.remark or "")
        assert topic not in broker.topics
    assert broker.records() == []


async def test_the_longest_topic_is_accepted(broker: AssembledBroker) -> None:
    topic = "t" * 127
    for _ in range(2):
        assert broker.fast.ask(send_request(topic=topic)).code == ResponseCode.SUCCESS
    assert [record.topic for record in broker.records()] == [topic, topic]


@pytest.mark.parametrize(
    "topic",
    ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"],
)
async def test_clients_cannot_send_to_system_topics(broker: AssembledBroker, topic: str) -> None:
    answer = broker.fast.ask(send_request(topic=topic, queueId="0"))

    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"Sending message to topic[{topic}] is forbidden."
    assert broker.records() == []


async def test_checks_are_in_rocketmqs_order(tmp_path: Path) -> None:
    config = BrokerConfig(
        broker_ip1="127.0.0.1",
        broker_permission=4,
        start_accept_send_request_time_stamp=BORN + 1,
    )
    broker = AssembledBroker(tmp_path, config)
    broker.topics.update(TopicConfig("T", 2, 2, order=True))

    early = broker.fast.ask(send_request(topic="a b"))
    broker.now = BORN + 1
    not_writable = broker.fast.ask(send_request(queueId="99"))
    not_ordered = broker.fast.ask(send_request(topic="other"))

    assert early.code == ResponseCode.SYSTEM_ERROR
    assert re.fullmatch(
        r"broker unable to service, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}",
        early.remark or "",
    )
    assert not_writable.code == ResponseCode.NO_PERMISSION
    assert not_writable.remark == "the broker[127.0.0.1] sending message is forbidden"
    assert not_ordered.code == ResponseCode.SUCCESS
    await broker.close()


# Queue ids


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_negative_queue_id_means_any_queue(
    broker: AssembledBroker, code: RequestCode
) -> None:
    broker.topics.update(TopicConfig("T", 8, 3))
    answers = broker.fast.exchange(
        *(send_request(code, body_for(code), queueId=str(-1 - n % 2)) for n in range(100))
    )

    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert {answer.ext_fields["queueId"] for answer in answers} == {"0", "1", "2"}


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_an_unknown_queue_is_refused(broker: AssembledBroker, code: RequestCode) -> None:
    broker.topics.update(TopicConfig("T", 4, 2))

    for queue_id in ("4", "2147483647", "2147483648", "1" * 400, "", "x", "1.0"):
        answer = broker.fast.ask(send_request(code, body_for(code), queueId=queue_id))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "ueueId" in (answer.remark or "") or " e:" in (answer.remark or "")
    assert broker.records() == []
    assert list(broker.store.queues()) == []


async def test_a_queue_that_is_only_readable_accepts_messages(
    broker: AssembledBroker,
) -> None:
    broker.topics.update(TopicConfig("T", 4, 2))

    assert broker.fast.ask(send_request(queueId="3")).code == ResponseCode.SUCCESS


async def test_a_changed_topic_is_checked_again(broker: AssembledBroker) -> None:
    warm(broker, queue_id=3)
    assert broker.fast.ask(send_request(queueId="3")).code == ResponseCode.SUCCESS
    broker.topics.update(TopicConfig("T", 2, 2))
    assert broker.fast.ask(send_request(queueId="3")).code == ResponseCode.SYSTEM_ERROR
    batch = send_request(RequestCode.SEND_BATCH_MESSAGE, body_for(ALL_FORMS[2]), queueId="3")
    assert broker.fast.ask(batch).code == ResponseCode.SYSTEM_ERROR
    assert len(broker.records()) == 2


async def test_a_deleted_topic_is_recreated_empty(broker: AssembledBroker) -> None:
    warm(broker)
    broker.topics.delete("T")
    broker.store.remove_topic("T")

    answer = broker.fast.ask(send_request())

    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
    assert "T" in broker.topics
    assert broker.entries() == [("T", 1, 0, 0)]


async def test_messages_of_multi_tag_topics_are_marked(broker: AssembledBroker) -> None:
    broker.topics.update(TopicConfig("T", 4, 4, topic_filter_type=TopicFilterType.MULTI_TAG))
    batch = send_request(RequestCode.SEND_BATCH_MESSAGE, body_for(ALL_FORMS[2]))

    broker.fast.exchange(send_request(), send_request(), batch, batch)

    assert [record.sys_flag for record in broker.records()] == [MULTI_TAGS] * 4


# One message, two paths

names = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=9)
some_properties = st.dictionaries(
    st.one_of(names, st.sampled_from(["TAGS", "KEYS", "WAIT", "MYTAGS", "CLUSTER", "UNIQ_KEY"])),
    names,
    max_size=5,
).filter(lambda found: not found.keys() & {"DELAY", "TRAN_MSG"})
int32 = st.integers(-(2**31), 2**31 - 1)


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    code=st.sampled_from(ALL_FORMS),
    encoding=st.sampled_from(BOTH_ENCODINGS),
    properties=some_properties,
    ending=st.sampled_from(["", "\x02"]),
    inner=some_properties,
    inner_ending=st.sampled_from([b"", b"\x02"]),
    flag=int32,
    sys_flag=int32.map(lambda value: value & ~0xC),
    born=st.integers(-(2**63), 2**63 - 1),
    reconsume=st.one_of(st.none(), int32.map(str)),
    body=st.binary(max_size=60),
)
async def test_both_paths_store_the_same(
    broker: AssembledBroker,
    code: RequestCode,
    encoding: Encoding,
    properties: dict[str, str],
    ending: str,
    inner: dict[str, str],
    inner_ending: bytes,
    flag: int,
    sys_flag: int,
    born: int,
    reconsume: str | None,
    body: bytes,
) -> None:
    warm(broker)
    before = broker.store.max_physical_offset
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    if code == RequestCode.SEND_BATCH_MESSAGE:
        own = "\x02".join(f"{name}\x01{value}" for name, value in inner.items()).encode()
        body = encode_inner_message(body, own + inner_ending if own else b"", flag)
    request = send_request(
        code,
        body,
        encoding=encoding,
        properties=text + ending if text else "",
        flag=str(flag),
        sysFlag=str(sys_flag),
        bornTimestamp=str(born),
        reconsumeTimes=reconsume,
    )

    fast = broker.fast.ask(request)
    slow = broker.slow.ask(request)

    assert (fast.code, slow.code) == (0, 0)
    first, second = broker.records(before)
    assert second == replace(
        first,
        queue_offset=first.queue_offset + 1,
        physical_offset=second.physical_offset,
        store_timestamp=second.store_timestamp,
        message_id=second.message_id,
    )
    queue = broker.store.queue("T", 1)
    codes = {(queue.entry(queue.next_offset - back) or (0, 0, -1))[2] for back in (1, 2)}
    assert codes == {java_hash(first.properties.get("TAGS", ""))}
    fields = fast.ext_fields.keys()
    assert fields == slow.ext_fields.keys()


@pytest.mark.parametrize("tags_first", [True, False])
async def test_tags_are_found_without_decoding_properties(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch, tags_first: bool
) -> None:
    """Only Java's producer writes TAGS last; messages of others take the hot path as well."""
    warm(broker)

    def refuse(text: object) -> dict[str, str]:
        raise AssertionError(f"{text!r} is decoded")

    for module in (send, send_slow):
        monkeypatch.setattr(module, "decode_properties", refuse)
    monkeypatch.setattr(chunk, "decode_properties", refuse, raising=False)
    pieces = ["TAGS\x01red", "UNIQ_KEY\x01AC11"]
    properties = "\x02".join(pieces if tags_first else reversed(pieces))
    broker.fast.ask(send_request(properties=properties))
    queue = broker.store.queue("T", 1)
    entry = queue.entry(queue.next_offset - 1)
    assert entry is not None
    assert entry[2] == java_hash("red")
    broker.store.put_batch(
        queue, encode_inner_message(b"x", properties.encode()), b"", 0, 0, bytes(8), 0
    )
    broker.store.seal()
    entry = queue.entry(queue.next_offset - 1)
    assert entry is not None
    assert entry[2] == java_hash("red")
