"""What the key index costs per message, for batches of several sizes.

    .venv/bin/python bench/micro_index.py

Builds a stretch of log with 50,000 messages of two keys each (properties of about 130
bytes, as a Java producer's), puts it into fresh index files and prints CPU time per
message; then the parts of it by themselves. Not part of `make bench`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyromq.protocol.bulk import JoinedProperties, Longs, read_columns, record_starts
from pyromq.protocol.record import MessageRecord, encode_record
from pyromq.store.index import KeyIndex

MESSAGES = 50_000
BATCHES = (1, 4, 8, 16, 32, 64, 256, 1_000, 4_000)
START_TIME = 1_700_000_000_000


def main() -> None:
    """Print the table."""
    log = make_log(MESSAGES)
    starts, _ = record_starts(log)
    print(f"{MESSAGES} messages, {len(log) / MESSAGES:.0f} bytes each, two keys")
    walk = cpu_time(lambda: record_starts(log))
    print(f"walk the sizes            {per_message(walk):6.2f} µs per message")
    for batch in BATCHES:
        parts = [starts[at : at + batch] for at in range(0, MESSAGES, batch)]
        with tempfile.TemporaryDirectory() as directory:
            index = KeyIndex(Path(directory))
            index.load()
            spent = cpu_time(partial(put_all, index, log, parts))
            index.close()
        print(f"put, batches of {batch:5d}     {per_message(spent):6.2f} µs per message")
    columns = read_columns(log, starts)
    joined = JoinedProperties(log, columns.properties)
    for name, work in (
        ("columns", lambda: read_columns(log, starts)),
        ("join and cut properties", lambda: JoinedProperties(log, columns.properties)),
        ("find UNIQ_KEY", lambda: joined.find(b"UNIQ_KEY")),
        ("find KEYS", lambda: joined.find(b"KEYS")),
    ):
        print(f"{name:25s} {per_message(cpu_time(work)):6.2f} µs per message, all at once")


def put_all(index: KeyIndex, log: bytes, parts: list[Longs]) -> None:
    """Put the log in the given batches."""
    for part in parts:
        index.put(log, part)


def make_log(count: int) -> bytes:
    """`count` records one behind the other."""
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


def cpu_time(work: Callable[[], object]) -> float:
    """Seconds of CPU time that `work` takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def per_message(seconds: float) -> float:
    """Microseconds per message."""
    return seconds * 1e6 / MESSAGES


if __name__ == "__main__":
    main()
