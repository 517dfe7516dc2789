"""The options of a read: every one of them, and every way to get them wrong."""

from __future__ import annotations

import pickle

import pytest

from pyromq.spark.options import (
    KNOWN,
    AtOffsets,
    AtTimes,
    Edge,
    Mode,
    OptionError,
    Queues,
    ReadOptions,
    Time,
    TopicPattern,
    Topics,
)
from pyromq.spark.origins.opening import BrokerSource, StoreSource
from pyromq.spark.origins.origin import Queue
from pyromq.spark.origins.settings import ConnectionSettings

A0, A1 = Queue("T", "a", 0), Queue("T", "a", 1)
PLAIN = {"nameserver": "localhost:9876", "subscribe": "T"}


def parse(mode: Mode = Mode.BATCH, **options: str) -> ReadOptions:
    return ReadOptions.parse({**PLAIN, **options}, mode)


def refused(mode: Mode = Mode.BATCH, /, **options: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse(mode, **options)
    return str(caught.value)


def test_defaults() -> None:
    options = parse()
    assert options == ReadOptions(
        Topics(("T",)), BrokerSource(ConnectionSettings(("localhost:9876",)))
    )
    assert options.reconnect_timeout == 300.0
    assert (options.starting, options.ending) == (Edge.EARLIEST, Edge.LATEST)
    assert options.fail_on_data_loss


def test_a_stream_begins_at_the_end() -> None:
    assert parse(Mode.STREAM).starting is Edge.LATEST
    assert parse(Mode.STREAM, startingOffsets="earliest").starting is Edge.EARLIEST


def test_everything_for_a_batch() -> None:
    options = ReadOptions.parse(
        {
            "NAMESERVER": "one:9876; two:9876",
            "SubscribePattern": "order.*",
            "startingtimestamp": "1000",
            "startingOffsetsByTimestampStrategy": "LATEST",
            "endingTimestamp": "2026-11-16T08:30:00+01:00",
            "tags": "new || paid",
            "includeProperties": "map",
            "failOnDataLoss": "False",
            "minPartitions": "8",
            "maxRecordsPerPartition": "5000",
            "accessKey": "who",
            "secretKey": "hush",
            "tls": "true",
            "requestTimeout": "2500",
            "fetchOffset.numRetries": "0",
            "fetchOffset.retryInterval": "250ms",
        },
        Mode.BATCH,
    )
    assert options == ReadOptions(
        wanted=TopicPattern("order.*"),
        source=BrokerSource(
            ConnectionSettings(
                ("one:9876", "two:9876"),
                access_key="who",
                secret_key="hush",
                tls=True,
                request_timeout=2.5,
            )
        ),
        starting=Time(1000),
        ending=Time(1_794_814_200_000),
        start_at_end_if_nothing_later=True,
        tags=frozenset({"new", "paid"}),
        include_properties="map",
        fail_on_data_loss=False,
        min_partitions=8,
        max_records_per_partition=5000,
        fetch_retries=0,
        fetch_retry_interval=0.25,
    )
    assert "hush" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_everything_for_a_stream() -> None:
    options = parse(
        Mode.STREAM,
        sql="price > 10",
        maxOffsetsPerTrigger="1000",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="2m",
        maxBytesPerTrigger="64m",
        group="spark",
    )
    assert options.sql == "price > 10"
    assert options.max_offsets_per_trigger == 1000
    assert options.min_offsets_per_trigger == 10
    assert options.max_trigger_delay == 120
    assert options.max_bytes_per_trigger == 64 << 20
    assert options.group == "spark"


def test_store_files() -> None:
    options = ReadOptions.parse(
        {
            "storePath": "/data/store",
            "storePathCommitLog": "/one, /two",
            "brokerName": "broker-a",
            "commitLogOnly": "true",
            "subscribe": "T",
        },
        Mode.BATCH,
    )
    assert options.source == StoreSource("/data/store", "broker-a", ("/one", "/two"))
    assert options.commit_log_only
    assert options.reconnect_timeout == 0.0


def test_topics() -> None:
    assert parse(subscribe=" T , U,T").wanted == Topics(("T", "U"))
    given = {"nameserver": "localhost:9876", "assign": '{"T": ["a:1", "a:0"]}'}
    assert ReadOptions.parse(given, Mode.BATCH).wanted == Queues((A0, A1))


def test_positions() -> None:
    assert parse(startingOffsets='{"T": {"a:0": 5, "a:1": -2}}').starting == AtOffsets(
        {A0: 5, A1: -2}
    )
    assert parse(endingOffsets='{"T": {"a:0": 5, "a:1": -1}}').ending == AtOffsets({A0: 5, A1: -1})
    times = '{"T": {"a:0": 1000}}'
    assert parse(startingOffsetsByTimestamp=times).starting == AtTimes({A0: 1000})
    assert parse(endingOffsetsByTimestamp=times).ending == AtTimes({A0: 1000})
    assert parse(endingOffsets="LATEST").ending is Edge.LATEST


def test_options_that_spark_adds_are_ignored() -> None:
    assert parse(path="/warehouse/t", paths='["/x"]') == parse()


def test_a_catalog_table_is_rejected() -> None:
    assert "CREATE TEMPORARY VIEW" in refused(**{"option.subscribe": "T", "owner": "me"})


def test_both_kinds_are_possible_while_spark_lists_the_columns() -> None:
    parse(Mode.ANY, endingOffsets="latest")
    parse(Mode.ANY, maxOffsetsPerTrigger="10")
    parse(Mode.ANY, startingOffsets="latest")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nameServer1", "nameserver"),
        ("startingOffset", "startingOffsets"),
        ("failOnDataloss1", "failOnDataLoss"),
        ("subscribepatern", "subscribePattern"),
    ],
)
def test_an_unknown_option_and_the_nearest(name: str, meant: str) -> None:
    assert f"unknown option {name!r}: did you mean {meant}?" in refused(**{name: "x"})


