"""The replay job: messages of an archive or of a cluster are sent again, part by part.

    run_replay(session, ArchivedTopics("archive", Topics(("Orders",))), sink, ReplayOptions())

What is replayed is fixed at the beginning and cut into parts (`replay_state`). A part is one
Spark job: read, filtered and changed by Spark (`replay_rows`), stored by the sink. Then it is
written down as done. The rate is that of the whole job: each task gets its share. With a pace
the parts are slices of time, one task sends a slice, and each message waits for its time.

Runs in the driver, on the main thread.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import Observation
from pyspark.sql import functions as sql

from pyromq.spark.archive.directory import ArchiveDirectory, data_directory
from pyromq.spark.options import TopicPattern, Topics
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.origins.origin import Queue, QueueRange
from pyromq.spark.reading.positions import TOPIC_OPTION_ADVICE, find_queues
from pyromq.spark.reading.queue_offsets import offsets_to_dict, queue_key
from pyromq.spark.replay.rows import (
    Changes,
    Filters,
    Order,
    Schedule,
    filtered,
    in_order,
    replayed,
    select_ranges,
    source_options,
)
from pyromq.spark.replay.state import Cut, Progress, ReplayError, StateDirectory
from pyromq.spark.runtime.fan_out import parallelism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

DEFAULT_PART_MESSAGES: Final = 1_000_000
#: With a pace: how much of the replay's own time a part takes, in milliseconds.
_SLICE_MS: Final = 30_000
#: How long before its first message a part is begun: Spark has to start it.
_LEAD_MS: Final = 2_000
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class ReplayOptions:
    """What is replayed of a source, and how."""

    filters: Filters = field(default_factory=Filters)
    to_topic: str | None = None
    #: Messages in a second, of the whole job.
    rate: int | None = None
    #: 1.0: with the distances in time that messages had; 2.0: twice as fast.
    pace: float | None = None
    #: In milliseconds, for the times that messages tell; None: such that they begin now.
    shift: int | None = 0
    order: Order = Order.NONE
    keep_unique_keys: bool = False
    part_messages: int = DEFAULT_PART_MESSAGES

    def settings(self) -> dict[str, Any]:
        """What must stay the same when a replay goes on."""
        return {
            "where": self.filters.where,
            "tags": list(self.filters.tags),
            "since": self.filters.since,
            "until": self.filters.until,
            "to-topic": self.to_topic,
            "shift": "now" if self.shift is None else self.shift,
            "order": self.order.value,
            "keep-unique-keys": self.keep_unique_keys,
        }


@dataclass
class Replayed:
    """What a run has done so far."""

    messages: int = 0
    parts: int = 0
    #: Of the whole replay, earlier runs included.
    all_messages: int = 0
    #: Whether it went on with an earlier run.
    resumed: bool = False
    units_left: int = 0
    #: Of the messages before the filters: done, and in all, of the unit under way.
    unit: str = ""
    unit_done: int = 0
    unit_total: int = 0


class ReplaySource(Protocol):
    """Where messages come from."""

    def settings(self) -> dict[str, Any]:
        """What it is, for the state."""

    def units(self, filters: Filters) -> tuple[list[str], dict[Queue, int]]:
        """What there is now: the names of the units, and where queues end, if that is known."""

    def ranges(
        self, session: SparkSession, unit: str, ends: Mapping[Queue, int], filters: Filters
    ) -> list[QueueRange]:
        """The offsets of a unit."""

    def frame(
        self, session: SparkSession, unit: str, ranges: list[QueueRange], filters: Filters
    ) -> DataFrame:
        """The messages of some of a unit's offsets; of those that filters rule out, some or all."""


