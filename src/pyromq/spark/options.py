"""The options of a read, checked: what is wanted, of where, from where to where, how much.

    ReadOptions.parse({"nameserver": "localhost:9876", "subscribe": "Orders"}, Mode.BATCH)

Names and meanings are those of Spark's Kafka connector where both have the thing. Every
mistake is refused before anything is read, by the option's name: an unknown option (with
the nearest known one), a value of another form, options that exclude each other, options
that have no effect. The driver parses; tasks get the frozen result.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias, TypeVar

from pyspark.sql.datasource import Filter

from pyromq.protocol.filter.sql import compile_sql
from pyromq.protocol.filter.sql_tokens import SqlError
from pyromq.protocol.filter.tags import SubscriptionError, parse_tags
from pyromq.remoting.address import AddressError, parse_addresses
from pyromq.spark.columns import MAP, RAW
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

_Value = TypeVar("_Value")

#: Offsets that stand for a queue's ends, as in Kafka's connector.
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1


class OptionError(ValueError):
    """An option that cannot be: its name, its value, what is possible."""


class Mode(enum.Enum):
    """What options are for. ANY: not known yet, as when Spark asks for the columns."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


class Edge(enum.Enum):
    """One end of all queues."""

    EARLIEST = EARLIEST_OFFSET
    LATEST = LATEST_OFFSET


class Time(NamedTuple):
    """In all queues, what was stored at a time, in milliseconds, or next after it."""

    milliseconds: int


class AtOffsets(NamedTuple):
    """Another offset in each queue; EARLIEST_OFFSET and LATEST_OFFSET are possible."""

    offsets: Offsets


class AtTimes(NamedTuple):
    """Another time, in milliseconds, in each queue."""

    times: Offsets


Position: TypeAlias = Edge | Time | AtOffsets | AtTimes


class Topics(NamedTuple):
    """Topics by name."""

    names: tuple[str, ...]


class TopicPattern(NamedTuple):
    """All topics whose whole name a regular expression matches."""

    pattern: str


class Queues(NamedTuple):
    """These queues and no others."""

    queues: tuple[Queue, ...]


Wanted: TypeAlias = Topics | TopicPattern | Queues


class _Known(NamedTuple):
    mode: Mode
    #: Not for the files of a store.
    asks_brokers: bool = False


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
    "sql": _Known(Mode.ANY, asks_brokers=True),
    "includeProperties": _Known(Mode.ANY),
    "failOnDataLoss": _Known(Mode.ANY),
    "minPartitions": _Known(Mode.ANY),
    "maxRecordsPerPartition": _Known(Mode.ANY),
    "maxOffsetsPerTrigger": _Known(Mode.STREAM),
    "minOffsetsPerTrigger": _Known(Mode.STREAM),
    "maxTriggerDelay": _Known(Mode.STREAM),
    "maxBytesPerTrigger": _Known(Mode.STREAM),
    "group": _Known(Mode.STREAM, asks_brokers=True),
    "accessKey": _Known(Mode.ANY, asks_brokers=True),
    "secretKey": _Known(Mode.ANY, asks_brokers=True),
    "tls": _Known(Mode.ANY, asks_brokers=True),
    "requestTimeout": _Known(Mode.ANY, asks_brokers=True),
    "reconnectTimeout": _Known(Mode.ANY, asks_brokers=True),
    "fetchOffset.numRetries": _Known(Mode.ANY),
    "fetchOffset.retryInterval": _Known(Mode.ANY),
}
#: Spark's own, which mean nothing here.
_SPARKS_OWN: Final = frozenset({"path", "paths", "serialization.format"})
#: How Spark names the options of a table that it is to keep in its catalog.
_TABLE_OPTION: Final = "option."
_BY_LOWER_NAME: Final = {name.lower(): name for name in KNOWN}
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True)
class ReadOptions:
    """All options of a read."""

    wanted: Wanted
    source: Source
    #: Read a store's log without its consume queues.
    commit_log_only: bool = False
    starting: Position = Edge.EARLIEST
    ending: Position = Edge.LATEST
    #: Whether queues with nothing at or after the time of the start begin at their end.
    start_at_end_if_nothing_later: bool = False
    #: Of all that, only rows for which these hold.
    where: tuple[Filter, ...] = ()
    tags: frozenset[str] = frozenset()
    sql: str | None = None
    include_properties: str = RAW
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    max_records_per_partition: int = 1_000_000
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    #: In seconds, as all times below.
    max_trigger_delay: float = 900.0
    max_bytes_per_trigger: int | None = None
    group: str | None = None
    fetch_retries: int = 3
    fetch_retry_interval: float = 1.0

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode) -> ReadOptions:
        """Check everything a user has said; raises OptionError."""
        given = _Given(options, mode)
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
            where=_where(given),
            tags=_tags(given),
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
            max_bytes_per_trigger=given.amount("maxBytesPerTrigger", _BYTES, "b", "64m"),
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
        """Return how long streams and tasks wait for servers that went away, in seconds."""
        source = self.source
        return source.settings.reconnect_timeout if isinstance(source, BrokerSource) else 0.0


