"""The Spark sink's tasks, without Spark, against real brokers."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from pyromq.spark.sink.options import WriteOptions
from pyromq.spark.sink.unique_rows import UniqueRows
from pyromq.spark.sink.writer import send_rows
from tests.clients.cases import Case, against_all_brokers
from tests.support.clients import spark_options

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

ROWS = 1000
LARGE = 3 * 1024 * 1024


@against_all_brokers
async def test_rows_are_stored_as_messages(case: Case) -> None:
    numbers = range(ROWS)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([b"%d" % number for number in numbers]),
            pa.array([f"order-{number % 7}" for number in numbers]),
            pa.array([None if number % 2 else "even" for number in numbers]),
            pa.array([1 if number % 250 == 0 else None for number in numbers], pa.int32()),
            pa.array(
                [[("color", f"ü{number}")] for number in numbers], pa.map_("string", "string")
            ),
        ],
        ["body", "orderingKey", "tags", "delayLevel", "properties"],
    )
    large = pa.RecordBatch.from_arrays([pa.array([b"x" * LARGE, b"y"])], ["body"])
    options = WriteOptions.parse(
        {
            "nameserver": case.namesrv,
            "topic": case.topic,
            "sendTimeout": "60s",
            **spark_options(case.cluster.options),
        }
    )
    for number, batch in enumerate((rows, large)):
        unique = UniqueRows.of_task("test", number)
        sent = await asyncio.to_thread(send_rows, iter([batch]), options, unique)
        assert (sent.rows, sent.unsafe_rows) == (batch.num_rows, 0)
    stored = await case.wait_stored(ROWS + 2)
    assert len({message.msg_id for message in stored}) == len(stored) == ROWS + 2
    assert sorted(len(message.body) for message in stored)[-1] == LARGE
    queues: dict[str, set[int]] = {}
    seen: dict[str, list[int]] = {}
    for message in stored:
        if not message.body.isdigit():
            continue
        number = int(message.body)
        assert message.tags == ("" if number % 2 else "even")
        assert message.properties["color"] == f"ü{number}"
        key = message.ordering_key
        queues.setdefault(key, set()).add(message.queue.queue_id)
        if number % 250:  # the others came later
            seen.setdefault(key, []).append(number)
    assert all(len(found) == 1 for found in queues.values())
    assert all(found == sorted(found) for found in seen.values())
    assert sum(map(len, seen.values())) == ROWS - 4
