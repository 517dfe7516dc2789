"""Measures the Spark sink's cost per row without Spark: encoding, then encoding and sending.

    .venv/bin/python -m bench.micro_sink [--rows 1000000]

Encodes Arrow batches of 8,192 rows with bodies of 256 bytes and several sets of columns, then
stores rows in a pyromq broker, a separate process, through the sink's own `write`. Prints the
task's CPU time per row and, with a broker, rows per second. Not part of `make bench-spark`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from bench.servers import PyromqServer, wait_for_first_send
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.spark.sink.row_encoder import Limits, RowEncoder
from pyromq.spark.sink.unique_rows import UniqueRows
from pyromq.spark.sink.writer import BatchWriter

BATCH_ROWS: Final = 8192
BODY_SIZE: Final = 256
QUEUES: Final = [MessageQueue("micro", "b", number) for number in range(8)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    print("encoding, µs per row")
    for title, batch in batches().items():
        print(f"  {title:40} {encoding_time(batch):6.2f}")
    server = PyromqServer()
    server.prepare()
    with tempfile.TemporaryDirectory() as directory:
        pid = server.start(Path(directory))
        try:
            wait_for_first_send(server, pid)
            seconds, busy = write(server, batches()["body"], options.rows)
        finally:
            server.stop()
    print(f"write of {options.rows} rows: {options.rows / seconds:,.0f} rows/s, ", end="")
    print(f"{busy / options.rows * 1e6:.2f} µs of task CPU per row")


def batches() -> dict[str, pa.RecordBatch]:
    """Return batches by their columns."""
    rows = range(BATCH_ROWS)
    body = pa.array([os.urandom(BODY_SIZE) for _ in rows])
    keys = pa.array([f"key-{row}" for row in rows])
    pairs = pa.array([[("a", str(row)), ("b", "x")] for row in rows], pa.map_("string", "string"))
    raw = pa.array([f"a\x01{row}\x02UNIQ_KEY\x01{row:032}\x02CLUSTER\x01c" for row in rows])
    columns = {
        "body": {"body": body},
        "body, keys, tags": {"body": body, "keys": keys, "tags": pa.array(["tag"] * BATCH_ROWS)},
        "body, orderingKey": {"body": body, "orderingKey": keys},
        "body, properties (map)": {"body": body, "properties": pairs},
        "body, properties (raw)": {"body": body, "properties": raw},
    }
    return {
        title: pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))
        for title, arrays in columns.items()
    }


def encoding_time(batch: pa.RecordBatch) -> float:
    """Return CPU microseconds per row of the fastest of several rounds."""
    encoder = RowEncoder(
        Limits(512 * 1024, 4 * 1024 * 1024),
        UniqueRows.random(),
        lambda _: QUEUES,
        default_topic="micro",
    )
    times: list[float] = []
    for _ in range(10):
        begun = time.thread_time()
        for _ in encoder.encode(batch):
            pass
        times.append(time.thread_time() - begun)
    return min(times) / len(batch.column(0)) * 1e6


def write(server: PyromqServer, batch: pa.RecordBatch, rows: int) -> tuple[float, float]:
    """Write rows; return elapsed seconds and CPU seconds of this process."""
    schema = StructType([StructField("body", BinaryType())])
    options = {"nameserver": server.namesrv, "topic": "micro"}
    task = BatchWriter(options, schema, overwrite=False)
    task.write(iter([batch]))
    begun, busy = time.perf_counter(), time.process_time()
    written = task.write(take(batch, rows))
    assert written.rows == rows
    return time.perf_counter() - begun, time.process_time() - busy


def take(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches."""
    for first in range(0, rows, batch.num_rows):
        yield batch.slice(0, min(batch.num_rows, rows - first))


if __name__ == "__main__":
    main()
