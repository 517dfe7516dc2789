"""The options of a write, and the columns that it accepts, checked when Spark plans it.

    WriteOptions.parse({"nameserver": "localhost:9876", "topic": "Orders", "dedup": "true"})
    check_columns(schema, options)

Every mistake is rejected by name before a task runs: an unknown option or column (with the
nearest known one), a value or type of the wrong form, a missing column. The driver parses; tasks
get the frozen result.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pyromq.base.sizes import KIB, MIB
from pyromq.client.errors import IllegalMessageError
from pyromq.client.message import check_group, check_topic
from pyromq.spark.option_values import TLS_OPTIONS, GivenOptions, OptionError, unknown_name
from pyromq.tls.client import Tls

KNOWN: Final = (
    "nameserver",
    "topic",
    "dedup",
    "writeId",
    "producerGroup",
    "batchBytes",
    "maxInFlight",
    "maxMessageSize",
    "sendTimeout",
    "deliveryTimeout",
    "maxRowsPerSecond",
    "accessKey",
    "secretKey",
    *TLS_OPTIONS,
)
#: Options that Spark adds by itself, for a stream and for a table in its catalog.
_SPARKS_OWN: Final = frozenset(
    {"checkpointlocation", "queryname", "path", "paths", "serialization.format"}
)
_WHOLE_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True)
class WriteOptions:
    """All options of a write. Times are in seconds."""

    name_servers: tuple[str, ...]
    #: For rows without a topic of their own.
    topic: str | None = None
    #: Give the rows of a retried task the same unique keys.
    dedup: bool = False
    #: Distinguishes the unique keys of one batch write from those of another.
    write_id: str = ""
    producer_group: str = "PYROMQ_SPARK"
    #: Target size of a request.
    batch_bytes: int = 512 * KIB
    #: Requests in flight for each task.
    max_in_flight: int = 8
    max_message_size: int = 4 * MIB
    #: For one attempt.
    send_timeout: float = 10.0
    #: For all attempts of a request.
    delivery_timeout: float = 120.0
    #: For each task; None: no limit.
    max_rows_per_second: float | None = None
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool | Tls = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check all options that a user gave. Raises OptionError."""
        given = GivenOptions(options, KNOWN, _SPARKS_OWN)
        name_servers = given.addresses("nameserver")
        if name_servers is None:
            raise OptionError("no cluster to write to: give nameserver (host:port)")
        access_key, secret_key = given.credentials()
        parsed = cls(
            name_servers=name_servers,
            topic=given.parsed("topic", _checked_topic, IllegalMessageError),
            dedup=given.flag("dedup", False),
            write_id=given.text("writeId") or uuid.uuid4().hex,
            producer_group=(
                given.parsed("producerGroup", _checked_group, IllegalMessageError)
                or cls.producer_group
            ),
            batch_bytes=given.size("batchBytes", "512k") or cls.batch_bytes,
            max_in_flight=given.number("maxInFlight") or cls.max_in_flight,
            max_message_size=given.size("maxMessageSize", "4m") or cls.max_message_size,
            send_timeout=given.seconds("sendTimeout", "s", "10s") or cls.send_timeout,
            delivery_timeout=given.seconds("deliveryTimeout", "s", "2m") or cls.delivery_timeout,
            max_rows_per_second=given.number("maxRowsPerSecond"),
            access_key=access_key,
            secret_key=secret_key,
            tls=given.tls(),
        )
        if "writeId" in given and not parsed.dedup:
            raise OptionError("option writeId has no effect without dedup=true")
        if parsed.batch_bytes > parsed.max_message_size:
            raise OptionError(
                f"option batchBytes={parsed.batch_bytes} is above maxMessageSize="
                f"{parsed.max_message_size}: brokers reject such requests"
            )
        return parsed


def _checked_topic(text: str) -> str:
    check_topic(text)
    return text


def _checked_group(text: str) -> str:
    check_group(text)
    return text


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise ValueError for a data frame whose columns cannot become messages."""
    for column in schema.fields:
        types = _COLUMNS.get(column.name)
        if types is None:
            raise ValueError(unknown_name("column", column.name, _COLUMNS))
        if not any(_is_of(column.dataType, wanted) for wanted in types):
            expected = " or ".join(_names_of(types))
            raise ValueError(
                f"column {column.name!r} has type {column.dataType.simpleString()}: expected "
                f"{expected}; cast it before the write"
            )
    names = schema.fieldNames()
    if "body" not in names:
        raise ValueError("no column 'body': a message needs one, as binary or string")
    if "topic" not in names and options.topic is None:
        raise ValueError("no topic to write to: give a column 'topic' or the option topic")
    if "brokerName" in names and "queueId" not in names:
        raise ValueError("column 'brokerName' has no effect without a column 'queueId'")


#: The columns of a message, and their possible types.
_COLUMNS: Final[dict[str, tuple[type[DataType] | DataType, ...]]] = {
    "topic": (StringType,),
    "body": (BinaryType, StringType),
    "keys": (StringType, ArrayType(StringType())),
    "tags": (StringType,),
    "properties": (MapType(StringType(), StringType()), StringType),
    "delayLevel": _WHOLE_NUMBERS,
    "orderingKey": (StringType,),
    "queueId": _WHOLE_NUMBERS,
    "brokerName": (StringType,),
    "uniqueKey": (StringType,),
    "flag": _WHOLE_NUMBERS,
    "sendAt": (TimestampType,),
}
COLUMN_NAMES: Final = tuple(_COLUMNS)


def _is_of(found: DataType, wanted: type[DataType] | DataType) -> bool:
    if isinstance(wanted, type):
        return isinstance(found, wanted)
    if isinstance(wanted, ArrayType):
        return isinstance(found, ArrayType) and isinstance(found.elementType, StringType)
    return (
        isinstance(found, MapType)
        and isinstance(found.keyType, StringType)
        and isinstance(found.valueType, StringType)
    )


def _names_of(types: Iterable[type[DataType] | DataType]) -> list[str]:
    return [
        (kind if isinstance(kind, DataType) else kind()).simpleString()
        for kind in types
        if kind not in (ByteType, ShortType)
    ]
