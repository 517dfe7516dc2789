"""The options of a read, checked: which messages, from where, from which offset to which.

    ReadOptions.parse({"nameserver": "localhost:9876", "subscribe": "Orders"}, Mode.BATCH)

Options have the names and meanings of Spark's Kafka connector where both have the feature. Every
mistake is rejected by name before anything is read: an unknown option (with the nearest known
one), a value of the wrong form, mutually exclusive options, options without effect. The driver
parses; tasks get the frozen result.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from pyspark.sql.datasource import Filter

from pyromq.protocol.filter.sql import compile_sql
from pyromq.protocol.filter.sql_tokens import SqlError
from pyromq.protocol.filter.tags import SubscriptionError, parse_tags
from pyromq.spark.columns import MAP, RAW
from pyromq.spark.option_values import TLS_OPTIONS, GivenOptions
from pyromq.spark.option_values import OptionError as OptionError
from pyromq.spark.origins.opening import BrokerSource, Source, StoreSource
from pyromq.spark.origins.origin import Queue
from pyromq.spark.origins.settings import RECONNECT_SECONDS, REQUEST_SECONDS, ConnectionSettings
from pyromq.spark.reading.conditions import ConditionError, parse_where
from pyromq.spark.reading.queue_offsets import (
    Offsets,
    OffsetsError,
    name_queues,
    offsets_from_json,
    queues_from_json,
)

#: Offsets that mean the two ends of a queue, as in Kafka's connector.
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1


class Mode(enum.Enum):
    """The kind of read that options are for. ANY: not known yet, when Spark lists the columns."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


class Edge(enum.Enum):
    """One end of all queues."""

    EARLIEST = EARLIEST_OFFSET
    LATEST = LATEST_OFFSET


class Time(NamedTuple):
    """In all queues, the first message stored at or after a time."""

    milliseconds: int


class AtOffsets(NamedTuple):
    """An offset for each queue, which may be EARLIEST_OFFSET or LATEST_OFFSET."""

    offsets: Offsets


class AtTimes(NamedTuple):
    """A time for each queue, in milliseconds."""

    times: Offsets


Position: TypeAlias = Edge | Time | AtOffsets | AtTimes


class Topics(NamedTuple):
    """Topics by name."""

    names: tuple[str, ...]


class TopicPattern(NamedTuple):
    """All topics whose whole name matches a regular expression."""

    pattern: str


class Queues(NamedTuple):
    """Individual queues."""

    queues: tuple[Queue, ...]


Wanted: TypeAlias = Topics | TopicPattern | Queues


class _Known(NamedTuple):
    mode: Mode
    #: Not for store directories.
    brokers_only: bool = False