def test_an_unknown_option_without_a_near_one() -> None:
    said = refused(**{"kafka.bootstrap.servers": "x"})
    assert all(name in said for name in KNOWN)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("minPartitions", "1.5"),
        ("maxRecordsPerPartition", "-1"),
        ("maxRecordsPerPartition", "99999999999999999999"),
        ("failOnDataLoss", "no"),
        ("tls", "1"),
        ("includeProperties", "json"),
        ("requestTimeout", "0"),
        ("requestTimeout", "soon"),
        ("requestTimeout", "3 weeks"),
        ("nameserver", "localhost"),
        ("subscribe", "T,,U"),
        ("subscribe", "  "),
        ("startingOffsets", "first"),
        ("startingOffsets", '{"T": 1}'),
        ("startingOffsets", '{"T": {"a:0": -3}}'),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "2026-11-16T08:30:00"),
        ("startingTimestamp", "-1"),
        ("startingOffsetsByTimestamp", '{"T": {"a:0": -1}}'),
        ("endingOffsets", "{"),
        ("tags", "||"),
        ("sql", "price >"),
        ("fetchOffset.numRetries", "-1"),
    ],
)
def test_invalid_values(name: str, value: str) -> None:
    assert name in refused(**{name: value})


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
@pytest.mark.parametrize("value", ["0", "x"])
def test_invalid_limits(name: str, value: str) -> None:
    assert name in refused(Mode.STREAM, **{name: value})