class _Given:
    """What a user has said, by the options' own names."""

    def __init__(self, options: Mapping[str, str], mode: Mode) -> None:
        self._values: dict[str, str] = {}
        for name, value in options.items():
            known = _BY_LOWER_NAME.get(name.lower())
            if known is not None:
                self._values[known] = value
            elif name.lower() not in _SPARKS_OWN:
                raise OptionError(_unknown(name))
        for name in self._values:
            self._check_possible(name, mode)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """A value as it is, without spaces around it; an empty one is refused."""
        value = self._values.get(name)
        if value is None:
            return None
        if not value.strip():
            raise OptionError(f"option {name} is empty: give a value, or leave it out")
        return value.strip()

    def read(self, name: str, parse: Callable[[str], _Value], expected: str) -> _Value | None:
        """A value through a function that raises ValueError for what it cannot read."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise OptionError(f"option {name}={text!r:.200}: expected {expected}") from error

    def number(self, name: str, least: int = 1) -> int | None:
        """A whole number."""
        expected = f"a whole number, {least} or more"
        value = self.read(name, int, expected)
        if value is not None and not least <= value <= _LARGEST:
            raise OptionError(f"option {name}={value}: expected {expected}")
        return value

    def amount(self, name: str, units: Mapping[str, int], unit: str, example: str) -> int | None:
        """A whole number above 0 with one of these units, or without one."""
        expected = f"a number above 0 with a unit ({', '.join(units)}), for example {example}"
        value = self.read(name, lambda text: _amount(text, units, unit), expected)
        if value is not None and not 0 < value <= _LARGEST:
            raise OptionError(f"option {name}={self._values[name]!r}: expected {expected}")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """One of several words."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise OptionError(f"option {name}={text!r:.80}: expected {' or '.join(choices)}")
        return text.lower()

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def exclude(self, *names: str) -> None:
        """Refuse more than one of these."""
        both = [name for name in names if name in self._values]
        if len(both) > 1:
            raise OptionError(f"options {both[0]} and {both[1]} exclude each other: give one")

    def need(self, name: str, *others: str) -> None:
        """Refuse an option that has no effect without one of the others."""
        if name in self._values and not any(other in self._values for other in others):
            raise OptionError(f"option {name} has no effect without {' or '.join(others)}")

    def _check_possible(self, name: str, mode: Mode) -> None:
        known = KNOWN[name]
        if mode is not Mode.ANY and known.mode not in (Mode.ANY, mode):
            place = "spark.readStream" if known.mode is Mode.STREAM else "spark.read"
            raise OptionError(
                f"option {name} is for {known.mode.value} reads ({place}): leave it out of a "
                f"{mode.value} read"
            )
        if known.asks_brokers and "storePath" in self._values:
            raise OptionError(
                f"options storePath and {name} exclude each other: {name} is for reads from "
                "brokers, by nameserver"
            )


