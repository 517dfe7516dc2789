"""Everything that needs no session; tests/spark/test_archive.py tests the rest."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from pyromq.spark.runtime.fan_out import TaskFailedError, fan_out, is_connect, parallelism


def double(number: int) -> int:
    return 2 * number


class FakeRows:
    """A fake Connect session without a server."""

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}
        self.error: Exception | None = None
        self._frames: list[pa.RecordBatch] = []

    def range(self, start: int, end: int, step: int, partitions: int) -> FakeRows:
        assert (start, step, partitions) == (0, 1, end)
        self._frames = [
            pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], ["id"])
            for number in reversed(range(end))
        ]
        return self

    def mapInArrow(self, function: Any, schema: str) -> FakeRows:  # noqa: N802
        assert schema == "number long, result binary"
        travelled = pickle.loads(pickle.dumps(function))
        self._frames = [each for frame in self._frames for each in travelled(iter([frame]))]
        return self

    def collect(self) -> list[dict[str, Any]]:
        if self.error is not None:
            raise self.error
        return [row for frame in self._frames for row in frame.to_pylist()]


FakeRows.__module__ = "pyspark.sql.connect.session"


def test_results_come_in_the_order_of_the_items() -> None:
    session: Any = FakeRows()
    assert is_connect(session)
    assert fan_out(session, double, [5, 7, 9]) == [10, 14, 18]
    assert fan_out(session, double, []) == []


def test_parallelism() -> None:
    session: Any = FakeRows()
    assert parallelism(session) == 8
    session.conf = {"spark.sql.leafNodeDefaultParallelism": "3"}
    assert parallelism(session) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            (
                "An exception was thrown from the Python worker:\n"
                "Traceback (most recent call last):\n"
                '  File "a.py", line 7, in work\n'
                "    raise OriginError(text)\n"
                "pyromq.spark.origins.origin.OriginError: no broker answers\n"
                "try again\n SQLSTATE: 38000\n"
            ),
            "pyromq.spark.origins.origin.OriginError: no broker answers\ntry again",
        ),
        (
            (
                "Job aborted due to stage failure: Task 0 failed 4 times\n"
                "\tat org.apache.spark.api\n\tat org.apache.spark.rdd\n\nDriver stacktrace:"
            ),
            "Job aborted due to stage failure: Task 0 failed 4 times\nDriver stacktrace:",
        ),
        ("", ""),
    ],
)
def test_errors_of_tasks_are_short(text: str, said: str) -> None:
    session: Any = FakeRows()
    session.error = PySparkException(text)
    with pytest.raises(TaskFailedError) as failed:
        fan_out(session, double, [1])
    assert str(failed.value) == said
