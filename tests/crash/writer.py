"""A process that fills a store until it is killed, and says on its output what is stored.

    python writer.py DIRECTORY FIRST_NUMBER

Prints `ready`, then a line for each sealed chunk: for every message its topic, queue,
queue offset, physical offset and number. A line is whole or it does not count.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from tests.support.stores import open_store, put, put_batch

SETTINGS = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 1024,
    "max_index_num": 2048,
    "flush_interval_commit_log": 2,
    "flush_interval_consume_queue": 5,
    "flush_commit_log_thorough_interval": 5,
}
QUEUES = [(topic, queue_id) for topic in ("TopicA", "TopicB") for queue_id in range(3)]


def body_of(number: int) -> bytes:
    """The body of a message: its number, then as much as the number says."""
    return b"%d:" % number + bytes([number % 251]) * (number * 7919 % 1500)


def main(directory: Path, number: int) -> None:
    """Store chunk after chunk; each is told only when it is sealed."""
    store = open_store(directory, **SETTINGS)
    os.write(1, b"ready\n")
    choose = random.Random(number)
    while True:
        told = []
        for _ in range(choose.randint(1, 6)):
            topic, queue_id = choose.choice(QUEUES)
            offset = store.max_offset(topic, queue_id)
            count = choose.choice((1, 1, 1, 2, 5, 30))
            numbers = range(number, number + count)
            number += count
            if count == 1:
                body, key = body_of(numbers[0]), f"k{numbers[0]}"
                places = [put(store, body, topic=topic, queue_id=queue_id, keys=key, tags="T")]
            else:
                bodies = [body_of(each) for each in numbers]
                places = put_batch(store, bodies, topic=topic, queue_id=queue_id, tags="B")
            told += [
                f"{topic},{queue_id},{offset + at},{place},{each}"
                for at, (place, each) in enumerate(zip(places, numbers, strict=True))
            ]
        store.seal()
        os.write(1, (" ".join(told) + "\n").encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
