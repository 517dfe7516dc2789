"""What a replay makes of messages: which of them are sent, to where, with what on them.

    rows = replayed(frame, filters, changes)          # columns of the sink

A replayed message has its body, flag, keys, tags and the application's properties as they
were. It gets a unique key of its own, made from the replay's id and the place it comes from:
sent again, it has the same one. Three properties say where it was: ORIGIN_PLACE
(`topic@broker:queue:offset`), ORIGIN_BORN_TIME and ORIGIN_STORE_TIME in milliseconds, the
times shifted if that was asked for.

Expressions of Spark's only, run by the JVM. Called in the driver.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql
from pyspark.sql.types import MapType

from pyromq.protocol.message.properties import property_pattern
from pyromq.protocol.message.system_properties import SHARDING_KEY
from pyromq.spark.origins.origin import QueueRange
from pyromq.spark.reading.conditions import options_for, stored_condition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORIGIN_PLACE: Final = "ORIGIN_PLACE"
ORIGIN_BORN_TIME: Final = "ORIGIN_BORN_TIME"
ORIGIN_STORE_TIME: Final = "ORIGIN_STORE_TIME"
_ADDED: Final = (ORIGIN_PLACE, ORIGIN_BORN_TIME, ORIGIN_STORE_TIME)
_KEY_PREFIX_DIGITS: Final = 20
_KEY_NUMBER_DIGITS: Final = 12


class Order(enum.Enum):
    """Which messages stay in their order, and so go to one queue."""

    NONE = "none"
    #: Those of a source queue, which go to the queue of the same number.
    QUEUES = "queues"
    #: Those of an ordering key.
    KEYS = "keys"


@dataclass(frozen=True)
class Filters:
    """Which messages are replayed."""

    where: str | None = None
    tags: tuple[str, ...] = ()
    #: storeTimestamp in milliseconds, without the end.
    since: int | None = None
    until: int | None = None

    def within(self, since: int, until: int) -> Filters:
        """The same, of a part of the time."""
        return replace(
            self,
            since=max(since, self.since) if self.since is not None else since,
            until=min(until, self.until) if self.until is not None else until,
        )


@dataclass(frozen=True)
class Changes:
    """What becomes of them."""

    replay_id: str
    to_topic: str | None = None
    shift: int = 0
    order: Order = Order.NONE
    keep_unique_keys: bool = False


@dataclass(frozen=True)
class Schedule:
    """When messages are sent: one that was stored at `origin` at `start`, in milliseconds,
    others before and after it by their distance divided by `pace`."""

    origin: int
    start: int
    pace: float

    def time_of(self, stored: int) -> float:
        """When a message is sent that was stored then, in milliseconds."""
        return self.start + (stored - self.origin) / self.pace


def select_ranges(frame: DataFrame, ranges: Sequence[QueueRange]) -> DataFrame:
    """The messages of some offsets of queues."""
    wanted = sql.lit(False)
    for queue, start, end in ranges:
        wanted = wanted | (
            (sql.col("topic") == queue.topic)
            & (sql.col("brokerName") == queue.broker_name)
            & (sql.col("queueId") == queue.queue_id)
            & (sql.col("queueOffset") >= start)
            & (sql.col("queueOffset") < end)
        )
    return frame.where(wanted)


def select_times(frame: DataFrame, since: int | None, until: int | None) -> DataFrame:
    """The messages that were stored in a time, without its end, in milliseconds."""
    if since is not None:
        frame = frame.where(sql.col("storeTimestamp") >= sql.timestamp_millis(sql.lit(since)))
    if until is not None:
        frame = frame.where(sql.col("storeTimestamp") < sql.timestamp_millis(sql.lit(until)))
    return frame


def source_options(filters: Filters, time_zone: str | None) -> dict[str, str]:
    """The option by which the source reads only messages that can be wanted."""
    stored = stored_condition(filters.since, filters.until, filters.tags)
    own = options_for(filters.where or "", time_zone=time_zone).options.values()
    return options_for(" AND ".join([*([stored] if stored else []), *own])).options


def filtered(frame: DataFrame, filters: Filters) -> DataFrame:
    """The messages that are wanted."""
    frame = select_times(frame, filters.since, filters.until)
    if filters.tags:
        frame = frame.where(sql.col("tags").isin(*filters.tags))
    if filters.where is not None:
        frame = frame.where(filters.where)
    return frame


def replayed(frame: DataFrame, changes: Changes, schedule: Schedule | None = None) -> DataFrame:
    """Messages as rows for the sink; with a schedule each has its time."""
    topic = sql.lit(changes.to_topic) if changes.to_topic is not None else sql.col("topic")
    columns = [
        topic.alias("topic"),
        sql.col("body"),
        sql.col("flag"),
        _properties(frame, changes.shift).alias("properties"),
        _unique_key(changes).alias("uniqueKey"),
    ]
    if changes.order is Order.QUEUES:
        columns.append(sql.col("queueId"))
    elif changes.order is Order.KEYS:
        columns.append(_ordering_key(frame).alias("orderingKey"))
    if schedule is not None:
        stored = sql.unix_millis("storeTimestamp")
        at = (stored - schedule.origin) / schedule.pace + schedule.start
        columns.append(sql.timestamp_millis(at.cast("long")).alias("sendAt"))
    return frame.select(*columns)


def in_order(frame: DataFrame, order: Order, tasks: int) -> DataFrame:
    """Messages such that each task has those that stay together, in their order."""
    places = ["topic", "brokerName", "queueId"]
    if order is Order.KEYS:
        # All keys of a task, whatever queues they came by: in the order in which they were stored.
        return frame.repartition(tasks, _ordering_key(frame)).sortWithinPartitions(
            "storeTimestamp", *places, "queueOffset"
        )
    return frame.repartition(tasks, *places).sortWithinPartitions(*places, "queueOffset")


def _properties(frame: DataFrame, shift: int) -> Column:
    place = sql.concat(
        "topic", sql.lit("@"), "brokerName", sql.lit(":"), "queueId", sql.lit(":"), "queueOffset"
    )
    added = {
        ORIGIN_PLACE: place,
        ORIGIN_BORN_TIME: (sql.unix_millis("bornTimestamp") + shift).cast("string"),
        ORIGIN_STORE_TIME: (sql.unix_millis("storeTimestamp") + shift).cast("string"),
    }
    own = sql.col("properties")
    if isinstance(frame.schema["properties"].dataType, MapType):
        pairs = [part for name, value in added.items() for part in (sql.lit(name), value)]
        kept = sql.map_filter(own, lambda name, _: ~name.isin(*_ADDED))
        empty = sql.map_from_arrays(
            sql.array().cast("array<string>"), sql.array().cast("array<string>")
        )
        return sql.map_concat(sql.coalesce(kept, empty), sql.create_map(*pairs))
    kept = sql.regexp_replace(own, property_pattern(_ADDED), "")
    pieces = [sql.concat(sql.lit(f"{name}\x01"), value) for name, value in added.items()]
    return sql.concat_ws("\x02", *pieces, sql.nullif(kept, sql.lit("")))


def _unique_key(changes: Changes) -> Column:
    made = sql.concat(
        sql.substring(
            sql.md5(
                sql.concat_ws(
                    "/", sql.lit(changes.replay_id), "topic", "brokerName", sql.col("queueId")
                ).cast("binary")
            ),
            1,
            _KEY_PREFIX_DIGITS,
        ),
        sql.lpad(sql.hex("queueOffset"), _KEY_NUMBER_DIGITS, "0"),
    )
    key = sql.upper(made)
    return sql.coalesce(sql.col("uniqueKey"), key) if changes.keep_unique_keys else key


def _ordering_key(frame: DataFrame) -> Column:
    own = sql.col("properties")
    if isinstance(frame.schema["properties"].dataType, MapType):
        return own[SHARDING_KEY]
    found = sql.regexp_extract(own, f"(?:^|\x02){SHARDING_KEY}\x01([^\x02]*)", 1)
    return sql.nullif(found, sql.lit(""))
