from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyromq.spark.options import OptionError
from pyromq.spark.sink.options import COLUMN_NAMES, WriteOptions, check_columns

NAMESERVER = {"nameserver": "localhost:9876"}
OPTIONS = WriteOptions.parse({**NAMESERVER, "topic": "T"})

KINDS: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        BinaryType(),
        DoubleType(),
        IntegerType(),
        LongType(),
        ShortType(),
        StringType(),
        TimestampType(),
        ArrayType(StringType()),
        ArrayType(IntegerType()),
        MapType(StringType(), StringType()),
        MapType(StringType(), IntegerType()),
    )
}


def schema_of(columns: str) -> StructType:
    """`name type, name type`; Spark's own reader of this needs a session."""
    pairs = [column.split(" ") for column in columns.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def test_defaults() -> None:
    options = WriteOptions.parse(NAMESERVER)
    assert options.name_servers == ("localhost:9876",)
    assert (options.topic, options.dedup, options.max_rows_per_second) == (None, False, None)
    assert options.batch_bytes <= options.max_message_size == 4 * 1024 * 1024


def test_all_options_in_any_case() -> None:
    given = {
        "NameServer": "a:1;b:2",
        "TOPIC": "Orders",
        "dedup": "True",
        "writeid": "nightly",
        "producergroup": "g",
        "batchBytes": "64k",
        "maxInFlight": "3",
        "maxMessageSize": "8m",
        "sendTimeout": "500ms",
        "deliveryTimeout": "2m",
        "maxRowsPerSecond": "1000",
        "accessKey": "a",
        "secretKey": "s",
        "tls": "true",
        "checkpointLocation": "/somewhere",
        "queryName": "q",
    }
    assert WriteOptions.parse(given) == WriteOptions(
        name_servers=("a:1", "b:2"),
        topic="Orders",
        dedup=True,
        write_id="nightly",
        producer_group="g",
        batch_bytes=64 * 1024,
        max_in_flight=3,
        max_message_size=8 * 1024 * 1024,
        send_timeout=0.5,
        delivery_timeout=120.0,
        max_rows_per_second=1000,
        access_key="a",
        secret_key="s",
        tls=True,
    )


def test_each_write_has_its_own_id() -> None:
    one, other = WriteOptions.parse(NAMESERVER), WriteOptions.parse(NAMESERVER)
    assert one.write_id != other.write_id
    assert pickle.loads(pickle.dumps(one)) == one


def test_the_secret_is_not_shown() -> None:
    options = WriteOptions.parse({**NAMESERVER, "accessKey": "a", "secretKey": "hidden"})
    assert "hidden" not in repr(options)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"topic": "T"}, "give nameserver"),
        ({"nameserver": "no port"}, "option nameserver='no port'"),
        ({**NAMESERVER, "topics": "T"}, "unknown option 'topics': did you mean topic"),
        ({**NAMESERVER, "startingOffsets": "earliest"}, "unknown option 'startingOffsets'"),
        ({**NAMESERVER, "zzz": "T"}, "choose from nameserver, topic, dedup"),
        ({**NAMESERVER, "topic": "a b"}, "option topic='a b': topic 'a b' is not a legal name"),
        ({**NAMESERVER, "topic": " "}, "option topic is empty"),
        ({**NAMESERVER, "producerGroup": "a b"}, "option producerGroup"),
        ({**NAMESERVER, "dedup": "yes"}, "option dedup='yes': expected true or false"),
        ({**NAMESERVER, "writeId": "x"}, "writeId has no effect without dedup"),
        ({**NAMESERVER, "batchBytes": "0"}, "option batchBytes='0': expected a number above 0"),
        ({**NAMESERVER, "batchBytes": "1 parsec"}, "with a unit"),
        ({**NAMESERVER, "batchBytes": "5m"}, "batchBytes=5242880 is above maxMessageSize"),
        ({**NAMESERVER, "maxInFlight": "-1"}, "option maxInFlight='-1': expected a whole"),
        ({**NAMESERVER, "maxRowsPerSecond": "0"}, "option maxRowsPerSecond='0'"),
        ({**NAMESERVER, "sendTimeout": "soon"}, "for example 10s"),
        ({**NAMESERVER, "accessKey": "a"}, "accessKey and secretKey"),
    ],
)
def test_mistakes_are_rejected_by_name(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        WriteOptions.parse(given)


@pytest.mark.parametrize(
    "columns",
    [
        "body binary",
        "body string",
        "topic string, body binary, keys array<string>, properties map<string,string>",
        "body string, keys string, tags string, properties string, delayLevel bigint",
        "body string, orderingKey string, queueId smallint, brokerName string, uniqueKey string",
        "body string, flag int",
    ],
)
def test_columns_that_can_be_written(columns: str) -> None:
    check_columns(schema_of(columns), OPTIONS)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("topic string", "no column 'body'"),
        ("body binary, tag string", "unknown column 'tag': did you mean tags"),
        ("body binary, storeTimestamp timestamp", "unknown column 'storeTimestamp'"),
        ("body int", "column 'body' has type int: expected binary or string; cast it"),
        ("body binary, properties map<string,int>", "'properties' .* map<string,string> or string"),
        ("body binary, keys array<int>", "column 'keys' has type array<int>: expected string"),
        ("body binary, delayLevel string", "'delayLevel' .* expected int or bigint"),
        ("body binary, queueId double", "'queueId' has type double"),
        ("body binary, brokerName string", "'brokerName' has no effect without"),
    ],
)
def test_columns_that_cannot_be_written(columns: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_columns(schema_of(columns), OPTIONS)


def test_a_topic_is_needed() -> None:
    options = WriteOptions.parse(NAMESERVER)
    check_columns(schema_of("topic string, body binary"), options)
    with pytest.raises(ValueError, match="column 'topic' or the option topic"):
        check_columns(schema_of("body binary"), options)


def test_the_columns_have_names() -> None:
    assert COLUMN_NAMES[:3] == ("topic", "body", "keys")
