"""Call a Python function for each item, as the tasks of one Spark job.

    results = fan_out(session, work, items)      # in the order of the items

`work` and the items travel by pickle, and so do the results, which should be small: names and
numbers, not data. Spark retries a failed task as configured, so `work` must be idempotent, also
when two copies run at the same time. After the last attempt `TaskFailedError` carries the task's
own error message, without the stack traces of two languages.

A classic session runs an RDD. Spark Connect has no RDDs, so there it is `mapInArrow`, which needs
pandas (as Connect itself does). Called in the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class TaskFailedError(Exception):
    """A task failed in all of its attempts. The message is that of the last one."""


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Concurrent tasks to assume if a Spark Connect server does not say.
_DEFAULT_PARALLELISM: Final = 8
_TRACEBACK: Final = "Traceback (most recent call last)"
#: Limits on the text of a `TaskFailedError`.
_MAX_ERROR_LINES: Final = 6
_MAX_ERROR_LENGTH: Final = 1000


def fan_out(
    session: SparkSession, work: Callable[[_Item], _Result], items: Sequence[_Item]
) -> list[_Result]:
    """Return `work(item)` for each item, computed by one task each. Raises TaskFailedError."""
    if not items:
        return []
    try:
        if is_connect(session):
            return _over_connect(session, work, items)
        context = session.sparkContext
        return context.parallelize(items, len(items)).map(work).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise TaskFailedError(_summary(str(error))) from error


def _over_connect(
    session: SparkSession, work: Callable[[_Item], _Result], items: Sequence[_Item]
) -> list[_Result]:
    call = _ArrowCall(work, items)
    count = len(items)
    rows = (
        session.range(0, count, 1, count).mapInArrow(call, "number long, result binary").collect()
    )
    # Safe to unpickle: our own tasks have just written it.
    found = {row["number"]: pickle.loads(row["result"]) for row in rows}  # noqa: S301
    return [found[number] for number in range(count)]


def parallelism(session: SparkSession) -> int:
    """Return how many tasks Spark can run at a time, as far as it says."""
    if is_connect(session):
        default = session.conf.get("spark.sql.leafNodeDefaultParallelism", None)
        return int(default) if default else _DEFAULT_PARALLELISM
    return session.sparkContext.defaultParallelism


def is_connect(session: SparkSession) -> bool:
    """Return whether this is a Spark Connect session."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def _summary(text: str) -> str:
    """Return the exception that a Python worker raised, or else the start of Spark's message."""
    lines = text.splitlines()
    if _TRACEBACK in text:
        # The exception follows the frames of the traceback, which are indented.
        last = max(number for number, line in enumerate(lines) if line.startswith("  "))
        lines = lines[last + 1 :]
    else:
        lines = [line.strip() for line in lines if not line.startswith("\t")]
    said = [line for line in lines if line.strip() and "SQLSTATE:" not in line]
    return "\n".join(said[:_MAX_ERROR_LINES])[:_MAX_ERROR_LENGTH] or text[:_MAX_ERROR_LENGTH]


class _ArrowCall:
    """The function that `mapInArrow` calls in a task: numbers of items in, pickled results out."""

    def __init__(self, work: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self._work = work
        self._items = items

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(self._work(self._items[number]))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([result], pa.binary())],
                    ["number", "result"],
                )
