from __future__ import annotations

from typing import Any

import pytest

from pyromq.admin.groups.running_info import (
    RunningInfo,
    problems,
    running_info,
    same_subscriptions,
)
from pyromq.protocol.wire.bodies import MessageQueue, SubscriptionData
from pyromq.protocol.wire.bodies_consumer import ConsumerRunningInfo, ProcessQueueInfo

NOW = 10_000_000
QUEUE = MessageQueue("orders", "broker-0", 1)


def info(
    *topics: str, push: bool = True, ordered: bool = False, started: int = 0, **state: Any
) -> RunningInfo:
    return running_info(
        "client",
        ConsumerRunningInfo(
            properties={
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY" if push else "CONSUME_ACTIVELY",
                "PROP_CONSUMEORDERLY": "true" if ordered else "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(started),
            },
            subscription_set=[SubscriptionData(topic) for topic in topics],
            mq_table={QUEUE: ProcessQueueInfo(**state)},
        ),
    )


def test_reads_a_report() -> None:
    found = info("b", "a", started=5)
    assert found.subscriptions == (("a", "*"), ("b", "*"))
    assert (found.is_push, found.is_ordered, found.started) == (True, False, 5)
    assert list(found.queues) == [QUEUE]
    assert running_info("client", ConsumerRunningInfo()).started == 0


@pytest.mark.parametrize(
    ("members", "same"),
    [
        ({}, True),
        ({"a": info("x"), "b": info("x")}, True),
        ({"a": info("x"), "b": info("y")}, False),
        ({"a": info("x", started=NOW - 60_000), "b": info("y")}, True),
        ({"a": info("x", push=False), "b": info("y")}, True),
        ({"a": info()}, False),
    ],
)
def test_compares_subscriptions_of_settled_push_groups(
    members: dict[str, RunningInfo], same: bool
) -> None:
    assert same_subscriptions(members, NOW) is same


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (info(cached_msg_count=1, last_consume_timestamp=NOW - 61_000), "not consumed for 61000"),
        (info(cached_msg_count=1, last_consume_timestamp=NOW - 59_000), None),
        (info(cached_msg_count=0, last_consume_timestamp=0), None),
        (info(push=False, cached_msg_count=1, last_consume_timestamp=0), None),
        (info(ordered=True, last_lock_timestamp=NOW - 5), "not locked for 5 ms"),
        (info(ordered=True, locked=True), None),
        (info(ordered=True, locked=True, droped=True, try_unlock_times=4), "in 4 attempts"),
    ],
)
def test_finds_stuck_queues(member: RunningInfo, problem: str | None) -> None:
    found = problems([member], NOW)
    if problem is None:
        assert found == []
    else:
        (text,) = found
        assert problem in text
        assert text.startswith("client: queue 1 of orders at broker-0 ")
