from __future__ import annotations

import pytest

from pyromq.client.consumer.lite_pull.options import LitePullSettings
from pyromq.client.consumer.lite_pull.read_ahead import ReadAhead, Reading
from pyromq.client.consumer.lite_pull.requests import LitePullRequests
from pyromq.client.consumer.process_queue import Limits
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import ClientStateError
from pyromq.client.options import Settings
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_consumer import ConsumerRunningInfo
from tests.unit.client.consumer.lite_pull.test_read_ahead import messages

QUEUE, OTHER = MessageQueue("t", "b0", 0), MessageQueue("t", "b0", 1)


class Consumer:
    """One queue with two cached messages, and another whose start is unknown."""

    def __init__(self) -> None:
        self.readings = {QUEUE: Reading(QUEUE, 5), OTHER: Reading(OTHER)}
        ReadAhead(Limits(), 100).put(self.readings[QUEUE], messages(5, 7), 8)
        self.seeks: list[tuple[MessageQueue, int]] = []
        self.rebalances = 0
        self.requests = LitePullRequests(
            "g",
            LitePullSettings(auto_commit=False),
            Settings.of("127.0.0.1:1", {"namespace": "tenant"}),
            self.readings,
            subscriptions=lambda: [Subscription.tags("a").data("tenant%t", 1)],
            rebalance=self.rebalance,
            restart=self.restart,
        )

    def rebalance(self) -> None:
        self.rebalances += 1

    async def restart(self, queue: MessageQueue, offset: int) -> None:
        self.seeks.append((queue, offset))


async def test_offsets_are_reset_for_assigned_queues_only() -> None:
    consumer = Consumer()
    await consumer.requests.reset_offsets({QUEUE: 3, MessageQueue("t", "b0", 9): 1})
    assert consumer.seeks == [(QUEUE, 3)]
    assert consumer.requests.offsets() == {QUEUE: 5}
    consumer.requests.members_changed()
    assert consumer.rebalances == 1


async def test_running_info_uses_java_names() -> None:
    info = ConsumerRunningInfo.decode(Consumer().requests.running_info().encode())
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert info.properties["consumerGroup"] == "tenant%g"
    assert info.properties["autoCommit"] == "false"
    assert [subscription.topic for subscription in info.subscription_set] == ["tenant%t"]
    assert list(info.status_table) == ["t"]
    waiting = info.mq_table[QUEUE]
    assert (waiting.commit_offset, waiting.cached_msg_count) == (5, 2)
    assert (waiting.cached_msg_min_offset, waiting.cached_msg_max_offset) == (5, 7)
    assert info.mq_table[OTHER].cached_msg_count == 0


async def test_consume_directly_is_refused() -> None:
    (message,) = messages(1)
    message.queue, message.topic = QUEUE, "t"
    message._all_properties = {"UNIQ_KEY": "id"}
    with pytest.raises(ClientStateError, match="no handler"):
        await Consumer().requests.consume_directly(message)
