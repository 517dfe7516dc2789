"""One call of a Python function for each item, as the tasks of one Spark job.

    results = fan_out(session, work, items)      # results in the order of the items

`work` and the items travel by pickle; results come back the same way, so they should be
small: names and numbers, not data. A task that fails is tried again as often as Spark was
told; `work` must bear being run more than once, also twice at a time.

A classic session runs it as an RDD; through Spark Connect there are none, and it runs as
`mapInArrow`, which needs pandas (as Connect itself does). Called in the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: How many tasks at a time are assumed of a server that does not tell.
_UNKNOWN_PARALLELISM: Final = 8


def fan_out(
    session: SparkSession, work: Callable[[_Item], _Result], items: Sequence[_Item]
) -> list[_Result]:
    """What `work` makes of each item; one task for each."""
    if not items:
        return []
    if not is_connect(session):
        context = session.sparkContext
        return context.parallelize(items, len(items)).map(work).collect()
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
