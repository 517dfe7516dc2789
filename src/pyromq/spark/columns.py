"""The columns of a topic read as a table, in Spark's types and in Arrow's.

    schema(include_properties="map")          # the columns of spark.read...load()
    arrow_schema(("topic", "body"))           # the schema of a task's batches

A user's `.schema(...)` may list any of these columns in any order; `check_wanted` rejects unknown
ones. It may declare never-null columns NOT NULL; batches must then declare the same. Used by the
driver when it plans a query and by every task.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

#: The two forms of the column `properties`: the raw string, or a map.
RAW: Final = "raw"
MAP: Final = "map"

_PROPERTIES: Final = "properties"
_SPARK_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "msgId": StringType(),
    "uniqueKey": StringType(),
    "keys": StringType(),
    "tags": StringType(),
    "body": BinaryType(),
    _PROPERTIES: StringType(),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "bornHost": StringType(),
    "storeHost": StringType(),
    "reconsumeTimes": IntegerType(),
    "flag": IntegerType(),
    "sysFlag": IntegerType(),
    "physicalOffset": LongType(),
}
COLUMN_NAMES: Final = tuple(_SPARK_TYPES)
#: Null if a message has no such property. All other columns always have a value.
_NULLABLE: Final = frozenset({"uniqueKey", "keys", "tags"})
_PROPERTY_MAP: Final = MapType(StringType(), StringType())
_ARROW_TYPES: Final[dict[type[DataType], pa.DataType]] = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    MapType: pa.map_(pa.string(), pa.string()),
}


def schema(include_properties: str = RAW) -> StructType:
    """Return all columns, with `properties` as the raw string or as a map."""
    return StructType(
        [StructField(name, _spark_type(name, include_properties)) for name in COLUMN_NAMES]
    )


def check_wanted(wanted: StructType, include_properties: str = RAW) -> None:
    """Raise ValueError for a schema with unknown columns, other types or wrong nullability."""
    for field in wanted.fields:
        if field.name not in _SPARK_TYPES:
            raise ValueError(
                f"unknown column {field.name!r}: choose from {', '.join(COLUMN_NAMES)}"
            )
        ours = _spark_type(field.name, include_properties)
        if field.dataType != ours:
            raise ValueError(
                f"column {field.name!r} has type {ours.simpleString()}, "
                f"not {field.dataType.simpleString()}: cast it after the read"
            )
        if field.name in _NULLABLE and not field.nullable:
            raise ValueError(
                f"column {field.name!r} is null for messages without that property, so it cannot "
                "be NOT NULL: filter after the read"
            )


def never_null(wanted: StructType) -> frozenset[str]:
    """Return the columns that a schema declares NOT NULL."""
    return frozenset(field.name for field in wanted.fields if not field.nullable)


def arrow_schema(
    names: Sequence[str] = COLUMN_NAMES,
    include_properties: str = RAW,
    not_null: Container[str] = (),
) -> pa.Schema:
    """Return these columns in the Arrow types that Spark expects from a task."""
    kinds = {name: type(_spark_type(name, include_properties)) for name in names}
    return pa.schema(
        [
            pa.field(name, _ARROW_TYPES[kind], nullable=name not in not_null)
            for name, kind in kinds.items()
        ]
    )


def _spark_type(name: str, include_properties: str) -> DataType:
    if name == _PROPERTIES and include_properties == MAP:
        return _PROPERTY_MAP
    return _SPARK_TYPES[name]
