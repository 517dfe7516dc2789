"""The cases of both sides, and the speed ours must reach relative to Kafka's.

Used by bench/spark/__main__.py, which gives the orders, and bench/spark/program.py, which
measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KAFKA: Final = "kafka"
PYROMQ: Final = "pyromq"

BODY_SIZE: Final = 256
#: Queues of our topic, partitions of Kafka's.
QUEUES: Final = 8
#: Messages of the unmeasured first run of every case in each process.
WARM_UP: Final = 100_000


@dataclass(frozen=True)
class Case:
    """A case of ours, the Kafka case it is compared with, and the required ratio."""

    name: str
    title: str
    beside: str
    asked: float


SINK: Final = "sink"
NOOP: Final = "noop"
PARQUET: Final = "parquet"
ARCHIVE: Final = "archive"
STORE: Final = "store"
#: Reads with only the columns that Kafka's rows have.
NOOP_AS_KAFKA: Final = "noop-as-kafka"
PARQUET_AS_KAFKA: Final = "parquet-as-kafka"
STORE_AS_KAFKA: Final = "store-as-kafka"
KAFKAS_COLUMNS: Final = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, keys STRING, body BINARY, "
    "properties STRING, storeTimestamp TIMESTAMP"
)

#: Kafka's cases in running order: the sink writes the topic that the others read.
KAFKA_CASES: Final = {
    SINK: "sink",
    NOOP: "read with headers -> noop",
    PARQUET: "read with headers -> Parquet",
}
#: Our cases in running order.
CASES: Final = (
    Case(SINK, "sink", SINK, 1.0),
    Case(NOOP, "TCP read, 18 columns -> noop", NOOP, 2.0),
    Case(NOOP_AS_KAFKA, "TCP read, 8 columns as Kafka -> noop", NOOP, 2.0),
    Case(PARQUET, "TCP read, 18 columns -> Parquet through Spark", PARQUET, 1.4),
    Case(PARQUET_AS_KAFKA, "TCP read, 8 columns as Kafka -> Parquet", PARQUET, 1.4),
    Case(ARCHIVE, "archive, all columns", PARQUET, 4.0),
    Case(STORE, "store files, 18 columns -> noop", NOOP, 2.5),
    Case(STORE_AS_KAFKA, "store files, 8 columns as Kafka -> noop", NOOP, 2.5),
)
