"""One call of a Python function for each item, as the tasks of one Spark job.

    results = fan_out(session, work, items)      # results in the order of the items

`work` and the items travel by pickle; results come back the same way, so they should be
small: names and numbers, not data. A task that fails is tried again as often as Spark was
told; `work` must bear being run more than once, also twice at a time. When it fails for good
`TaskFailedError` says why in the words of the task, without the stacks of two languages.

A classic session runs it as an RDD; through Spark Connect there are none, and it runs as
`mapInArrow`, which needs pandas (as Connect itself does). Called in the driver.
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
    """A task failed as often as Spark was to try it: what it said the last time."""


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: How many tasks at a time are assumed of a server that does not tell.
_UNKNOWN_PARALLELISM: Final = 8
_TRACEBACK: Final = "Traceback (most recent call last)"
#: Of an error.
_LINES: Final = 6
_CHARACTERS: Final = 1000


def fan_out(
    session: SparkSession, work: Callable[[_Item], _Result], items: Sequence[_Item]
) -> list[_Result]:
    """What `work` makes of each item; one task for each. Raises TaskFailedError."""
    if not items:
        return []
    try:
        if is_connect(session):
            return _over_connect(session, work, items)
        context = session.sparkContext
        return context.parallelize(items, len(items)).map(work).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise TaskFailedError(_in_short(str(error))) from error


def _over_connect(
    session: SparkSession, work: Callable[[_Item], _Result], items: Sequence[_Item]
) -> list[_Result]:
    call = _ArrowCall(work, items)
    count = len(items)
    rows = (
        session.range(0, count, 1, count).mapInArrow(call, "number long, result binary").collect()
    )
    # Ours, made by our own task a moment ago.
    found = {row["number"]: pickle.loads(row["result"]) for row in rows}  # noqa: S301
    return [found[number] for number in range(count)]


def parallelism(session: SparkSession) -> int:
    """How many tasks Spark can run at a time, as far as is known."""
    if is_connect(session):
        default = session.conf.get("spark.sql.leafNodeDefaultParallelism", None)
        return int(default) if default else _UNKNOWN_PARALLELISM
    return session.sparkContext.defaultParallelism


def is_connect(session: SparkSession) -> bool:
    """Whether a session is one of Spark Connect's."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def _in_short(text: str) -> str:
    """What a Python worker raised, or else the beginning of what Spark says."""
    lines = text.splitlines()
    if _TRACEBACK in text:
        # What is raised stands behind the last line of the traceback's frames, which are indented.
        last = max(number for number, line in enumerate(lines) if line.startswith("  "))
        lines = lines[last + 1 :]
    else:
        lines = [line.strip() for line in lines if not line.startswith("\t")]
    said = [line for line in lines if line.strip() and "SQLSTATE:" not in line]
    return "\n".join(said[:_LINES])[:_CHARACTERS] or text[:_CHARACTERS]


class _ArrowCall:
    """What `mapInArrow` calls in a task."""

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