#: All options, in the order of the documentation.
KNOWN: Final = {
    "nameserver": _Known(Mode.ANY),
    "storePath": _Known(Mode.ANY),
    "storePathCommitLog": _Known(Mode.ANY),
    "brokerName": _Known(Mode.ANY),
    "commitLogOnly": _Known(Mode.BATCH),
    "subscribe": _Known(Mode.ANY),
    "subscribePattern": _Known(Mode.ANY),
    "assign": _Known(Mode.ANY),
    "startingOffsets": _Known(Mode.ANY),
    "startingTimestamp": _Known(Mode.ANY),
    "startingOffsetsByTimestamp": _Known(Mode.ANY),
    "startingOffsetsByTimestampStrategy": _Known(Mode.ANY),
    "endingOffsets": _Known(Mode.BATCH),
    "endingTimestamp": _Known(Mode.BATCH),
    "endingOffsetsByTimestamp": _Known(Mode.BATCH),
    "where": _Known(Mode.BATCH),
    "tags": _Known(Mode.ANY),
    "sql": _Known(Mode.ANY, brokers_only=True),
    "includeProperties": _Known(Mode.ANY),
    "failOnDataLoss": _Known(Mode.ANY),
    "minPartitions": _Known(Mode.ANY),
    "maxRecordsPerPartition": _Known(Mode.ANY),
    "maxOffsetsPerTrigger": _Known(Mode.STREAM),
    "minOffsetsPerTrigger": _Known(Mode.STREAM),
    "maxTriggerDelay": _Known(Mode.STREAM),
    "maxBytesPerTrigger": _Known(Mode.STREAM),
    "group": _Known(Mode.STREAM, brokers_only=True),
    "accessKey": _Known(Mode.ANY, brokers_only=True),
    "secretKey": _Known(Mode.ANY, brokers_only=True),
    **dict.fromkeys(TLS_OPTIONS, _Known(Mode.ANY, brokers_only=True)),
    "requestTimeout": _Known(Mode.ANY, brokers_only=True),
    "reconnectTimeout": _Known(Mode.ANY, brokers_only=True),
    "fetchOffset.numRetries": _Known(Mode.ANY),
    "fetchOffset.retryInterval": _Known(Mode.ANY),
}
#: Options that Spark adds by itself.
_SPARKS_OWN: Final = frozenset({"path", "paths", "serialization.format"})
#: The prefix that Spark gives to the options of a table in its catalog.
_TABLE_OPTION: Final = "option."
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True)
class ReadOptions:
    """All options of a read. Times are in seconds, unless stated otherwise."""

    wanted: Wanted
    source: Source
    #: Read a store's log without its consume queues.
    commit_log_only: bool = False
    starting: Position = Edge.EARLIEST
    ending: Position = Edge.LATEST
    #: Start at the end of queues that have no message at or after the starting time.
    start_at_end_if_nothing_later: bool = False
    #: Read only rows that match these filters.
    where: tuple[Filter, ...] = ()
    tags: frozenset[str] = frozenset()
    sql: str | None = None
    include_properties: str = RAW
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    max_records_per_partition: int = 1_000_000
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    max_bytes_per_trigger: int | None = None
    group: str | None = None
    fetch_retries: int = 3
    fetch_retry_interval: float = 1.0

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode) -> ReadOptions:
        """Check all options that a user gave. Raises OptionError."""
        given = _given(options, mode)
        given.exclude("tags", "sql")
        starting = _position(given, _STARTS, Edge.LATEST if mode is Mode.STREAM else Edge.EARLIEST)
        ending = _position(given, _ENDS, Edge.LATEST)
        _check_ends(starting, ending, mode)
        parsed = cls(
            wanted=_wanted(given),
            source=_source(given),
            commit_log_only=given.flag("commitLogOnly", False),
            starting=starting,
            ending=ending,
            start_at_end_if_nothing_later=_start_at_end(given),
            where=given.parsed("where", parse_where, ConditionError) or (),
            tags=given.parsed("tags", parse_tags, SubscriptionError) or frozenset(),
            sql=_sql(given),
            include_properties=given.choice("includeProperties", (RAW, MAP), RAW),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            min_partitions=given.number("minPartitions") or cls.min_partitions,
            max_records_per_partition=(
                given.number("maxRecordsPerPartition") or cls.max_records_per_partition
            ),
            max_offsets_per_trigger=given.number("maxOffsetsPerTrigger"),
            min_offsets_per_trigger=given.number("minOffsetsPerTrigger"),
            max_trigger_delay=_seconds(given, "maxTriggerDelay", cls.max_trigger_delay),
            max_bytes_per_trigger=given.size("maxBytesPerTrigger", "64m"),
            group=given.text("group"),
            fetch_retries=_retries(given, cls.fetch_retries),
            fetch_retry_interval=_seconds(
                given, "fetchOffset.retryInterval", cls.fetch_retry_interval
            ),
        )
        _check_together(given, parsed)
        return parsed

    @property
    def reconnect_timeout(self) -> float:
        """Return how long streams and tasks wait for servers that went away."""
        source = self.source
        return source.settings.reconnect_timeout if isinstance(source, BrokerSource) else 0.0


def _given(options: Mapping[str, str], mode: Mode) -> GivenOptions:
    """Reject options that are unknown, or for another kind of read or origin."""
    if any(name.lower().startswith(_TABLE_OPTION) for name in options):
        raise OptionError(
            "a topic cannot be a table in Spark's catalog, which does not return the table's "
            "options to a Python source: use CREATE TEMPORARY VIEW ... USING rocketmq OPTIONS (...)"
        )
    given = GivenOptions(options, KNOWN, _SPARKS_OWN)
    for name in given:
        known = KNOWN[name]
        if mode is not Mode.ANY and known.mode not in (Mode.ANY, mode):
            place = "spark.readStream" if known.mode is Mode.STREAM else "spark.read"
            raise OptionError(
                f"option {name} is for {known.mode.value} reads ({place}): remove it from this "
                f"{mode.value} read"
            )
        if known.brokers_only and "storePath" in given:
            raise OptionError(
                f"options storePath and {name} are mutually exclusive: {name} is for reads from "
                "brokers"
            )
    return given


def _wanted(given: GivenOptions) -> Wanted:
    given.exclude("subscribe", "subscribePattern", "assign")
    names = given.names("subscribe", "topics separated by commas, for example Orders,Payments")
    if names is not None:
        return Topics(names)
    pattern = given.parsed("subscribePattern", _pattern, ValueError)
    if pattern is not None:
        return TopicPattern(pattern)
    queues = given.parsed("assign", queues_from_json, OffsetsError)
    if queues is None:
        raise OptionError("no topic to read: give subscribe, subscribePattern or assign")
    if not queues:
        raise OptionError(f"option assign={given.text('assign')!r:.200} names no queue")
    return Queues(tuple(queues))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return text


def _source(given: GivenOptions) -> Source:
    given.exclude("nameserver", "storePath")
    for name in ("storePathCommitLog", "brokerName", "commitLogOnly"):
        given.need(name, "storePath")
    store_path = given.text("storePath")
    if store_path is not None:
        return StoreSource(
            store_path,
            given.text("brokerName") or "",
            given.names("storePathCommitLog", "directories separated by commas") or (),
        )
    servers = given.addresses("nameserver")
    if servers is None:
        raise OptionError(
            "no origin to read from: give nameserver (host:port), or storePath for a store "
            "directory"
        )
    settings = ConnectionSettings(
        servers,
        *given.credentials(),
        given.tls(),
        _seconds(given, "requestTimeout", REQUEST_SECONDS),
        _seconds(given, "reconnectTimeout", RECONNECT_SECONDS),
    )
    return BrokerSource(settings)


