from __future__ import annotations

import pytest

from pyromq.client.consumer.lite_pull.options import LitePullSettings
from pyromq.client.consumer.lite_pull.read_ahead import ReadAhead, Reading
from pyromq.client.consumer.lite_pull.requests import AskedReader
from pyromq.client.consumer.process_queue import Limits
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import ClientStateError
from pyromq.client.options import Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue
from pyromq.protocol.wire.bodies_consumer import ConsumerRunningInfo
from tests.unit.client.consumer.lite_pull.test_read_ahead import messages

QUEUE, OTHER = MessageQueue("t", "b0", 0), MessageQueue("t", "b0", 1)


class Consumer:
    """One queue with two messages that wait, another of which nothing is known."""

    def __init__(self) -> None:
        self.readings = {QUEUE: Reading(QUEUE, 5), OTHER: Reading(OTHER)}
        ReadAhead(Limits(), 100).put(self.readings[QUEUE], messages(5, 7), 8)
        self.seeks: list[tuple[MessageQueue, int]] = []
        self.rebalances = 0
        self.asked = AskedReader(
            "g",
            LitePullSettings(auto_commit=False),
            self.readings,
            subscriptions=lambda: [Subscription.tags("a").data("tenant%t", 1)],
            rebalance=self.rebalance,
            go_on_from=self.go_on_from,
        )
        self.asked.session = Session(
            Settings.of("127.0.0.1:1", {"namespace": "tenant"}), HeartbeatData
        )

    def rebalance(self) -> None:
        self.rebalances += 1

    async def go_on_from(self, queue: MessageQueue, offset: int) -> None:
        self.seeks.append((queue, offset))


async def test_offsets_are_reset_in_queues_that_are_ours() -> None:
    consumer = Consumer()
    await consumer.asked.reset_offsets({QUEUE: 3, MessageQueue("t", "b0", 9): 1})
    assert consumer.seeks == [(QUEUE, 3)]
    assert consumer.asked.offsets() == {QUEUE: 5}
    consumer.asked.members_changed()
    assert consumer.rebalances == 1


async def test_a_portrait_in_the_words_of_rocketmq() -> None:
    info = ConsumerRunningInfo.decode(Consumer().asked.running_info().encode())
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert info.properties["consumerGroup"] == "tenant%g"
    assert info.properties["autoCommit"] == "false"
    assert [subscription.topic for subscription in info.subscription_set] == ["tenant%t"]
    assert list(info.status_table) == ["t"]
    waiting = info.mq_table[QUEUE]
    assert (waiting.commit_offset, waiting.cached_msg_count) == (5, 2)
    assert (waiting.cached_msg_min_offset, waiting.cached_msg_max_offset) == (5, 7)
    assert info.mq_table[OTHER].cached_msg_count == 0


async def test_there_is_no_handler_to_give_a_message_to() -> None:
    (message,) = messages(1)
    message.queue, message.topic = QUEUE, "t"
    message._raw_properties, message._all_properties = b"", {"UNIQ_KEY": "id"}
    with pytest.raises(ClientStateError, match="no handler"):
        await Consumer().asked.consume_directly(message)
