"""Pulls: messages, malformed headers, filters, commits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

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
from pyromq.protocol.wire.frame import Encoding
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


# Messages


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
async def test_messages_arrive_whole_and_in_order(
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


async def test_a_pull_sees_messages_sent_before_it_in_its_chunk(
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


async def test_a_pull_is_capped_in_bytes_but_gets_at_least_one_message(
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
    several: list[dict[str, Any]] = [
        {},
        {"topic": "none"},
        {"queueOffset": "x"},
        {"sysFlag": WAITING},
    ]
    for fields in several:
        assert len(broker.fast.exchange(pull_request(oneway=oneway, **fields))) == (not oneway)
    assert len(broker.long_poll) == 0


# Headers


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


async def test_numbers_may_be_unquoted(broker: AssembledBroker) -> None:
    broker.put(b"x", b"y")
    fields = {**pull_request().ext_fields, "queueId": 0, "queueOffset": 1, "maxMsgNums": 32}

    assert bodies(broker.fast.ask(raw_frame(header_of(extFields=fields)))) == [b"y"]


async def test_a_pull_without_an_opaque_counts_as_zero(broker: AssembledBroker) -> None:
    broker.put(b"x")

    answer = broker.fast.ask(raw_frame(header_of(opaque=...)))

    assert (answer.code, answer.opaque, bodies(answer)) == (0, 0, [b"x"])


@pytest.mark.parametrize("nothing", [None, ..., {}])
async def test_a_missing_field_is_named(broker: AssembledBroker, nothing: Any) -> None:
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
    """At once, found or not: a parked pull that cannot be answered would be a leak."""
    broker.put(b"x")
    fields = {**pull_request().ext_fields, "queueOffset": offset, "sysFlag": sys_flag}
    client = broker.connect()

    client.connection.data_received(raw_frame(header_of(**{"extFields": fields, **changes})))

    assert client.closed or client.transport.written
    assert len(broker.long_poll) == 0


@pytest.mark.parametrize("name", ["consumerGroup", "topic", "subscription", "expressionType"])
@pytest.mark.parametrize("value", [5, True, [1], {"a": 1}])
async def test_fields_that_are_not_texts_are_refused(
    broker: AssembledBroker, name: str, value: Any
) -> None:
    broker.put(b"x")
    fields = {**pull_request().ext_fields, name: value}

    answer = broker.fast.ask(raw_frame(header_of(extFields=fields)))

    assert answer.is_response
    assert not broker.fast.closed
    assert len(broker.long_poll) == 0


# Filters


async def test_only_messages_with_matching_tags_are_delivered(broker: AssembledBroker) -> None:
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


async def test_a_pull_that_filters_out_everything_skips_it(broker: AssembledBroker) -> None:
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


async def test_a_heartbeat_without_hashes_filters_by_its_expression(
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


async def test_a_pull_newer_than_the_subscription_is_refused(broker: AssembledBroker) -> None:
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


async def test_a_waiting_pull_commits_once_when_it_arrives(broker: AssembledBroker) -> None:
    flags = str(PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION | PULL_SUSPEND)
    assert broker.fast.exchange(pull_request(commitOffset="5", sysFlag=flags)) == []
    assert broker.offsets.query("consumers", "T", 0) == 5

    broker.offsets.commit("consumers", "T", 0, 9)
    broker.put(b"x")
    await until(lambda: broker.fast.transport.written)

    assert broker.offsets.query("consumers", "T", 0) == 9
