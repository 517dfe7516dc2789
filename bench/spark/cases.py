"""What is measured on each side, and which speed is asked of ours against which of Kafka's.

Used by bench/spark/__main__.py, which orders, and bench/spark/program.py, which measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KAFKA: Final = "kafka"
PYROMQ: Final = "pyromq"

BODY_SIZE: Final = 256
#: Queues of a topic, partitions of Kafka's.
QUEUES: Final = 8
#: Messages of the unmeasured run of every case that comes first in each process.
WARM_UP: Final = 100_000


@dataclass(frozen=True)
class Case:
    """One figure of ours, the case of Kafka's that it stands beside, and the ratio asked for."""

    name: str
    title: str
    beside: str
    asked: float


SINK: Final = "sink"
NOOP: Final = "noop"
PARQUET: Final = "parquet"
ARCHIVE: Final = "archive"
STORE: Final = "store"

#: Kafka's own, in the order in which they run: the sink writes what the others read.
KAFKA_CASES: Final = {
    SINK: "sink",
    NOOP: "read with headers -> noop",
    PARQUET: "read with headers -> Parquet",
}
#: Ours, in the order in which they run.
CASES: Final = (
    Case(SINK, "sink", SINK, 1.0),
    Case(NOOP, "TCP read -> noop", NOOP, 2.0),
    Case(PARQUET, "TCP read -> Parquet through Spark", PARQUET, 1.4),
    Case(ARCHIVE, "archive", PARQUET, 4.0),
    Case(STORE, "store files -> noop", NOOP, 2.5),
)
