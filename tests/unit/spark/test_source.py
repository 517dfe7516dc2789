"""The format itself: its name, columns, readers and writers."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import IntegerType, StringType, StructType

import pyspark_rocketmq
from pyromq.spark.columns import COLUMN_NAMES, schema
from pyromq.spark.options import OptionError
from pyromq.spark.reading.batch import BatchReader
from pyromq.spark.reading.stream import StreamReader
from pyromq.spark.source import RocketMQDataSource

OPTIONS = {"nameServer": "localhost:9876", "SUBSCRIBE": "T"}


def source(**options: str) -> RocketMQDataSource:
    return RocketMQDataSource(CaseInsensitiveDict({**OPTIONS, **options}))


def test_spark_finds_it() -> None:
    assert pyspark_rocketmq.DefaultSource is RocketMQDataSource
    assert issubclass(pyspark_rocketmq.DefaultSource, DataSource)
    assert RocketMQDataSource.name() == "rocketmq"


def test_columns() -> None:
    assert source().schema().fieldNames() == list(COLUMN_NAMES)
    assert source(includeProperties="map").schema() == schema("map")


def test_mistakes_are_reported_when_spark_lists_the_columns() -> None:
    with pytest.raises(OptionError, match="subscribe"):
        source(subscribbe="x").schema()


def test_readers() -> None:
    few = StructType([schema()["body"], schema()["topic"]])
    batch, stream = source().reader(few), source().streamReader(few)
    assert isinstance(batch, BatchReader)
    assert isinstance(stream, StreamReader)
    assert batch._plan.columns == stream._plan.columns == ("body", "topic")


def test_options_of_the_other_kind_are_rejected() -> None:
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger"):
        source(maxOffsetsPerTrigger="5").reader(schema())
    with pytest.raises(OptionError, match="endingOffsets"):
        source(endingOffsets="latest").streamReader(schema())


def test_unknown_columns() -> None:
    with pytest.raises(ValueError, match="'price'"):
        source().reader(StructType().add("price", IntegerType()))
    with pytest.raises(ValueError, match="'body' has type binary"):
        source().streamReader(StructType().add("body", StringType()))
    with pytest.raises(ValueError, match="'properties' has type map"):
        source(includeProperties="map").reader(schema())


def test_it_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(source())).schema() == schema()