def _unknown(name: str) -> str:
    if name.lower().startswith(_TABLE_OPTION):
        return (
            "a topic cannot be a table of Spark's catalog, which does not give its options back "
            "when the table is read: take CREATE TEMPORARY VIEW ... USING rocketmq OPTIONS (...)"
        )
    near = difflib.get_close_matches(name.lower(), _BY_LOWER_NAME, n=1)
    if near:
        return f"there is no option {name!r:.80}: is {_BY_LOWER_NAME[near[0]]} meant?"
    return f"there is no option {name!r:.80}: there are {', '.join(KNOWN)}"


def _wanted(given: _Given) -> Wanted:
    given.exclude("subscribe", "subscribePattern", "assign")
    names = given.read("subscribe", _names, "topics separated by commas, as Orders,Payments")
    if names is not None:
        return Topics(names)
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"option subscribePattern={pattern!r:.200} is no regular expression: {error}"
            ) from error
        return TopicPattern(pattern)
    text = given.text("assign")
    if text is None:
        raise OptionError("nothing says what to read: give subscribe, subscribePattern or assign")
    queues = _json(given, "assign", queues_from_json)
    if not queues:
        raise OptionError(f"option assign={text!r:.200} names no queue")
    return Queues(tuple(queues))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise ValueError(text)
    return names


def _source(given: _Given) -> Source:
    given.exclude("nameserver", "storePath")
    store_path = given.text("storePath")
    if store_path is not None:
        return StoreSource(
            store_path,
            given.text("brokerName") or "",
            given.read("storePathCommitLog", _names, "directories") or (),
        )
    text = given.text("nameserver")
    if text is None:
        raise OptionError(
            "nothing says where to read: give nameserver (host:port), or storePath for "
            "the files of a store"
        )
    try:
        servers = tuple(parse_addresses(text))
    except AddressError as error:
        raise OptionError(f"option nameserver={text!r:.200}: {error}") from error
    settings = ConnectionSettings(
        servers,
        given.text("accessKey") or "",
        given.text("secretKey") or "",
        given.flag("tls", False),
        _seconds(given, "requestTimeout", REQUEST_SECONDS),
        _seconds(given, "reconnectTimeout", RECONNECT_SECONDS),
    )
    return BrokerSource(settings)


def _position(given: _Given, names: tuple[str, str, str], default: Edge) -> Position:
    given.exclude(*names)
    offsets_name, time_name, times_name = names
    if time_name in given:
        time = given.read(
            time_name,
            _milliseconds,
            "milliseconds since 1970, or a time with its zone as 2026-11-16T08:30:00Z",
        )
        assert time is not None
        return Time(time)
    if times_name in given:
        times = _json(given, times_name, offsets_from_json)
        for queue, value in times.items():
            if value < 0:
                raise OptionError(
                    f"option {times_name}: {value} of queue {queue} is no time: expected "
                    "milliseconds since 1970"
                )
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
    offsets = _json(given, offsets_name, offsets_from_json)
    for queue, value in offsets.items():
        if value < EARLIEST_OFFSET:
            raise OptionError(
                f"option {offsets_name}: {value} of queue {queue} is no offset: expected 0 or "
                f"more, {EARLIEST_OFFSET} for the earliest or {LATEST_OFFSET} for the latest"
            )
    return AtOffsets(offsets)


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("no zone")
    return round(time.timestamp() * 1000)


def _json(given: _Given, name: str, parse: Callable[[str], _Value]) -> _Value:
    text = given.text(name)
    assert text is not None
    try:
        return parse(text)
    except OffsetsError as error:
        raise OptionError(f"option {name}={text!r:.200}: {error}") from error