def _position(given: GivenOptions, names: tuple[str, str, str], default: Edge) -> Position:
    given.exclude(*names)
    offsets_name, time_name, times_name = names
    time = given.parsed(
        time_name,
        _milliseconds,
        ValueError,
        "milliseconds since 1970, or a time with its zone, for example 2026-11-16T08:30:00Z",
    )
    if time is not None:
        return Time(time)
    times = given.parsed(times_name, offsets_from_json, OffsetsError)
    if times is not None:
        _check_values(times_name, times, 0, "milliseconds since 1970")
        return AtTimes(times)
    text = given.text(offsets_name)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return Edge[text.upper()]
    if not text.startswith("{"):
        raise OptionError(
            f"option {offsets_name}={text!r:.200}: expected earliest, latest or "
            '{"topic": {"broker-a:0": 42}}'
        )
    offsets = given.parsed(offsets_name, offsets_from_json, OffsetsError) or {}
    expected = f"0 or more, {EARLIEST_OFFSET} for the earliest or {LATEST_OFFSET} for the latest"
    _check_values(offsets_name, offsets, EARLIEST_OFFSET, expected)
    return AtOffsets(offsets)


def _check_values(name: str, values: Offsets, least: int, expected: str) -> None:
    for queue, value in values.items():
        if value < least:
            raise OptionError(f"option {name}: {value} for queue {queue}: expected {expected}")


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("no zone")
    return round(time.timestamp() * 1000)


def _check_ends(starting: Position, ending: Position, mode: Mode) -> None:
    """Reject two positions that contradict each other whatever the queues hold."""
    if mode is Mode.BATCH:
        _reject_edge("startingOffsets", starting, Edge.LATEST)
        _reject_edge("endingOffsets", ending, Edge.EARLIEST)
    if isinstance(starting, Time) and isinstance(ending, Time) and starting > ending:
        raise OptionError(
            f"startingTimestamp={starting.milliseconds} is later than "
            f"endingTimestamp={ending.milliseconds}"
        )
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        for queue, end in ending.offsets.items():
            start = starting.offsets.get(queue, end)
            if start > end >= 0:
                raise OptionError(
                    f"startingOffsets ({start}) is above endingOffsets ({end}) for queue {queue}"
                )


def _reject_edge(name: str, position: Position, edge: Edge) -> None:
    """Reject a batch that starts at the latest offset or ends at the earliest."""
    offsets = position.offsets.values() if isinstance(position, AtOffsets) else ()
    if position is edge or edge.value in offsets:
        raise OptionError(
            f"option {name} of a batch read cannot be {edge.name.lower()} ({edge.value}): "
            "the read would be empty"
        )


def _start_at_end(given: GivenOptions) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    given.need(name, "startingTimestamp", "startingOffsetsByTimestamp")
    return given.choice(name, ("error", "latest"), "error") == "latest"


def _sql(given: GivenOptions) -> str | None:
    given.parsed("sql", compile_sql, SqlError)
    return given.text("sql")


def _retries(given: GivenOptions, default: int) -> int:
    retries = given.number("fetchOffset.numRetries", least=0)
    return default if retries is None else retries


def _seconds(given: GivenOptions, name: str, default: float) -> float:
    return given.seconds(name, "ms", "30s") or default


def _check_together(given: GivenOptions, parsed: ReadOptions) -> None:
    if parsed.commit_log_only:
        others = ("assign", "where", "minPartitions", "maxRecordsPerPartition")
        for name in (*_STARTS, *_ENDS, *others):
            given.exclude("commitLogOnly", name)
    given.need("maxTriggerDelay", "minOffsetsPerTrigger")
    least, most = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}")
    for names, position in ((_STARTS, parsed.starting), (_ENDS, parsed.ending)):
        if isinstance(position, AtOffsets):
            _check_queues(names[0], parsed.wanted, position.offsets)
        elif isinstance(position, AtTimes):
            _check_queues(names[2], parsed.wanted, position.times)


def _check_queues(name: str, wanted: Wanted, queues: Offsets) -> None:
    """Reject positions for queues that are not read, and missing ones, as far as known now."""
    if isinstance(wanted, Queues):
        different = queues.keys() ^ set(wanted.queues)
        if different:
            raise OptionError(
                f"options {name} and assign name different queues: both must name "
                f"{name_queues(different)}"
            )
    elif isinstance(wanted, Topics):
        topics = {queue.topic for queue in queues}
        different_topics = topics ^ set(wanted.names)
        if different_topics:
            raise OptionError(
                f"options {name} and subscribe name different topics: both must name "
                f"{', '.join(sorted(different_topics))}"
            )
