"""The columns in Spark's types and in Arrow's agree; unknown ones are rejected."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyromq.spark.columns import (
    COLUMN_NAMES,
    MAP,
    RAW,
    arrow_schema,
    check_wanted,
    never_null,
    schema,
)


@pytest.mark.parametrize("include_properties", [RAW, MAP])
def test_arrow_types_are_those_that_spark_expects(include_properties: str) -> None:
    expected = to_arrow_schema(schema(include_properties), timezone="UTC")
    assert arrow_schema(COLUMN_NAMES, include_properties).equals(expected)


def test_never_null_columns_may_be_not_null() -> None:
    wanted = StructType([StructField("topic", StringType(), nullable=False), schema()["body"]])
    check_wanted(wanted)
    assert never_null(wanted) == {"topic"}
    expected = to_arrow_schema(wanted, timezone="UTC")
    assert arrow_schema(("topic", "body"), not_null=never_null(wanted)).equals(expected)


def test_a_property_that_may_be_missing_cannot_be_not_null() -> None:
    with pytest.raises(ValueError, match="'tags' is null for messages without that property"):
        check_wanted(StructType([StructField("tags", StringType(), nullable=False)]))


def test_some_columns_in_any_order() -> None:
    wanted = StructType([schema()["tags"], schema()["topic"]])
    check_wanted(wanted)
    assert arrow_schema(("tags", "topic")).equals(to_arrow_schema(wanted, timezone="UTC"))


def test_an_unknown_column_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown column 'value'"):
        check_wanted(StructType([StructField("value", StringType())]))


def test_another_type_is_rejected() -> None:
    with pytest.raises(ValueError, match="'queueId' has type int, not bigint"):
        check_wanted(StructType([StructField("queueId", LongType())]))