def _check_ends(starting: Position, ending: Position, mode: Mode) -> None:
    """What can be said of the two positions before any queue is asked."""
    if mode is Mode.BATCH:
        _refuse_edge("startingOffsets", starting, Edge.LATEST)
        _refuse_edge("endingOffsets", ending, Edge.EARLIEST)
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
                    f"startingOffsets has {start} for queue {queue}, endingOffsets only {end}"
                )


def _refuse_edge(name: str, position: Position, edge: Edge) -> None:
    """A batch cannot begin where everything ends, nor end where everything begins."""
    offsets = position.offsets.values() if isinstance(position, AtOffsets) else ()
    if position is edge or edge.value in offsets:
        raise OptionError(
            f"option {name} of a batch read cannot be {edge.name.lower()} ({edge.value}): "
            "nothing would be read"
        )


def _start_at_end(given: _Given) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    given.need(name, "startingTimestamp", "startingOffsetsByTimestamp")
    return given.choice(name, ("error", "latest"), "error") == "latest"


def _where(given: _Given) -> tuple[Filter, ...]:
    text = given.text("where")
    try:
        return parse_where(text) if text is not None else ()
    except ConditionError as error:
        raise OptionError(f"option where: {error}") from error


def _tags(given: _Given) -> frozenset[str]:
    text = given.text("tags")
    try:
        return parse_tags(text)
    except SubscriptionError as error:
        raise OptionError(f"option tags={text!r:.200}: {error}") from error


def _sql(given: _Given) -> str | None:
    text = given.text("sql")
    if text is not None:
        try:
            compile_sql(text)
        except SqlError as error:
            raise OptionError(f"option sql={text!r:.200}: {error}") from error
    return text


def _retries(given: _Given, default: int) -> int:
    retries = given.number("fetchOffset.numRetries", least=0)
    return default if retries is None else retries


def _seconds(given: _Given, name: str, default: float) -> float:
    milliseconds = given.amount(name, _MILLISECONDS, "ms", "30s")
    return default if milliseconds is None else milliseconds / 1000


def _amount(text: str, units: Mapping[str, int], unit: str) -> int:
    found = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.lower())
    if found is None:
        raise ValueError(text)
    number, given_unit = found.groups()
    if given_unit and given_unit not in units:
        raise ValueError(text)
    return int(number) * units[given_unit or unit]


def _check_together(given: _Given, parsed: ReadOptions) -> None:
    if ("accessKey" in given) != ("secretKey" in given):
        raise OptionError("options accessKey and secretKey are only possible together")
    for name in ("storePathCommitLog", "brokerName", "commitLogOnly"):
        given.need(name, "storePath")
    if parsed.commit_log_only:
        parts = ("assign", "where", "minPartitions", "maxRecordsPerPartition")
        for name in (*_STARTS, *_ENDS, *parts):
            given.exclude("commitLogOnly", name)
    given.need("maxTriggerDelay", "minOffsetsPerTrigger")
    least, most = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    for names, position in ((_STARTS, parsed.starting), (_ENDS, parsed.ending)):
        if isinstance(position, AtOffsets):
            _check_queues(names[0], parsed.wanted, position.offsets)
        elif isinstance(position, AtTimes):
            _check_queues(names[2], parsed.wanted, position.times)


def _check_queues(name: str, wanted: Wanted, queues: Offsets) -> None:
    """Refuse positions of what is not read, and silence on what is, as far as known now."""
    if isinstance(wanted, Queues):
        superfluous, missing = (
            queues.keys() - set(wanted.queues),
            set(wanted.queues) - queues.keys(),
        )
        if superfluous or missing:
            raise OptionError(
                f"options {name} and assign name other queues: both must name "
                f"{name_queues(superfluous | missing)}"
            )
    elif isinstance(wanted, Topics):
        topics = {queue.topic for queue in queues}
        different = topics ^ set(wanted.names)
        if different:
            raise OptionError(
                f"options {name} and subscribe name other topics: both must name "
                f"{', '.join(sorted(different))}"
            )
