"""The replay job: send messages of an archive or a cluster again, batch by batch.

    run_replay(session, ArchivedTopics("archive", Topics(("Orders",))), sink, ReplayOptions())

The messages to replay are determined at the start and divided into batches (`state`). A batch is
one Spark job: Spark reads, filters and transforms it (`rows`), the sink stores it, and the state
records it as done. The rate is that of the whole job; tasks share it. With a pace, the batches are
time slices: one task sends each slice, and every message waits for its time.

Runs in the driver, on the main thread.
"""

from __future__ import annotations

import json
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

from pyromq.base.clock import now_ms
from pyromq.client.message import check_topic
from pyromq.spark.archive.directory import ArchiveDirectory, data_directory
from pyromq.spark.options import TopicPattern, Topics
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.origins.origin import Queue, QueueRange
from pyromq.spark.reading.positions import TOPIC_OPTION_ADVICE, find_queues
from pyromq.spark.reading.queue_offsets import offsets_to_dict, queue_key
from pyromq.spark.replay.options import Filters, Order, ReplayOptions
from pyromq.spark.replay.rows import (
    Changes,
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

#: Everything that a caller of `run_replay` needs.
__all__ = [
    "ArchivedTopics",
    "ClusterTopics",
    "Filters",
    "Order",
    "ReplayOptions",
    "ReplaySource",
    "Replayed",
    "TopicPattern",
    "Topics",
    "begin_replay",
    "check_topic",
    "run_replay",
]

#: With a pace: how long sending one time slice takes.
_SLICE_MS: Final = 30_000
#: Start a slice this long before its first message, because Spark needs time to start it.
_LEAD_MS: Final = 2_000
_HOUR_MS: Final = 3_600_000


@dataclass
class Replayed:
    """The progress of a run."""

    messages: int = 0
    #: Batches.
    parts: int = 0
    #: Including earlier runs of the same replay.
    all_messages: int = 0
    #: Whether it continues an earlier run.
    resumed: bool = False
    units_left: int = 0
    #: The current unit, and its messages before filtering: done, and in total.
    unit: str = ""
    unit_done: int = 0
    unit_total: int = 0


class ReplaySource(Protocol):
    """The source of the messages to replay."""

    def settings(self) -> dict[str, Any]:
        """Describe the source for the state."""

    def units(self, filters: Filters) -> tuple[list[str], dict[Queue, int]]:
        """Return the names of the units that exist now, and the ends of the queues."""

    def ranges(
        self, session: SparkSession, unit: str, ends: Mapping[Queue, int], filters: Filters
    ) -> list[QueueRange]:
        """Return the offsets of a unit."""

    def frame(
        self, session: SparkSession, unit: str, ranges: list[QueueRange], filters: Filters
    ) -> DataFrame:
        """Read some offsets of a unit; messages that the filters exclude may be included."""


@dataclass(frozen=True)
class ClusterTopics:
    """Topics of a cluster, up to their ends when the replay starts."""

    source: BrokerSource
    #: Options of the format "rocketmq": NameServers and keys.
    read_options: Mapping[str, str] = field(repr=False)
    wanted: Topics | TopicPattern

    def settings(self) -> dict[str, Any]:
        """Describe the cluster and the topics."""
        return {
            "source": self.read_options["nameserver"],
            "topics": _wanted_text(self.wanted),
        }

    def units(self, filters: Filters) -> tuple[list[str], dict[Queue, int]]:
        """Return one unit for all topics."""
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
        """Return all offsets below the ends."""
        del session, unit
        with closing(self.source.open()) as origin:
            bounds = origin.bounds(ends)
            missing = [queue for queue in ends if queue not in bounds]
            if missing:
                raise ReplayError(f"{missing[0]} is unavailable: its broker is not reachable")
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
        """Read with the format "rocketmq", which skips what the filters exclude, if possible."""
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
    """Topics of an archive, up to the last commit when the replay starts."""

    directory: Path
    #: None means all.
    wanted: Topics | TopicPattern | None = None

    def settings(self) -> dict[str, Any]:
        """Describe the archive and the topics."""
        return {
            "source": str(self.directory.absolute()),
            "topics": "" if self.wanted is None else _wanted_text(self.wanted),
        }

    def units(self, filters: Filters) -> tuple[list[str], dict[Queue, int]]:
        """Return the hours that have messages, in order."""
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
                    f"{self.directory} has no topic {sorted(missing)[0]!r}: another archive?"
                )
        return [hour for hour in sorted(hours) if _overlaps(hour, filters)], ends

    def ranges(
        self, session: SparkSession, unit: str, ends: Mapping[Queue, int], filters: Filters
    ) -> list[QueueRange]:
        """Return the offsets in the files of an hour, below the ends."""
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
        """Read the files of the hour."""
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
            raise ReplayError(f"{self.directory} no longer has files of hour {hour}")
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
    """Replay messages to the cluster that `sink`, options of the format "rocketmq", names.

    With a `state` directory, resume a replay that was interrupted. Raises ReplayError,
    OriginError, PositionError and PySparkException.
    """
    directory = StateDirectory(state)
    with directory.locked():
        settings = source.settings() | {"target": sink["nameserver"]} | options.settings()
        progress = directory.load(settings)
        resumed = progress is not None
        if progress is None:
            progress = begin_replay(source, settings, options)
            directory.save(progress)
        replayed = Replayed(all_messages=progress.rows, resumed=resumed)
        job = _Replayer(session, source, sink, options, directory, progress, replayed)
        job.run(on_progress or (lambda _: None))
    return replayed


