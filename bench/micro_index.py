"""Measures the cost of the key index per message, for several batch sizes.

    .venv/bin/python bench/micro_index.py

Builds a section of log with 50,000 messages of two keys each (properties of about 140 bytes, as a
Java producer's), adds it to new index files in ten rounds, and prints the time per message of the
fastest and the median round, for the whole and for each step. Not part of `make bench`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyromq.protocol.message.bulk import Longs, read_columns, record_starts
from pyromq.protocol.message.joined_properties import JoinedProperties
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.store.index.index import KeyIndex

MESSAGES = 50_000
ROUNDS = 10
BATCHES = (1, 4, 8, 16, 32, 64, 256, 1_000, 5_000)
START_TIME = 1_700_000_000_000
T = TypeVar("T")


def main() -> None:
    """Print the table."""
    log = make_log(MESSAGES)
    starts, _ = record_starts(log)
    size = MESSAGES // ROUNDS
    rounds = [starts[at : at + size] for at in range(0, MESSAGES, size)]
    print(f"{MESSAGES} messages, {len(log) / MESSAGES:.0f} bytes each, two keys")
    print("µs per message                       fastest  median")
    for batch in BATCHES:
        with tempfile.TemporaryDirectory() as directory:
            index = KeyIndex(Path(directory))
            index.load()
            report(f"put, batches of {batch}", rounds, partial(put, index, log, batch))
            index.close()
    report("walk the sizes", rounds, lambda part: record_starts(log, int(part[0]), int(part[-1])))
    report("columns", rounds, lambda part: read_columns(log, part))
    spans = [read_columns(log, part).properties for part in rounds]
    report("join and cut properties", spans, lambda properties: JoinedProperties(log, properties))
    joined = [JoinedProperties(log, properties) for properties in spans]
    report("find UNIQ_KEY", joined, lambda properties: properties.find(b"UNIQ_KEY"))
    report("find words of KEYS", joined, lambda properties: properties.find_words(b"KEYS"))


def put(index: KeyIndex, log: bytes, batch: int, starts: Longs) -> None:
    """Index records in batches of a size."""
    for at in range(0, starts.size, batch):
        index.put(log, starts[at : at + batch])


def make_log(count: int) -> bytes:
    """Build `count` consecutive records."""
    records = []
    offset = 0
    for number in range(count):
        properties = (
            f"KEYS\x01order-{number:012d}\x02UNIQ_KEY\x017F0000010A1C18B4AAC2{number:012X}"
            f"\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01TagA"
            f"\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true"
        ).encode()
        record = encode_record(
            MessageRecord(
                topic="BenchmarkTest",
                queue_id=number % 8,
                queue_offset=number // 8,
                physical_offset=offset,
                body=bytes(128),
                properties={},
                flag=0,
                sys_flag=0,
                born_timestamp=START_TIME,
                born_host=("127.0.0.1", 1),
                store_timestamp=START_TIME + number // 100,
                store_host=("127.0.0.1", 2),
                reconsume_times=0,
                prepared_transaction_offset=0,
                body_crc=0,
                size=0,
                message_id="",
                raw_properties=properties,
            ),
            bytes(8),
            bytes(8),
        )
        records.append(record)
        offset += len(record)
    return b"".join(records)


def report(name: str, inputs: Sequence[T], work: Callable[[T], object]) -> None:
    """Run the work on each round's input and print the time per message."""
    times = []
    for value in inputs:
        begin = time.perf_counter()
        work(value)
        times.append((time.perf_counter() - begin) * 1e6 * ROUNDS / MESSAGES)
    print(f"{name:36s} {min(times):7.2f} {statistics.median(times):7.2f}")


if __name__ == "__main__":
    main()
