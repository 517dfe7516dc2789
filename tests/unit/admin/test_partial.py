from __future__ import annotations

import asyncio

import pytest

from pyromq.admin import Admin, PartialFailureError, UnreachableError
from pyromq.admin.partial import from_reachable, with_results
from pyromq.client import Message, Producer, PullConsumer
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.unit.admin.dead_brokers import ADDRESS, dead_broker
from tests.unit.admin.stored_messages import make_dead_letters
from tests.unit.cli.admin.admin_runs import invoke


async def _call(address: str) -> str:
    await asyncio.sleep(0)
    if address.startswith("bad"):
        raise UnreachableError(address, "down")
    return address.upper()


async def test_results_of_those_that_answer(admin: Admin) -> None:
    found = await from_reachable(admin.session, "reading", ["a", "b"], _call)
    assert found == ({"a": "A", "b": "B"}, None)
    results, error = await from_reachable(admin.session, "reading", ["a", "bad-1", "c"], _call)
    assert results == {"a": "A", "c": "C"}
    assert error is not None
    assert list(error.failures) == ["bad-1"]
    other = with_results(error, "adding", 1, 2)
    assert (other.results, other.done) == ((1, 2), ("a", "c"))
    assert str(other).startswith("adding failed at bad-1 (done at a, c)")
    with pytest.raises(UnreachableError):
        await from_reachable(admin.session, "reading", ["bad-1"], _call)
    with pytest.raises(PartialFailureError, match="done nowhere"):
        await from_reachable(admin.session, "reading", ["bad-1", "bad-2"], _call)


async def test_a_dead_broker_does_not_hide_the_others(rocketmq: Cluster, admin: Admin) -> None:
    for topic in ("orders", "%RETRY%readers", "%DLQ%readers"):
        await rocketmq.create_topic_async(topic, queues=1)
    queue = MessageQueue("orders", "broker-0", 0)
    async with Producer(rocketmq.namesrv) as producer:
        await producer.send(Message("orders", b"x"), queue)
    async with PullConsumer(rocketmq.namesrv, "orders", group="readers") as consumer:
        await consumer.commit(queue, 0)
    await make_dead_letters(admin, rocketmq.namesrv, "orders", "readers", [b"dead"])
    topics = ("orders", "%RETRY%readers", "%DLQ%readers")
    async with dead_broker(rocketmq.namesrv, "broker-9", topics=topics):
        with pytest.raises(PartialFailureError, match=ADDRESS) as error:
            await admin.groups.progress("readers")
        assert error.value.results[0].diff_total == 2
        (summary,) = await admin.groups.summaries()
        assert summary.diff_total == 2
        assert ADDRESS in summary.problem
        with pytest.raises(PartialFailureError) as error:
            await admin.groups.settings("readers")
        assert [each.broker_name for each in error.value.results] == ["broker-0"]
        with pytest.raises(PartialFailureError) as error:
            await admin.dead_letters.groups()
        assert [each.count for each in error.value.results] == [1]
        with pytest.raises(PartialFailureError) as error:
            await admin.delayed.levels()
        assert {each.broker_name for each in error.value.results} == {"broker-0"}
        for found in (
            await admin.delayed.find(),
            await admin.half_messages.find(),
            await admin.messages.by_time("orders", 0, 1 << 62),
        ):
            assert not found.complete
            assert ADDRESS in found.reason
        assert len((await admin.messages.by_time("orders", 0, 1 << 62)).messages) == 2
        with pytest.raises(PartialFailureError):
            await admin.offsets.skip("readers", "orders")

        shown = await asyncio.to_thread(invoke, rocketmq.namesrv, "consumerProgress")
        assert shown.exit_code == 1
        assert "readers" in shown.stdout
        assert ADDRESS in shown.stderr
        for line in ("dlqList", "consumerProgress -g readers", "getConsumerConfig -g readers"):
            shown = await asyncio.to_thread(invoke, rocketmq.namesrv, line)
            assert shown.exit_code == 1, line
            assert "broker-0" in shown.stdout, line
