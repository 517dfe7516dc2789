"""A process that fills a store until it is killed, and says on its output what is stored.

    python writer.py DIRECTORY FIRST_NUMBER [pool]

Prints `ready`, then a line for each sealed chunk: for every message its topic, queue,
queue offset, physical offset and number. A line is whole or it does not count.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

from pyromq.store.message_store import MessageStore
from tests.support.stores import open_store, put, put_batch

SETTINGS = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 1024,
    "max_index_num": 2048,
    "flush_interval_commit_log": 2,
    "flush_interval_consume_queue": 5,
    "flush_consume_queue_least_pages": 0,
    "flush_commit_log_thorough_interval": 5,
}
#: With a transient store pool, whose buffers are used again and again.
POOL_SETTINGS = {
    **SETTINGS,
    "transient_store_pool_enable": True,
    "transient_store_pool_size": 3,
    "commit_interval_commit_log": 10,
    "commit_commit_log_thorough_interval": 10,
}
QUEUES = [(topic, queue_id) for topic in ("TopicA", "TopicB") for queue_id in range(3)]


def body_of(number: int) -> bytes:
    """The body of a message: its number, then as much as the number says."""
    return b"%d:" % number + bytes([number % 251]) * (number * 7919 % 1500)


class Told(NamedTuple):
    """Where a message is, as the store said."""

    topic: str
    queue_id: int
    offset: int
    physical: int
    number: int


def main(directory: Path, number: int, *, pool: bool) -> None:
    """Store chunk after chunk; each is told only when it is sealed."""
    store = open_store(directory, **POOL_SETTINGS if pool else SETTINGS)
    os.write(1, b"ready\n")
    choose = random.Random(number)
    while True:
        told = put_chunk(store, choose, number)
        number += len(told)
        store.seal()
        line = " ".join(",".join(map(str, message)) for message in told)
        os.write(1, (line + "\n").encode())


def put_chunk(store: MessageStore, choose: random.Random, number: int) -> list[Told]:
    """Gather a few messages, numbered from `number` on: singles and batches, any queue."""
    told: list[Told] = []
    for _ in range(choose.randint(1, 6)):
        topic, queue_id = choose.choice(QUEUES)
        offset = store.max_offset(topic, queue_id)
        numbers = range(number, number + choose.choice((1, 1, 1, 2, 5, 30)))
        number = numbers.stop
        if len(numbers) == 1:
            body, keys = body_of(numbers[0]), f"k{numbers[0]} shared{numbers[0] // 10}"
            places = [put(store, body, topic=topic, queue_id=queue_id, keys=keys, tags="T")]
        else:
            bodies = [body_of(each) for each in numbers]
            places = put_batch(store, bodies, topic=topic, queue_id=queue_id, tags="B")
        told += [
            Told(topic, queue_id, offset + at, place, each)
            for at, (place, each) in enumerate(zip(places, numbers, strict=True))
        ]
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), pool="pool" in sys.argv[3:])