@dataclass(frozen=True)
class ClusterTopics:
    """Topics of a cluster, up to where they reach when the replay begins."""

    source: BrokerSource
    #: For the format "rocketmq": nameserver and keys.
    read_options: Mapping[str, str] = field(repr=False)
    wanted: Topics | TopicPattern

    def settings(self) -> dict[str, Any]:
        """The cluster and the topics."""
        return {
            "source": self.read_options["nameserver"],
            "topics": _wanted_text(self.wanted),
        }

    def units(self, filters: Filters) -> tuple[list[str], dict[Queue, int]]:
        """One, of all topics."""
        with closing(self.source.open()) as origin:
            bounds = origin.bounds(find_queues(origin, self.wanted, advice=TOPIC_OPTION_ADVICE))
            ends = {queue: each.end for queue, each in bounds.items()}
            if filters.until is not None:
                found = origin.offsets_at(dict.fromkeys(bounds, filters.until))
                ends |= {queue: min(ends[queue], offset) for queue, offset in found.items()}
        return [_wanted_text(self.wanted)], ends

    def ranges(
        self, session: SparkSession, unit: str, ends: Mapping[Queue, int], filters: Filters
    ) -> list[QueueRange]:
        """All that is below the ends."""
        del session, unit
        with closing(self.source.open()) as origin:
            bounds = origin.bounds(ends)
            missing = [queue for queue in ends if queue not in bounds]
            if missing:
                raise ReplayError(f"{missing[0]} cannot be seen now: its broker is away")
            starts = {queue: each.first for queue, each in bounds.items()}
            if filters.since is not None:
                found = origin.offsets_at(dict.fromkeys(bounds, filters.since))
                starts |= {queue: max(starts[queue], offset) for queue, offset in found.items()}
        return [
            QueueRange(queue, starts[queue], max(starts[queue], end))
            for queue, end in sorted(ends.items())
        ]

    def frame(
        self, session: SparkSession, unit: str, ranges: list[QueueRange], filters: Filters
    ) -> DataFrame:
        """Read by the format "rocketmq", which leaves out what it can."""
        del unit
        assigned: dict[str, list[str]] = {}
        for queue, _, _ in ranges:
            assigned.setdefault(queue.topic, []).append(queue_key(queue))
        starts = offsets_to_dict({queue: start for queue, start, _ in ranges})
        ends = offsets_to_dict({queue: end for queue, _, end in ranges})
        reader = session.read.format("rocketmq").options(**self.read_options)
        return reader.options(
            assign=json.dumps(assigned),
            startingOffsets=json.dumps(starts),
            endingOffsets=json.dumps(ends),
            **source_options(filters, session.conf.get("spark.sql.session.timeZone")),
        ).load()


@dataclass(frozen=True)
class ArchivedTopics:
    """Topics of an archive, as far as it is committed when the replay begins."""

    directory: Path
    #: None: all of them.
    wanted: Topics | TopicPattern | None = None

    def settings(self) -> dict[str, Any]:
        """The archive and the topics."""
        return {
            "source": str(self.directory.absolute()),
            "topics": "" if self.wanted is None else _wanted_text(self.wanted),
        }

    def units(self, filters: Filters) -> tuple[list[str], dict[Queue, int]]:
        """The hours in which there is something, in order."""
        archive = ArchiveDirectory(self.directory)
        archive.need()
        ends = {
            queue: end
            for queue, end in archive.state().positions.items()
            if self._is_wanted(queue.topic)
        }
        hours = {file.hour for file in archive.files() if self._is_wanted(file.topic)}
        if isinstance(self.wanted, Topics):
            missing = set(self.wanted.names) - {queue.topic for queue in ends}
            if missing:
                raise ReplayError(
                    f"{self.directory} has no topic {sorted(missing)[0]!r}: is it another archive?"
                )
        return [hour for hour in sorted(hours) if _overlaps(hour, filters)], ends

    def ranges(
        self, session: SparkSession, unit: str, ends: Mapping[Queue, int], filters: Filters
    ) -> list[QueueRange]:
        """What the files of an hour hold, below the ends."""
        del filters
        found = (
            self._read(session, unit)
            .groupBy("topic", "brokerName", "queueId")
            .agg(sql.min("queueOffset").alias("first"), sql.max("queueOffset").alias("last"))
            .collect()
        )
        ranges = []
        for row in found:
            queue = Queue(row["topic"], row["brokerName"], row["queueId"])
            end = min(row["last"] + 1, ends.get(queue, 0))
            if end > row["first"]:
                ranges.append(QueueRange(queue, row["first"], end))
        return sorted(ranges)

    def frame(
        self, session: SparkSession, unit: str, ranges: list[QueueRange], filters: Filters
    ) -> DataFrame:
        """Read from the files of the hour."""
        del filters
        return select_ranges(self._read(session, unit), ranges)

    def _read(self, session: SparkSession, hour: str) -> DataFrame:
        archive = ArchiveDirectory(self.directory)
        topics = sorted({file.topic for file in archive.files() if file.hour == hour})
        frames = [
            session.read.parquet(str(archive.path / data_directory(topic, hour))).withColumn(
                "topic", sql.lit(topic)
            )
            for topic in topics
            if self._is_wanted(topic)
        ]
        if not frames:
            raise ReplayError(f"{self.directory} has no files of hour {hour} any more")
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def _is_wanted(self, topic: str) -> bool:
        if self.wanted is None:
            return True
        if isinstance(self.wanted, Topics):
            return topic in self.wanted.names
        return re.fullmatch(self.wanted.pattern, topic) is not None


