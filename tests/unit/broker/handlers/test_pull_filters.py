"""Pulls with SQL92 filters: their own or their group's, retried messages, bit maps, waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.waiting_pull import WaitingPull
from pyromq.broker.services import long_poll as long_poll_module
from pyromq.broker.services import turns as turns_module
from pyromq.broker.services.turns import TURN_SECONDS
from pyromq.broker.state.connections import Client as Member
from pyromq.broker.state.filters import compile_expression
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from pyromq.protocol.names import retry_topic
from pyromq.protocol.wire.bodies import ConsumerData, SubscriptionData, TopicConfig
from pyromq.protocol.wire.codes import LanguageCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.store.queues import reading
from tests.support.patience import until
from tests.support.requests import pull_request, send_request
from tests.unit.broker.assembled import AssembledBroker

WAITING = str(PULL_SUSPEND | PULL_SUBSCRIPTION)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll_module, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(reading, "_RECORD_FILTER_SECONDS", 60.0)
    # A busy machine must not put pulls off; `short_turns` asks for that.
    monkeypatch.setattr(turns_module, "TURN_SECONDS", 60.0)


@pytest.fixture
def short_turns(steady: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "TURN_SECONDS", TURN_SECONDS)


def assembled(
    tmp_path: Path, *, store: dict[str, Any] | None = None, **settings: Any
) -> AssembledBroker:
    config = BrokerConfig(
        broker_ip1="127.0.0.1",
        broker_ip2="127.0.0.1",
        **{"enable_property_filter": True, **settings},
    )
    broker = AssembledBroker(tmp_path, config, **(store or {}))
    broker.topics.update(TopicConfig("T", 4, 4))
    return broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    broker = assembled(tmp_path)
    yield broker
    await broker.close()


def put(broker: AssembledBroker, body: bytes, topic: str = "T", **properties: str) -> None:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    request = send_request(body=body, topic=topic, queueId="0", properties=raw)
    assert broker.fast.ask(request).code == ResponseCode.SUCCESS


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer
    return [record.body for record in decode_records(answer.body)]


def subscribe(
    broker: AssembledBroker, text: str, version: int = 1, *topics: str, **values: Any
) -> None:
    """Register a heartbeat of a member of the group `consumers`."""
    subscriptions = [
        SubscriptionData(topic, text, sub_version=version, **{"expression_type": "SQL92", **values})
        for topic in topics or ("T",)
    ]
    broker.consumers.register(
        ConsumerData("consumers", subscription_data_set=subscriptions),
        Member(broker.fast.connection, "id", LanguageCode.JAVA, 407),
    )


def own(text: str | None, kind: str = "SQL92", **values: Any) -> RemotingCommand:
    return pull_request(subscription=text, expressionType=kind, **values)


def by_group(version: int = 1, **values: Any) -> RemotingCommand:
    return pull_request(sysFlag="0", subscription=None, subVersion=str(version), **values)


async def test_a_pull_brings_its_expression(broker: AssembledBroker) -> None:
    for number in range(10):
        put(broker, b"%d" % number, a=str(number), other="x")
    assert bodies(broker.fast.ask(own("a BETWEEN 3 AND 5"))) == [b"3", b"4", b"5"]
    assert bodies(broker.fast.ask(own("a > 7 OR a = 0"))) == [b"0", b"8", b"9"]
    nothing = broker.fast.ask(own("a = 'x'"))
    assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert nothing.ext_fields["nextBeginOffset"] == "10"


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        ("a >", "SQL92", "found the end at character 4"),
        ("", "SQL92", "the expression is empty"),
        (None, "SQL92", "the expression is empty"),
        ("a > 1", "XPATH", "unknown expression type 'XPATH'"),
        ("(" * 5000, "SQL92", "nested more than 100 levels deep"),
    ],
)
async def test_an_invalid_expression_is_refused(
    broker: AssembledBroker, text: str | None, kind: str, cause: str
) -> None:
    put(broker, b"x")
    answer = broker.fast.ask(own(text, kind))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark is not None
    assert answer.remark.startswith("parse the consumer's subscription failed: ")
    assert cause in answer.remark


async def test_expressions_are_compiled_once(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyromq.broker.handlers import pull_filters

    compiled: list[str | None] = []
    original = compile_expression

    def counting(kind: str, text: str | None) -> Any:
        compiled.append(text)
        return original(kind, text)

    monkeypatch.setattr(pull_filters, "compile_expression", counting)
    monkeypatch.setattr(pull_filters, "_MAX_COMPILED_LENGTH", 12)
    put(broker, b"x", a="5")
    for text in ("a = 5", "a = 5", "a = 6", "a = 5", "a = 7", "a = 5"):
        broker.fast.ask(own(text))
    assert compiled == ["a = 5", "a = 6", "a = 7"], "the one used last stays"
    broker.fast.ask(own("a = 6"))
    assert compiled[3:] == ["a = 6"]
    answer = broker.fast.ask(own("a = 5", "XPATH"))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_the_expression_comes_from_the_groups_heartbeat(broker: AssembledBroker) -> None:
    put(broker, b"1", a="1")
    put(broker, b"9", a="9")
    subscribe(broker, "a > 5")
    assert bodies(broker.fast.ask(by_group())) == [b"9"]
    subscribe(broker, "a < 5", 2)
    assert bodies(broker.fast.ask(by_group(2))) == [b"1"]


async def test_filter_data_that_is_missing_or_old(broker: AssembledBroker) -> None:
    put(broker, b"1", a="1")
    subscribe(broker, "a >")
    answer = broker.fast.ask(by_group())
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert answer.remark is not None
    assert "Your expression may be wrong" in answer.remark
    subscribe(broker, "a > 0", 2)
    assert broker.fast.ask(by_group(3)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    found = broker.filters.find("T", "consumers")
    assert found is not None
    found.client_version = 1
    assert broker.fast.ask(by_group(2)).code == ResponseCode.FILTER_DATA_NOT_LATEST


async def test_class_filters_are_left_to_the_client(broker: AssembledBroker) -> None:
    put(broker, b"1", a="1")
    subscribe(broker, "a > 5", class_filter_mode=True)
    assert bodies(broker.fast.ask(by_group())) == [b"1"]


async def test_sql_filters_are_off_by_default(tmp_path: Path) -> None:
    broker = assembled(tmp_path, enable_property_filter=False)
    subscribe(broker, "a > 5")
    for request in (own("a > 5"), by_group()):
        answer = broker.fast.ask(request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "The broker does not support consumer to filter message by SQL92"
    await broker.close()


async def test_a_parked_pull_gets_matching_messages(broker: AssembledBroker) -> None:
    assert broker.fast.exchange(own("a = 5", sysFlag=WAITING)) == []
    put(broker, b"other", a="4")
    await asyncio.sleep(0)
    assert broker.fast.received() == []
    assert len(broker.long_poll) == 1
    put(broker, b"wanted", a="5")
    await until(lambda: broker.fast.transport.written)
    (answer,) = broker.fast.received()
    assert bodies(answer) == [b"wanted"]


async def test_a_parked_pull_reads_a_bounded_number_of_records(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_RECORD_FILTER_ENTRIES", 2)
    assert broker.fast.exchange(own("a = 5", sysFlag=WAITING, maxMsgNums="1")) == []
    other = broker.connect()
    answers = other.exchange(
        *(send_request(body=b"x", queueId="0", properties="a\x014") for _ in range(5))
    )
    assert len(answers) == 5
    await until(lambda: broker.fast.transport.written)
    (answer,) = broker.fast.received()
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext_fields["nextBeginOffset"] == "2"


@pytest.mark.parametrize("supported", [True, False])
async def test_retried_messages(tmp_path: Path, supported: bool) -> None:
    broker = assembled(tmp_path, filter_support_retry=supported)
    topic = retry_topic("consumers")
    broker.topics.update(TopicConfig(topic, 1, 1))
    subscribe(broker, "a > 5")
    put(broker, b"1", topic, a="1", RETRY_TOPIC="T")
    put(broker, b"9", topic, a="9", RETRY_TOPIC="T")
    put(broker, b"other", topic, a="1", RETRY_TOPIC="U")
    answer = broker.fast.ask(pull_request(topic=topic))
    assert bodies(answer) == ([b"9", b"other"] if supported else [b"1", b"9", b"other"])
    await broker.close()


async def test_bit_maps_avoid_reading_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = assembled(
        tmp_path, store={"enable_consume_queue_ext": True}, enable_calc_filter_bit_map=True
    )
    put(broker, b"before", a="1")
    subscribe(broker, "a > 5")
    found = broker.filters.find("T", "consumers")
    assert found is not None
    assert found.message_filter is not None
    await until(lambda: broker.store.chunk_time() > found.born_time)
    for number in range(20):
        put(broker, b"%d" % number, a=str(number))
    looked_at: list[bytes] = []
    original = type(found.message_filter).wants

    def counting(self: Any, raw: bytes) -> bool:
        looked_at.append(raw)
        return original(self, raw)

    monkeypatch.setattr(type(found.message_filter), "wants", counting)
    assert bodies(broker.fast.ask(by_group())) == [b"%d" % number for number in range(6, 20)]
    assert len(looked_at) == 15, "those that match, and the one from before"
    await broker.close()


async def test_the_last_member_leaves_a_dead_filter(broker: AssembledBroker) -> None:
    subscribe(broker, "a > 5")
    assert broker.filters.find("T", "consumers") is not None
    broker.consumers.disconnect(broker.fast.connection)
    found = broker.filters.find("T", "consumers")
    assert found is not None
    assert found.is_dead


async def test_expressions_of_pulls_are_bounded(broker: AssembledBroker) -> None:
    put(broker, b"x", TAGS="red")
    for length, code in (
        (16_384, ResponseCode.SUCCESS),
        (16_385, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ):
        tags = "red||" + "a" * (length - 5)
        answer = broker.fast.ask(pull_request(subscription=tags, sysFlag=str(PULL_SUBSCRIPTION)))
        assert answer.code == code


async def test_plans_with_long_expressions_are_not_cached(broker: AssembledBroker) -> None:
    put(broker, b"x", TAGS="red")
    members = ConsumerData("consumers", subscription_data_set=[SubscriptionData("T")])
    member = Member(broker.fast.connection, "c", LanguageCode.JAVA, 407)
    broker.consumers.register(members, member)
    cached = broker.pull_handlers._plans._plans
    for flags in (0, PULL_SUBSCRIPTION):
        for length in (10, 2000):
            tags = "red||" + "a" * length
            answer = broker.fast.ask(pull_request(subscription=tags, sysFlag=str(flags)))
            assert bodies(answer) == [b"x"]
    assert len(cached) == 2
    assert sorted(str(plan.subscription)[:3] for plan in cached.values()) == ["Non", "red"]


def long_expression(number: int, length: int = 4000) -> str:
    return f"{number} = -1 OR " + " OR ".join(["a > 5"] * (length // 9))


async def test_pulls_of_one_chunk_share_the_budget_of_an_iteration(
    short_turns: None, broker: AssembledBroker
) -> None:
    put(broker, b"x", a="6")
    requests = [own(long_expression(number), opaque=number) for number in range(40)]
    requests.append(own("a > 5", opaque=40))
    at_once = broker.fast.exchange(*requests)
    assert 1 <= len(at_once) < 40, "the others have their turns later"
    answers = list(at_once)
    turns = 0
    while len(answers) < 41:
        await asyncio.sleep(0)
        turns += 1
        answers += broker.fast.received()
    assert turns > 2
    assert [answer.opaque for answer in answers] == list(range(41))
    assert {bodies(answer)[0] for answer in answers} == {b"x"}
    await until(lambda: not broker.fast.connection.is_busy)


async def test_a_pull_that_was_put_off_is_dropped_with_its_client(
    short_turns: None, broker: AssembledBroker
) -> None:
    put(broker, b"x", a="6")
    client = broker.connect()
    client.exchange(*(own(long_expression(number)) for number in range(40)))
    client.transport.close()
    client.lose()
    await until(lambda: not len(broker.long_poll.turns))
    await until(lambda: not broker.server.tasks)
    assert not client.connection.is_busy


async def test_waiting_pulls_keep_their_expressions_only(broker: AssembledBroker) -> None:
    client = broker.connect()
    for number in range(50):
        request = own(long_expression(number), sysFlag=WAITING, suspendTimeoutMillis="900000")
        client.exchange(request)
        await asyncio.sleep(0)
    await until(lambda: len(broker.long_poll) == 50)
    put(broker, b"not wanted", a="1")
    await until(lambda: not len(broker.long_poll.turns))
    assert len(broker.long_poll) == 50
    parked = [each for waiting in broker.long_poll._parked.values() for each in waiting]
    kept = [each.pull.plan for each in parked if isinstance(each, WaitingPull)]
    assert len(kept) == 50
    assert {plan.message_filter for plan in kept} == {None}
    put(broker, b"wanted", a="6")
    answers: list[Any] = []

    def all_answered() -> bool:
        answers.extend(client.received())
        return len(answers) == 50

    await until(all_answered)
    assert {bodies(answer)[0] for answer in answers} == {b"wanted"}


async def test_a_pull_above_the_limit_of_expressions_gets_busy(tmp_path: Path) -> None:
    broker = assembled(tmp_path, max_parked_expression_size=20)
    assert broker.fast.exchange(own("a = 1", sysFlag=WAITING)) == []
    answer = broker.fast.ask(own("a = 1 OR a = 2 OR a = 3", sysFlag=WAITING))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark is not None
    assert answer.remark.endswith("limit 20 (maxParkedExpressionSize)")
    await broker.close()
