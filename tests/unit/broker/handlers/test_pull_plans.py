"""Plans of pulls: checks, their order, and how long a plan is reused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.protocol.wire.bodies import (
    MessageModel,
    SubscriptionGroupConfig,
    TopicConfig,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.support.requests import pull_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.handlers.pulls import bodies, subscribe


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    assembled.topics.update(TopicConfig("T", 4, 4))
    yield assembled
    await assembled.close()


async def test_refusals_are_in_rocketmqs_order(tmp_path: Path) -> None:
    everything_wrong: dict[str, Any] = {
        "consumerGroup": "unknown",
        "topic": "unknown",
        "queueId": "-1",
        "sysFlag": "0",
    }
    config: dict[str, Any] = {"broker_ip1": "127.0.0.1", "auto_create_subscription_group": False}
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


async def test_a_group_is_created_if_allowed(broker: AssembledBroker) -> None:
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
async def test_a_bad_field_is_named(broker: AssembledBroker, name: str) -> None:
    broker.put(b"x")
    values: list[Any] = [None]
    if name not in ("consumerGroup", "topic"):
        values += ["", "x", " 1", "1_0", "1.5", "9" * 20, "9" * 5000]
    for value in values:
        answer = broker.fast.ask(pull_request(**{name: value}))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert name in (answer.remark or "")
    assert not broker.fast.closed


def _pull_again(broker: AssembledBroker, **fields: Any) -> RemotingCommand:
    return broker.fast.ask(pull_request(**fields))


async def test_the_next_pull_sees_every_change(broker: AssembledBroker) -> None:
    broker.put(b"red", tags="red")
    broker.put(b"blue", tags="blue")
    subscribe(broker, "red", version=1)
    of_group: dict[str, Any] = {"sysFlag": "0", "subVersion": "1"}
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


async def test_a_cached_plan_parses_offsets_as_strictly(broker: AssembledBroker) -> None:
    broker.put(b"x")
    for offset in ("", " 0", "1_0", "9" * 30, "0x1"):
        assert _pull_again(broker).code == ResponseCode.SUCCESS
        assert _pull_again(broker, queueOffset=offset).code == ResponseCode.SYSTEM_ERROR
