"""The queues of the kernel: found by topic and id, however many there are."""

from __future__ import annotations

from tests.unit.protocol.kernel.kernel_sends import Broker, send


def test_a_thousand_queues() -> None:
    broker = Broker()
    places = [(f"Topic{number // 7}", number % 7) for number in range(1000)]
    owners = [
        broker.add(topic, queue_id, next_offset=n) for n, (topic, queue_id) in enumerate(places)
    ]

    _, _, queues, _ = broker.run(*(send(topic=topic, queueId=str(q)) for topic, q in places))

    assert [owner for owner, _, _ in queues] == owners


def test_a_removed_queue_is_unknown_until_it_is_added_again() -> None:
    broker = Broker()
    broker.add()
    assert broker.serves(send())

    broker.sends.remove_queue(b"T", 1)
    assert not broker.serves(send())
    broker.sends.remove_queue(b"never", 1)

    queue = broker.add(next_offset=7)
    assert broker.run(send())[2][0][0] is queue


def test_similar_names_are_different_queues() -> None:
    broker = Broker()
    broker.add("T", 1)

    assert not broker.serves(send(topic="T1", queueId="1"))
    assert not broker.serves(send(topic="T", queueId="11"))
    assert not broker.serves(send(topic="", queueId="1"))