def begin_replay(
    source: ReplaySource, settings: Mapping[str, Any], options: ReplayOptions
) -> Progress:
    """Start a new replay of the messages that exist now."""
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
        replayed: Replayed,
    ) -> None:
        self._session = session
        self._source = source
        self._sink = sink
        self._options = options
        self._directory = directory
        self._progress = progress
        self._replayed = replayed
        self._schedule: Schedule | None = None
        self._tasks = parallelism(session)

    def run(self, on_progress: Callable[[Replayed], None]) -> None:
        """Replay all remaining batches."""
        while (unit := self._progress.unit) is not None:
            cut = self._progress.cut or self._cut(unit)
            if cut is None:
                self._save(self._progress.unit_done())
                continue
            on_progress(self._counted(unit, cut))
            rows = self._send(unit, cut, self._progress.batches_done)
            self._replayed.parts += 1
            self._replayed.messages += rows
            self._save(self._progress.batch_done(rows))
            on_progress(self._counted(unit, cut))

    def _cut(self, unit: str) -> Cut | None:
        """Divide a unit into batches; None if it has no messages."""
        options = self._options
        ranges = self._source.ranges(self._session, unit, self._progress.ends, options.filters)
        if not any(wanted.size for wanted in ranges):
            return None
        needs_times = options.pace is not None or self._progress.shift is None
        times = self._times(unit, ranges) if needs_times else None
        if needs_times and times is None:
            return None
        if times is not None and self._progress.shift is None:
            self._save(self._progress.with_shift(now_ms() - times[0]))
        if options.pace is None or times is None:
            cut = Cut.by_offsets(ranges, options.part_messages)
        else:
            cut = Cut.by_times(ranges, *times, max(1, int(_SLICE_MS * options.pace)))
        self._save(self._progress.with_cut(cut))
        return cut

    def _times(self, unit: str, ranges: list[QueueRange]) -> tuple[int, int] | None:
        """Return the store times of the first and last message that pass the filters."""
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

    def _send(self, unit: str, cut: Cut, batch: int) -> int:
        """Send one batch; return how many messages it had."""
        ranges = cut.ranges_of(batch)
        if not ranges:
            return 0
        options = self._options
        times = cut.times_of(batch)
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
        """Return how many tasks share the rate: each sends at least one message per second."""
        assert self._options.rate is not None
        return max(1, min(self._tasks, self._options.rate))

    def _wait_for(self, begin: int, pace: float) -> Schedule:
        """Wait until shortly before a time slice. The first slice determines the schedule."""
        if self._schedule is None:
            self._schedule = Schedule(begin, now_ms() + _LEAD_MS, pace)
        wait = self._schedule.time_of(begin) - _LEAD_MS - now_ms()
        if wait > 0:
            time.sleep(wait / 1000)
        return self._schedule

    def _save(self, progress: Progress) -> None:
        self._progress = progress
        self._directory.save(progress)

    def _counted(self, unit: str, cut: Cut) -> Replayed:
        shown = self._replayed
        shown.unit = unit
        shown.unit_total = sum(wanted.size for wanted in cut.ranges)
        is_current = self._progress.unit == unit
        done = self._progress.batches_done / cut.batches if is_current else 1.0
        shown.unit_done = int(shown.unit_total * done)
        shown.units_left = len(self._progress.units) - self._progress.units_done
        shown.all_messages = self._progress.rows
        return shown


def _overlaps(hour: str, filters: Filters) -> bool:
    begin = _hour_start(hour)
    return not (
        (filters.since is not None and begin + _HOUR_MS <= filters.since)
        or (filters.until is not None and begin >= filters.until)
    )


def _hour_start(hour: str) -> int:
    """Return the milliseconds at which an hour such as `2026-11-16-05` starts."""
    return int(datetime.strptime(hour, "%Y-%m-%d-%H").replace(tzinfo=UTC).timestamp() * 1000)


def _wanted_text(wanted: Topics | TopicPattern) -> str:
    return ", ".join(sorted(wanted.names)) if isinstance(wanted, Topics) else wanted.pattern
