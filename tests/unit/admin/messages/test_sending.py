from __future__ import annotations

import pytest

from pyromq.admin import Admin, AdminError
from pyromq.admin.errors import UnknownTopicError
from pyromq.admin.messages.sending import send_copy
from pyromq.testing import Cluster
from tests.unit.admin.stored_messages import made_up


async def test_measures_each_queue_in_turn(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    found = [each async for each in admin.messages.check_latency(rocketmq_topic, amount=6, size=10)]

    assert [each.queue_id for each in found] == [0, 1, 2, 3, 0, 1]
    assert {(each.broker_name, each.succeeded, each.problem) for each in found} == {
        ("broker-0", True, "")
    }
    assert all(each.latency_ms > 0 for each in found)
    assert rocketmq.message_count(rocketmq_topic) == 6


async def test_failures_are_measured_too(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    latencies = admin.messages.check_latency(rocketmq_topic, amount=2, size=5_000_000)
    found = [each async for each in latencies]
    assert [each.succeeded for each in found] == [False, False]
    assert "limit" in found[0].problem
    assert rocketmq.message_count(rocketmq_topic) == 0


async def test_an_unknown_topic(admin: Admin, rocketmq_topic: str) -> None:
    with pytest.raises(UnknownTopicError) as error:
        await anext(admin.messages.check_latency(rocketmq_topic[:-1]))
    assert error.value.suggestions == (rocketmq_topic,)


async def test_an_unreadable_body_is_not_copied(admin: Admin) -> None:
    with pytest.raises(AdminError, match="cannot be copied: zlib"):
        await send_copy(admin.session, made_up(problem="zlib"))
