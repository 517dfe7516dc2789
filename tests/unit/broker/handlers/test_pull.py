"""Pulls: what they get, what is checked, filters, commits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.services import long_poll as long_poll_module
from pyromq.broker.state.connections import Client as Member
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.message.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    MessageModel,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.store.results import GetResult, GetStatus
from tests.support.patience import until
from tests.support.requests import pull_request, raw_frame, send_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.handlers.pulls import BOTH_ENCODINGS, WAITING, bodies, offsets_of, subscribe


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll_module, "_TICK_SECONDS", 0.01)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    assembled.topics.update(TopicConfig("T", 4, 4))
    yield assembled
    await assembled.close()


# What a pull gets


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
async def test_messages_come_whole_and_in_order(
    broker: AssembledBroker, encoding: Encoding
) -> None:
    broker.put(*(b"%d" % number for number in range(5)))

    answer = broker.fast.ask(pull_request(opaque=9, queueOffset="1", encoding=encoding))

    assert (answer.code, answer.opaque, answer.encoding) == (0, 9, encoding)
    assert answer.is_response
    assert answer.remark == "FOUND"
    assert answer.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "5",
        "minOffset": "0",
        "maxOffset": "5",
    }
    assert bodies(answer) == [b"1", b"2", b"3", b"4"]
    assert decode_records(answer.body) == broker.records()[1:]


async def test_a_pull_sees_what_was_sent_before_it_in_the_same_chunk(
    broker: AssembledBroker,
) -> None:
    answers = broker.fast.exchange(
        send_request(body=b"new", queueId="0", opaque=1), pull_request(opaque=2)
    )

    assert [answer.opaque for answer in answers] == [1, 2]
    assert bodies(answers[1]) == [b"new"]


async def test_other_queues_and_topics_are_not_seen(broker: AssembledBroker) -> None:
    broker.put(b"here", queue_id=0)
    broker.put(b"beside", queue_id=1)
    broker.put(b"elsewhere", topic="U")
    broker.put(b"here too", queue_id=0)

    assert bodies(broker.fast.ask(pull_request())) == [b"here", b"here too"]


@pytest.mark.parametrize(
    ("asked", "got"), [("1", 1), ("3", 3), ("32", 32), ("100", 32), ("0", 1), ("-1", 1)]
)
async def test_a_pull_is_limited_and_never_empty(
    broker: AssembledBroker, asked: str, got: int
) -> None:
    broker.put(*[b"x"] * 40)

    for subscription in ("*", "a || b"):
        answer = broker.fast.ask(pull_request(maxMsgNums=asked, subscription=subscription))
        if subscription == "*":
            assert len(bodies(answer)) == got
            assert offsets_of(answer) == (got, 0, 40)
        else:
            assert offsets_of(answer) == (40, 0, 40)


async def test_a_pull_ends_at_its_bytes_but_gets_one_message_at_least(
    broker: AssembledBroker,
) -> None:
    broker.put(bytes(100_000), bytes(100_000), bytes(100_000), bytes(300_000), b"last")

    first = broker.fast.ask(pull_request())
    second = broker.fast.ask(pull_request(queueOffset=first.ext_fields["nextBeginOffset"]))
    third = broker.fast.ask(pull_request(queueOffset="3"))

    assert [len(body) for body in bodies(first)] == [100_000, 100_000]
    assert [len(body) for body in bodies(second)] == [100_000]
    assert [len(body) for body in bodies(third)] == [300_000]


@pytest.mark.parametrize("oneway", [True, False])
async def test_a_oneway_pull_gets_nothing(broker: AssembledBroker, oneway: bool) -> None:
    broker.put(b"x")
    for fields in ({}, {"topic": "none"}, {"queueOffset": "x"}, {"sysFlag": WAITING}):
        assert len(broker.fast.exchange(pull_request(oneway=oneway, **fields))) == (not oneway)
    assert len(broker.long_poll) == 0


# Where there is nothing


async def test_codes_and_offsets_where_there_is_nothing(broker: AssembledBroker) -> None:
    empty = broker.fast.ask(pull_request())
    assert (empty.code, empty.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE")
    assert offsets_of(empty)[0] == 0
    corrected = broker.fast.ask(pull_request(queueOffset="7"))
    assert corrected.code == ResponseCode.PULL_OFFSET_MOVED
    assert offsets_of(corrected)[0] == 0

    broker.put(b"0", b"1", b"2")
    for offset, code, status, following in (
        ("3", ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        ("4", ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (str(2**63 - 1), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        ("-1", ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (str(-(2**63)), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ):
        for encoding in BOTH_ENCODINGS:
            answer = broker.fast.ask(pull_request(queueOffset=offset, encoding=encoding))
            assert (answer.code, answer.remark) == (code, status)
            assert offsets_of(answer) == (following, 0, 3)
            assert answer.body == b""


@pytest.mark.parametrize(
    ("status", "offset", "code"),
    [
        (GetStatus.MESSAGE_WAS_REMOVING, "5", ResponseCode.PULL_RETRY_IMMEDIATELY),
        (GetStatus.NO_MATCHED_MESSAGE, "5", ResponseCode.PULL_RETRY_IMMEDIATELY),
        (GetStatus.OFFSET_FOUND_NULL, "5", ResponseCode.PULL_NOT_FOUND),
        (GetStatus.OFFSET_OVERFLOW_ONE, "5", ResponseCode.PULL_NOT_FOUND),
        (GetStatus.OFFSET_OVERFLOW_BADLY, "5", ResponseCode.PULL_OFFSET_MOVED),
        (GetStatus.OFFSET_TOO_SMALL, "5", ResponseCode.PULL_OFFSET_MOVED),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, "5", ResponseCode.PULL_OFFSET_MOVED),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, "0", ResponseCode.PULL_NOT_FOUND),
        (GetStatus.NO_MESSAGE_IN_QUEUE, "5", ResponseCode.PULL_OFFSET_MOVED),
        (GetStatus.NO_MESSAGE_IN_QUEUE, "0", ResponseCode.PULL_NOT_FOUND),
    ],
)
async def test_every_status_has_rocketmqs_code(
    broker: AssembledBroker,
    monkeypatch: pytest.MonkeyPatch,
    status: GetStatus,
    offset: str,
    code: ResponseCode,
) -> None:
    monkeypatch.setattr(broker.store, "get", lambda *_, **__: GetResult(status, 11, 2, 22))

    answer = broker.fast.ask(pull_request(queueOffset=offset))

    assert (answer.code, answer.remark) == (code, status.name)
    assert offsets_of(answer) == (11, 2, 22)


@pytest.mark.parametrize(
    ("enabled", "behind", "suggested"), [(True, True, "3"), (True, False, "2"), (False, True, "0")]
)
async def test_a_reader_far_behind_is_sent_to_a_replica(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    enabled: bool,
    behind: bool,
    suggested: str,
) -> None:
    broker = AssembledBroker(
        tmp_path, BrokerConfig(broker_ip1="127.0.0.1", slave_read_enable=enabled)
    )
    broker.groups.update(
        SubscriptionGroupConfig("consumers", broker_id=2, which_broker_when_consume_slowly=3)
    )
    broker.put(b"x")
    result = broker.store.get("T", 0, 0, 32)
    result.suggest_replica = behind
    monkeypatch.setattr(broker.store, "get", lambda *_, **__: result)

    for encoding in BOTH_ENCODINGS:
        answer = broker.fast.ask(pull_request(encoding=encoding))
        assert answer.ext_fields["suggestWhichBrokerId"] == suggested
    await broker.close()


# Checks


async def test_refusals_come_in_rocketmqs_order(tmp_path: Path) -> None:
    everything_wrong = {
        "consumerGroup": "unknown",
        "topic": "unknown",
        "queueId": "-1",
        "sysFlag": "0",
    }
    config = {"broker_ip1": "127.0.0.1", "auto_create_subscription_group": False}
    closed = AssembledBroker(tmp_path / "closed", BrokerConfig(broker_permission=2, **config))
    answer = closed.fast.ask(pull_request(**everything_wrong))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[127.0.0.1] pulling message is forbidden"
    await closed.close()

    broker = AssembledBroker(tmp_path / "open", BrokerConfig(**config))
    answer = broker.fast.ask(pull_request(**everything_wrong))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "subscription group [unknown] does not exist" in (answer.remark or "")
    assert "unknown" not in broker.groups

    broker.groups.update(SubscriptionGroupConfig("unknown", consume_enable=False))
    answer = broker.fast.ask(pull_request(**everything_wrong))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "subscription group no permission, unknown"

    broker.groups.update(SubscriptionGroupConfig("unknown"))
    answer = broker.fast.ask(pull_request(**everything_wrong))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "topic[unknown] not exist, apply first please!" in (answer.remark or "")

    broker.topics.update(TopicConfig("unknown", 2, 2, perm=2))
    answer = broker.fast.ask(pull_request(**everything_wrong))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the topic[unknown] pulling message is forbidden"

    broker.topics.update(TopicConfig("unknown", 2, 4))
    for queue_id in ("-1", "2", str(2**31 - 1)):
        answer = broker.fast.ask(pull_request(**{**everything_wrong, "queueId": queue_id}))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"queueId[{queue_id}] is illegal, topic:[unknown]" in (answer.remark or "")

    answer = broker.fast.ask(pull_request(**{**everything_wrong, "queueId": "0"}))
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert "the consumer's group info not exist" in (answer.remark or "")
    await broker.close()


async def test_a_group_that_may_be_made_is_made(broker: AssembledBroker) -> None:
    broker.fast.ask(pull_request(consumerGroup="new"))

    assert "new" in broker.groups
    for illegal in ("a b", "", "g" * 256, "a/b"):
        answer = broker.fast.ask(pull_request(consumerGroup=illegal))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert illegal not in broker.groups


@pytest.mark.parametrize(
    "name",
    [
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
        "commitOffset",
        "suspendTimeoutMillis",
        "subVersion",
    ],
)
async def test_a_field_of_no_use_is_named(broker: AssembledBroker, name: str) -> None:
    broker.put(b"x")
    values = [None]
    if name not in ("consumerGroup", "topic"):
        values += ["", "x", " 1", "1_0", "1.5", "9" * 20, "9" * 5000]
    for value in values:
        answer = broker.fast.ask(pull_request(**{name: value}))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert name in (answer.remark or "")
    assert not broker.fast.closed


def header_of(**changes: Any) -> dict[str, Any]:
    header = {
        "code": int(RequestCode.PULL_MESSAGE),
        "language": "JAVA",
        "version": 407,
        "opaque": 1,
        "flag": 0,
        "extFields": pull_request().ext_fields,
    }
    for name, value in changes.items():
        if value is ...:
            del header[name]
        else:
            header[name] = value
    return header


async def test_numbers_may_come_unquoted(broker: AssembledBroker) -> None:
    broker.put(b"x", b"y")
    fields = {**pull_request().ext_fields, "queueId": 0, "queueOffset": 1, "maxMsgNums": 32}

    assert bodies(broker.fast.ask(raw_frame(header_of(extFields=fields)))) == [b"y"]


async def test_a_pull_without_an_opaque_counts_as_zero(broker: AssembledBroker) -> None:
    broker.put(b"x")

    answer = broker.fast.ask(raw_frame(header_of(opaque=...)))

    assert (answer.code, answer.opaque, bodies(answer)) == (0, 0, [b"x"])


@pytest.mark.parametrize("nothing", [None, ..., {}])
async def test_a_pull_without_fields_is_told_which_is_missing(
    broker: AssembledBroker, nothing: Any
) -> None:
    answer = broker.connect().ask(raw_frame(header_of(extFields=nothing)))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "PullMessageRequestHeader: field consumerGroup is missing" in (answer.remark or "")


@pytest.mark.parametrize("sys_flag", ["4", WAITING])
@pytest.mark.parametrize("offset", ["0", "1", "9"])
@pytest.mark.parametrize(
    "changes",
    [
        {"opaque": "1"},
        {"opaque": None},
        {"opaque": [1]},
        {"opaque": 2**31},
        {"version": "x"},
        {"extFields": []},
        {"extFields": "x"},
        {"extFields": 7},
        {"extFields": None},
        {"extFields": ...},
        {"flag": "0"},
        {"flag": None},
    ],
)
async def test_a_bad_header_is_answered_or_ends_the_connection(
    broker: AssembledBroker, changes: dict[str, Any], offset: str, sys_flag: str
) -> None:
    """At once, found or not: a parked pull of that kind would hurt those beside it."""
    broker.put(b"x")
    fields = {**pull_request().ext_fields, "queueOffset": offset, "sysFlag": sys_flag}
    client = broker.connect()

    client.connection.data_received(raw_frame(header_of(**{"extFields": fields, **changes})))

    assert client.closed or client.transport.written
    assert len(broker.long_poll) == 0


@pytest.mark.parametrize("name", ["consumerGroup", "topic", "subscription", "expressionType"])
@pytest.mark.parametrize("value", [5, True, [1], {"a": 1}])
async def test_texts_that_are_none_are_refused(
    broker: AssembledBroker, name: str, value: Any
) -> None:
    broker.put(b"x")
    fields = {**pull_request().ext_fields, name: value}

    answer = broker.fast.ask(raw_frame(header_of(extFields=fields)))

    assert answer.is_response
    assert not broker.fast.closed
    assert len(broker.long_poll) == 0


# Filters


async def test_only_messages_with_the_tags_come(broker: AssembledBroker) -> None:
    for number, tags in enumerate(["red", "blue", "", "red", "green"]):
        broker.put(b"%d" % number, tags=tags)

    for expression, expected in (
        ("red", [b"0", b"3"]),
        ("red || blue", [b"0", b"1", b"3"]),
        (" red||green ", [b"0", b"3", b"4"]),
        ("*", [b"0", b"1", b"2", b"3", b"4"]),
        ("", [b"0", b"1", b"2", b"3", b"4"]),
        (None, [b"0", b"1", b"2", b"3", b"4"]),
    ):
        for expression_type in ("TAG", "", None):
            answer = broker.fast.ask(
                pull_request(subscription=expression, expressionType=expression_type)
            )
            assert bodies(answer) == expected
            assert offsets_of(answer) == (5, 0, 5)


async def test_a_pull_that_filters_everything_goes_on_behind_it(broker: AssembledBroker) -> None:
    broker.put(b"x", b"y", tags="red")

    answer = broker.fast.ask(pull_request(subscription="blue", sysFlag=WAITING))

    assert (answer.code, answer.remark) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
    )
    assert offsets_of(answer) == (2, 0, 2)


async def test_an_expression_without_a_tag_is_refused(broker: AssembledBroker) -> None:
    for expression in ("||", " || ", "   "):
        answer = broker.fast.ask(pull_request(subscription=expression))
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "parse the consumer's subscription failed" in (answer.remark or "")


async def test_the_heartbeats_subscription_filters(broker: AssembledBroker) -> None:
    broker.put(b"r", tags="red")
    broker.put(b"b", tags="blue")
    for version, (expression, expected) in enumerate(
        [("*", [b"r", b"b"]), ("blue", [b"b"]), ("red || blue", [b"r", b"b"])], 1
    ):
        subscribe(broker, expression, version=version)
        answer = broker.fast.ask(pull_request(sysFlag="0", subVersion=str(version)))
        assert bodies(answer) == expected


async def test_a_heartbeat_without_hashes_is_read_by_its_expression(
    broker: AssembledBroker,
) -> None:
    broker.put(b"r", tags="red")
    broker.put(b"b", tags="blue")
    subscription = SubscriptionData("T", "blue", sub_version=1)
    broker.consumers.register(
        ConsumerData("consumers", subscription_data_set=[subscription]),
        Member(broker.fast.connection, "id", LanguageCode.JAVA, 407),
    )

    assert bodies(broker.fast.ask(pull_request(sysFlag="0"))) == [b"b"]


async def test_a_heartbeats_expression_without_a_tag_is_refused(broker: AssembledBroker) -> None:
    subscribe(broker, " || ")

    answer = broker.fast.ask(pull_request(sysFlag="0"))

    assert answer.code in (ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SYSTEM_ERROR)
    assert "has no tags" in (answer.remark or "")
    assert not broker.fast.closed


async def test_a_broker_without_the_newest_subscription_says_so(broker: AssembledBroker) -> None:
    subscribe(broker, "*", version=5)

    older = broker.fast.ask(pull_request(sysFlag="0", subVersion="4"))
    same = broker.fast.ask(pull_request(sysFlag="0", subVersion="5"))
    newer = broker.fast.ask(pull_request(sysFlag="0", subVersion="6"))

    assert (older.code, same.code) == (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_NOT_FOUND)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert newer.remark == "the consumer's subscription not latest"


async def test_a_topic_that_the_group_does_not_subscribe_to_is_refused(
    broker: AssembledBroker,
) -> None:
    subscribe(broker, "*")
    broker.topics.update(TopicConfig("U", 4, 4))

    answer = broker.fast.ask(pull_request(sysFlag="0", topic="U"))

    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert answer.remark == "the consumer's subscription not exist"


async def test_broadcasting_may_be_forbidden(broker: AssembledBroker) -> None:
    broker.groups.update(SubscriptionGroupConfig("consumers", consume_broadcast_enable=False))
    subscribe(broker, "*")
    assert broker.fast.ask(pull_request(sysFlag="0")).code == ResponseCode.PULL_NOT_FOUND
    subscribe(broker, "*", model=MessageModel.BROADCASTING)

    answer = broker.fast.ask(pull_request(sysFlag="0"))

    assert answer.code == ResponseCode.NO_PERMISSION
    assert "can not consume by broadcast way" in (answer.remark or "")


async def test_sql_is_refused_clearly(broker: AssembledBroker) -> None:
    own = broker.fast.ask(pull_request(subscription="a > 1", expressionType="SQL92"))
    subscribe(broker, "a > 1", expression_type="SQL92")
    heartbeat = broker.fast.ask(pull_request(sysFlag="0"))

    for answer in (own, heartbeat):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "The broker does not support consumer to filter message by SQL92"


# Commits


async def test_a_pull_may_commit_an_offset(broker: AssembledBroker) -> None:
    broker.put(b"x")
    commit = str(PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION)

    broker.fast.ask(pull_request(commitOffset="5"))
    assert broker.offsets.query("consumers", "T", 0) is None
    broker.fast.ask(pull_request(commitOffset="5", sysFlag=commit))
    assert broker.offsets.query("consumers", "T", 0) == 5
    broker.fast.ask(pull_request(commitOffset="6", sysFlag=commit, queueOffset="99"))
    assert broker.offsets.query("consumers", "T", 0) == 6
    broker.fast.exchange(pull_request(commitOffset="7", sysFlag=commit, oneway=True))
    assert broker.offsets.query("consumers", "T", 0) == 7
    broker.fast.ask(pull_request(commitOffset="8", sysFlag=commit, queueId="9"))
    assert broker.offsets.query("consumers", "T", 9) is None


async def test_a_pull_that_waits_commits_once_at_its_coming(broker: AssembledBroker) -> None:
    flags = str(PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION | PULL_SUSPEND)
    assert broker.fast.exchange(pull_request(commitOffset="5", sysFlag=flags)) == []
    assert broker.offsets.query("consumers", "T", 0) == 5

    broker.offsets.commit("consumers", "T", 0, 9)
    broker.put(b"x")
    await until(lambda: broker.fast.transport.written)

    assert broker.offsets.query("consumers", "T", 0) == 9


# Plans: what was checked once holds until something changes


def _pull_again(broker: AssembledBroker, **fields: str) -> RemotingCommand:
    return broker.fast.ask(pull_request(**fields))


async def test_the_next_pull_sees_every_change(broker: AssembledBroker) -> None:
    broker.put(b"red", tags="red")
    broker.put(b"blue", tags="blue")
    subscribe(broker, "red", version=1)
    of_group = {"sysFlag": "0", "subVersion": "1"}
    for _ in range(2):
        assert bodies(_pull_again(broker, **of_group)) == [b"red"]
        assert bodies(_pull_again(broker)) == [b"red", b"blue"]

    subscribe(broker, "blue", version=2)
    assert bodies(_pull_again(broker, **of_group)) == [b"blue"]
    subscribe(broker, "blue", version=2, model=MessageModel.BROADCASTING)
    broker.groups.update(SubscriptionGroupConfig("consumers", consume_broadcast_enable=False))
    assert _pull_again(broker, **of_group).code == ResponseCode.NO_PERMISSION
    broker.topics.update(TopicConfig("T", 4, 4, perm=2))
    assert _pull_again(broker).code == ResponseCode.NO_PERMISSION
    broker.topics.update(TopicConfig("T", 4, 4, perm=6))
    assert bodies(_pull_again(broker)) == [b"red", b"blue"]
    broker.fast.lose()
    other = broker.connect()
    broker.consumers.disconnect(broker.fast.connection)
    refused = other.ask(pull_request(**of_group))
    assert refused.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_offsets_are_read_as_strictly_at_the_second_time(broker: AssembledBroker) -> None:
    broker.put(b"x")
    for offset in ("", " 0", "1_0", "9" * 30, "0x1"):
        assert _pull_again(broker).code == ResponseCode.SUCCESS
        assert _pull_again(broker, queueOffset=offset).code == ResponseCode.SYSTEM_ERROR


async def bulk_answer(broker: AssembledBroker, **values: str) -> RemotingCommand:
    client = broker.connect()
    at_once = client.exchange(pull_request(maxMsgNums="10000", maxMsgBytes="1000000", **values))
    answers = [*at_once]

    def has_come() -> bool:
        answers.extend(client.received())
        return bool(answers)

    await until(has_come)
    assert len(answers) == 1
    return answers[0]


async def test_a_bulk_pull_carries_more_than_usual(broker: AssembledBroker) -> None:
    broker.put(*[b"%d" % number for number in range(500)])
    answer = await bulk_answer(broker, queueOffset="100")
    assert answer.code == ResponseCode.SUCCESS
    assert bodies(answer) == [b"%d" % number for number in range(100, 500)]
    assert offsets_of(answer) == (500, 0, 500)


@pytest.mark.parametrize(("limit", "got"), [(5000, 4), (0, 32)])
async def test_a_bulk_pull_keeps_to_the_brokers_limit(tmp_path: Path, limit: int, got: int) -> None:
    broker = AssembledBroker(tmp_path, BrokerConfig(bulk_pull_max_bytes=limit))
    broker.topics.update(TopicConfig("T", 4, 4))
    broker.put(*[bytes(1000) for _ in range(50)])
    assert len(bodies(await bulk_answer(broker))) == got
    await broker.close()


async def test_a_bulk_pull_filters(broker: AssembledBroker) -> None:
    broker.put(*[b"red"] * 300, tags="red")
    broker.put(*[b"blue"] * 300, tags="blue")
    answer = await bulk_answer(broker, subscription="blue")
    assert bodies(answer) == [b"blue"] * 300


async def test_a_bulk_pull_of_nothing_says_why(broker: AssembledBroker) -> None:
    broker.put(b"one")
    assert (await bulk_answer(broker, queueOffset="1")).code == ResponseCode.PULL_NOT_FOUND
    assert (await bulk_answer(broker, queueOffset="7")).code == ResponseCode.PULL_OFFSET_MOVED


async def test_one_connection_has_few_bulk_pulls_under_way(broker: AssembledBroker) -> None:
    broker.put(b"one")
    client = broker.connect()
    requests = [
        pull_request(opaque=number, maxMsgNums="100", maxMsgBytes="1000000") for number in range(12)
    ]
    answers = client.exchange(*requests)
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_BUSY] * 4
    found: list[RemotingCommand] = []

    def have_come() -> bool:
        found.extend(client.received())
        return len(found) == 8

    await until(have_come)
    assert sorted(answer.opaque for answer in found) == list(range(8))
    assert {answer.code for answer in found} == {ResponseCode.SUCCESS}
    assert client.exchange(requests[0]) == [], "there is room again"