@pytest.mark.parametrize("value", ["0", "1q", "m", "-5m"])
def test_invalid_sizes(value: str) -> None:
    assert "maxBytesPerTrigger" in refused(Mode.STREAM, maxBytesPerTrigger=value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"subscribePattern": "x"}, ("subscribe", "subscribePattern")),
        ({"assign": '{"T": ["a:0"]}'}, ("subscribe", "assign")),
        ({"storePath": "/x"}, ("nameserver", "storePath")),
        ({"tags": "a", "sql": "a = 1"}, ("tags", "sql")),
        (
            {"startingOffsets": "earliest", "startingTimestamp": "1"},
            ("startingOffsets", "startingTimestamp"),
        ),
        (
            {"endingTimestamp": "1", "endingOffsetsByTimestamp": '{"T": {"a:0": 1}}'},
            ("endingTimestamp", "endingOffsetsByTimestamp"),
        ),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, ("startingTimestamp=2", "ending")),
        (
            {"startingOffsets": '{"T": {"a:0": 9}}', "endingOffsets": '{"T": {"a:0": 8}}'},
            ("startingOffsets", "endingOffsets"),
        ),
        ({"startingOffsetsByTimestampStrategy": "latest"}, ("Strategy", "startingTimestamp")),
        ({"accessKey": "x"}, ("accessKey", "secretKey")),
        ({"secretKey": "x"}, ("accessKey", "secretKey")),
        ({"brokerName": "x"}, ("brokerName", "storePath")),
        ({"commitLogOnly": "true"}, ("commitLogOnly", "storePath")),
        ({"storePathCommitLog": "/x"}, ("storePathCommitLog", "storePath")),
        ({"startingOffsets": "latest"}, ("startingOffsets", "latest")),
        ({"startingOffsets": '{"T": {"a:0": -1}}'}, ("startingOffsets", "latest")),
        ({"endingOffsets": "earliest"}, ("endingOffsets", "earliest")),
        ({"startingOffsets": '{"U": {"a:0": 1}}'}, ("startingOffsets", "subscribe", "T, U")),
    ],
)
def test_contradictions_name_both(options: dict[str, str], named: tuple[str, ...]) -> None:
    said = refused(**options)
    assert all(name in said for name in named), said


@pytest.mark.parametrize(
    "options",
    [
        {"accessKey": "x"},
        {"secretKey": "x"},
        {"tls": "true"},
        {"sql": "a = 1"},
        {"requestTimeout": "5s"},
    ],
)
def test_options_for_brokers_only(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=f"storePath and {next(iter(options))} are mutually"):
        ReadOptions.parse({"storePath": "/x", "subscribe": "T", **options}, Mode.BATCH)


@pytest.mark.parametrize("name", ["startingOffsets", "endingTimestamp", "minPartitions"])
def test_the_log_alone_has_no_positions(name: str) -> None:
    given = {"storePath": "/x", "subscribe": "T", "commitLogOnly": "true"}
    value = "earliest" if name == "startingOffsets" else "5"
    with pytest.raises(OptionError, match=f"commitLogOnly and {name} are mutually"):
        ReadOptions.parse({**given, name: value}, Mode.BATCH)


@pytest.mark.parametrize(
    "name",
    [
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxBytesPerTrigger",
        "group",
    ],
)
def test_a_batch_has_no_triggers(name: str) -> None:
    assert f"option {name} is for stream reads" in refused(**{name: "1"})


@pytest.mark.parametrize(
    "name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "commitLogOnly"]
)
def test_a_stream_has_no_end(name: str) -> None:
    assert f"option {name} is for batch reads" in refused(Mode.STREAM, **{name: "1"})


def test_limits_of_triggers_go_together() -> None:
    assert "minOffsetsPerTrigger" in refused(Mode.STREAM, maxTriggerDelay="1m")
    said = refused(Mode.STREAM, minOffsetsPerTrigger="2", maxOffsetsPerTrigger="1")
    assert "minOffsetsPerTrigger=2" in said
    assert "maxOffsetsPerTrigger=1" in said


def test_positions_of_assigned_queues_name_just_those() -> None:
    given = {"nameserver": "localhost:9876", "assign": '{"T": ["a:0", "a:1"]}'}
    for offsets in ('{"T": {"a:0": 1}}', '{"T": {"a:0": 1, "a:1": 1, "a:2": 1}}'):
        with pytest.raises(OptionError, match="startingOffsets and assign"):
            ReadOptions.parse({**given, "startingOffsets": offsets}, Mode.BATCH)


def test_missing_options() -> None:
    with pytest.raises(OptionError, match="subscribe, subscribePattern or assign"):
        ReadOptions.parse({"nameserver": "localhost:9876"}, Mode.ANY)
    with pytest.raises(OptionError, match="nameserver"):
        ReadOptions.parse({"subscribe": "T"}, Mode.ANY)
    with pytest.raises(OptionError, match="assign"):
        ReadOptions.parse({"nameserver": "localhost:9876", "assign": '{"T": []}'}, Mode.ANY)
    with pytest.raises(OptionError, match="not a regular expression"):
        ReadOptions.parse({"nameserver": "localhost:9876", "subscribePattern": "("}, Mode.ANY)


def test_a_secret_is_never_shown() -> None:
    assert "hush" not in refused(secretKey="hush")
