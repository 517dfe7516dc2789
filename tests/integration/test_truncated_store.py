"""A broker on a truncated store: a group gets exactly the remaining messages, and then new ones."""

from __future__ import annotations

import pytest

from pyromq.client import Message, Producer, PullConsumer
from pyromq.store.offline.check import guess_config
from pyromq.store.offline.truncate import truncate_store
from pyromq.testing import Cluster

TOPIC = "orders"
GROUP = "billing"
COUNT = 60
KEPT = 37


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_group_continues_at_the_new_end(end: str) -> None:
    with Cluster() as cluster:
        broker = cluster.brokers[0]
        cluster.create_topic(TOPIC, queues=2)
        with (
            Producer.sync(cluster.namesrv) as producer,
            PullConsumer.sync(cluster.namesrv, group=GROUP, topic=TOPIC) as consumer,
        ):
            for number in range(COUNT):
                producer.send(Message(TOPIC, b"%d" % number))
            sent = cluster.drain(TOPIC, count=COUNT)
            for queue in consumer.queues():
                consumer.commit(queue, consumer.max_offset(queue))
            broker.restart()  # saves the offsets
            broker.stop() if end == "stop" else broker.kill()
            truncate_store(guess_config(broker.directory), sent[KEPT].physical_offset, apply=True)
            broker.start()
            found = []
            for queue in consumer.queues():
                last = consumer.max_offset(queue)
                assert consumer.committed(queue) == last
                for offset in range(last):
                    found += [m.body for m in consumer.pull(queue, offset, 1).messages]
            assert sorted(found) == sorted(message.body for message in sent[:KEPT])
            place = producer.send(Message(TOPIC, b"new"))
            (new,) = consumer.pull(place.queue, place.queue_offset).messages
            assert (new.body, new.physical_offset) == (b"new", sent[KEPT].physical_offset)
