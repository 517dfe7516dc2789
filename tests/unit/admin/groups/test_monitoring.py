from __future__ import annotations

from pyromq.admin import Admin
from pyromq.admin.groups.monitoring import Monitor, Undone
from pyromq.client import Message, Producer, PushConsumer, StartFrom
from pyromq.protocol.names import OFFSET_MOVED_TOPIC
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.support.patience import until


async def test_reports_lags_of_groups_that_are_online(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    queue = MessageQueue(rocketmq_topic, "broker-0", 0)
    monitor = Monitor(admin.session)
    async with (
        Producer(rocketmq.namesrv) as producer,
        PushConsumer(
            rocketmq.namesrv,
            group="readers",
            subscriptions=rocketmq_topic,
            handler=lambda _: None,
            commit_interval=0.1,
            start_from=StartFrom.FIRST,
        ),
    ):
        await producer.send(Message(rocketmq_topic, b"x"), queue)

        async def undone() -> list[Undone]:
            found = await monitor.examine()
            assert found.failures == {}
            assert found.moved == ()
            return [each for each in found.undone if each.topic == rocketmq_topic]

        async def is_done() -> bool:
            return await undone() == [Undone("readers", rocketmq_topic, 0, 0, 0)]

        await until(is_done)
        (state,) = (await monitor.examine()).groups
        assert (state.group, state.problems) == ("readers", ())

    await producer_after(rocketmq, queue)
    assert (await monitor.examine()).undone == ()  # offline groups are left out, as in Java


async def producer_after(rocketmq: Cluster, queue: MessageQueue) -> None:
    async with Producer(rocketmq.namesrv) as producer:
        await producer.send(Message(queue.topic, b"x"), queue)


async def test_reports_events_once(rocketmq: Cluster, admin: Admin) -> None:
    monitor = Monitor(admin.session)
    # Brokers write to it themselves; there is no message to read here, but a route.
    assert (await monitor.examine()).moved == ()
    assert OFFSET_MOVED_TOPIC not in {each.group for each in (await monitor.examine()).groups}