def run_replay(
    session: SparkSession,
    source: ReplaySource,
    sink: Mapping[str, str],
    options: ReplayOptions,
    *,
    state: Path | None = None,
    on_progress: Callable[[Replayed], None] | None = None,
) -> Replayed:
    """Send messages again. `sink` are options of the format "rocketmq": where to.

    With a `state` directory a replay that ended before its end goes on. Raises ReplayError,
    OriginError, PositionError, and what Spark raises.
    """
    directory = StateDirectory(state)
    with directory.locked():
        settings = source.settings() | {"target": sink["nameserver"]} | options.settings()
        progress = directory.load(settings)
        resumed = progress is not None
        if progress is None:
            progress = begin_replay(source, settings, options)
            directory.save(progress)
        job = _Replayer(session, source, sink, options, directory, progress)
        job.report = on_progress or (lambda _: None)
        job.replayed.resumed = resumed
        job.run()
    return job.replayed


def begin_replay(
    source: ReplaySource, settings: Mapping[str, Any], options: ReplayOptions
) -> Progress:
    """A new replay of what there is now."""
    units, ends = source.units(options.filters)
    return Progress.begin(settings, units, ends, options.shift)


class _Replayer:
    """One run."""

    def __init__(
        self,
        session: SparkSession,
        source: ReplaySource,
        sink: Mapping[str, str],
        options: ReplayOptions,
        directory: StateDirectory,
        progress: Progress,
    ) -> None:
        self.replayed = Replayed(all_messages=progress.rows)
        self.report: Callable[[Replayed], None] = lambda _: None
        self._session = session
        self._source = source
        self._sink = sink
        self._options = options
        self._directory = directory
        self._progress = progress
        self._schedule: Schedule | None = None
        self._tasks = parallelism(session)

    def run(self) -> None:
        """Replay what is left."""
        while (unit := self._progress.unit) is not None:
            cut = self._progress.cut or self._cut(unit)
            if cut is None:
                self._save(self._progress.unit_done())
                continue
            self._show(unit, cut)
            rows = self._send(unit, cut, self._progress.parts_done)
            self.replayed.parts += 1
            self.replayed.messages += rows
            self._save(self._progress.part_done(rows))
            self._show(unit, cut)

    def _cut(self, unit: str) -> Cut | None:
        """Cut a unit into parts; None when it has nothing."""
        options = self._options
        ranges = self._source.ranges(self._session, unit, self._progress.ends, options.filters)
        if not any(wanted.size for wanted in ranges):
            return None
        needs_times = options.pace is not None or self._progress.shift is None
        times = self._times(unit, ranges) if needs_times else None
        if needs_times and times is None:
            return None
        if times is not None and self._progress.shift is None:
            self._save(self._progress.with_shift(_now() - times[0]))
        if options.pace is None or times is None:
            cut = Cut.by_offsets(ranges, options.part_messages)
        else:
            cut = Cut.by_times(ranges, *times, max(1, int(_SLICE_MS * options.pace)))
        self._save(self._progress.with_cut(cut))
        return cut

    def _times(self, unit: str, ranges: list[QueueRange]) -> tuple[int, int] | None:
        """When the first and the last message that are wanted were stored."""
        wanted = [each for each in ranges if each.size]
        filters = self._options.filters
        frame = filtered(self._source.frame(self._session, unit, wanted, filters), filters)
        row = frame.select(
            sql.min(sql.unix_millis("storeTimestamp")).alias("first"),
            sql.max(sql.unix_millis("storeTimestamp")).alias("last"),
        ).first()
        if row is None or row["first"] is None:
            return None
        return int(row["first"]), int(row["last"])

    def _send(self, unit: str, cut: Cut, part: int) -> int:
        """Send one part; returns how many messages that were."""
        ranges = cut.ranges_of(part)
        if not ranges:
            return 0
        options = self._options
        times = cut.times_of(part)
        filters = options.filters if times is None else options.filters.within(*times)
        frame = filtered(self._source.frame(self._session, unit, ranges, filters), filters)
        schedule = None
        if times is not None and options.pace is not None:
            schedule = self._wait_for(times[0], options.pace)
            frame = frame.repartition(1).sortWithinPartitions(
                "storeTimestamp", "topic", "brokerName", "queueId", "queueOffset"
            )
        tasks = self._share() if options.rate is not None else self._tasks
        if schedule is None and options.order is not Order.NONE:
            frame = in_order(frame, options.order, tasks)
        elif schedule is None and options.rate is not None:
            frame = frame.repartition(tasks)
        changes = Changes(
            self._progress.id,
            options.to_topic,
            self._progress.shift or 0,
            options.order,
            options.keep_unique_keys,
        )
        observation = Observation()
        rows = replayed(frame, changes, schedule).observe(
            observation, sql.count(sql.lit(1)).alias("rows")
        )
        writer = rows.write.format("rocketmq").mode("append").options(**self._sink)
        if options.rate is not None:
            share = options.rate if schedule is not None else options.rate // tasks
            writer = writer.option("maxRowsPerSecond", str(max(1, share)))
        writer.save()
        return int(observation.get["rows"])

    def _share(self) -> int:
        """How many tasks share the rate: each has one message in a second at least."""
        assert self._options.rate is not None
        return max(1, min(self._tasks, self._options.rate))

    def _wait_for(self, begin: int, pace: float) -> Schedule:
        """Wait until a slice of time is near; the schedule begins with the first one."""
        if self._schedule is None:
            self._schedule = Schedule(begin, _now() + _LEAD_MS, pace)
        wait = self._schedule.time_of(begin) - _LEAD_MS - _now()
        if wait > 0:
            time.sleep(wait / 1000)
        return self._schedule

    def _save(self, progress: Progress) -> None:
        self._progress = progress
        self._directory.save(progress)

    def _show(self, unit: str, cut: Cut) -> None:
        shown = self.replayed
        shown.unit = unit
        shown.unit_total = sum(wanted.size for wanted in cut.ranges)
        is_under_way = self._progress.unit == unit
        done = self._progress.parts_done / cut.parts if is_under_way else 1.0
        shown.unit_done = int(shown.unit_total * done)
        shown.units_left = len(self._progress.units) - self._progress.units_done
        shown.all_messages = self._progress.rows
        self.report(shown)


def _overlaps(hour: str, filters: Filters) -> bool:
    begin = _hour_start(hour)
    return not (
        (filters.since is not None and begin + _HOUR_MS <= filters.since)
        or (filters.until is not None and begin >= filters.until)
    )


def _hour_start(hour: str) -> int:
    """`2026-11-16-05` in milliseconds."""
    return int(datetime.strptime(hour, "%Y-%m-%d-%H").replace(tzinfo=UTC).timestamp() * 1000)


def _wanted_text(wanted: Topics | TopicPattern) -> str:
    return ", ".join(sorted(wanted.names)) if isinstance(wanted, Topics) else wanted.pattern


def _now() -> int:
    return time.time_ns() // 1_000_000
