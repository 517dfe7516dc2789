"""The audit job: check stored messages, and count their producers and consumers.

    report = audit(session, [StoreSource("/data/broker-a/store")])

An audit finds gaps in queues, duplicate offsets and unique keys, bodies with a wrong CRC and other
damage, unfinished transactions, and dead letters. Of a store it reads the whole log, of a cluster
all queues that consumers can read. Tasks turn slices of the messages into `Facts`; the driver joins
them and derives the report.

`audit` runs in the driver, `_LogSlice` and `_QueueSlice` in the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as fn

from pyromq.protocol.java.fastjson import BodyError, parse_json
from pyromq.protocol.message.bulk import read_columns
from pyromq.protocol.names import (
    DEAD_LETTER_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
    is_system_topic,
)
from pyromq.spark.audit.data import Facts, join, wrong_bodies
from pyromq.spark.audit.report import (
    AuditReport,
    DeadLetters,
    DuplicateKey,
    Finding,
    OpenTransaction,
    TopicAudit,
)
from pyromq.spark.origins.opening import BrokerSource, Source, StoreSource
from pyromq.spark.origins.origin import LostRecords, Queue, QueueRange
from pyromq.spark.origins.settings import ConnectionSettings
from pyromq.spark.origins.store import LogRange
from pyromq.spark.report.groups import group_lags
from pyromq.spark.runtime.fan_out import fan_out
from pyromq.spark.stores.builds import Progress, watched
from pyromq.store.offline.violation import Violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A transaction younger than this, compared with the newest message, may still finish.
OPEN_SECONDS: Final = 60

_OFFSETS_PER_TASK: Final = 200_000
#: All duplicate keys are counted; at most this many are listed.
_MAX_LISTED_KEYS: Final = 1000
_TRANSACTION_TOPICS: Final = (
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
)


def audit(
    session: SparkSession,
    sources: Sequence[Source],
    *,
    topics: Collection[str] = (),
    cluster: ConnectionSettings | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Audit all messages of these sources, or only those of some topics.

    Consumer groups come from the brokers among the sources, else from `cluster`, else from the
    offsets that the stores last saved.
    """
    slices = [
        (number, part) for number, source in enumerate(sources) for part in _slices(source, topics)
    ]
    with watched(session, progress, "reading messages", len(slices)):
        found = fan_out(session, _read, [part for _, part in slices])
    by_broker: dict[tuple[int, str], list[Facts]] = {}
    for (number, _), facts in zip(slices, found, strict=True):
        by_broker.setdefault((number, facts.broker_name), []).append(facts)
    all_facts = [join(parts, name) for (_, name), parts in sorted(by_broker.items())]
    report = AuditReport(records=sum(facts.records for facts in all_facts))
    for facts in all_facts:
        _add_facts(report, facts, topics)
    shown = _topic_names(all_facts, topics)
    report.topics = _topics(all_facts, shown, _consumers(sources, all_facts, shown, cluster))
    with watched(session, progress, "comparing unique keys", 1):
        _add_duplicate_keys(report, session, sources, shown)
    return report


def store_sources(stores: Sequence[Path]) -> list[Source]:
    """Return sources named after their directories, or after their paths if names repeat."""
    roots = [store.resolve() for store in stores]
    names = [root.name for root in roots]
    are_unique = len(set(names)) == len(names)
    return [StoreSource(str(root), root.name if are_unique else str(root)) for root in roots]


def count_tasks(sources: Sequence[Source], topics: Collection[str] = ()) -> int:
    """Return how many tasks would read the messages."""
    return sum(1 for source in sources for _ in _slices(source, topics))


class _LogSlice(NamedTuple):
    """A slice of a store's log."""

    source: StoreSource
    wanted: LogRange

    def facts(self) -> Facts:
        with closing(self.source.open()) as origin:
            facts = Facts(origin.broker_name)
            for found in origin.checked_log(self.wanted):
                if isinstance(found, Violation):
                    place = f"{found.file} at {found.position}"
                    facts.add_damage(place, f"{found.kind.value}: {found.message}")
                else:
                    facts.add(found.data, found.base, found.columns)
        return facts


class _QueueSlice(NamedTuple):
    """A range of offsets of a broker's queue."""

    source: BrokerSource
    wanted: QueueRange

    def facts(self) -> Facts:
        queue = self.wanted.queue
        facts = Facts(queue.broker_name)
        with closing(self.source.open()) as origin:
            for block in origin.blocks(self.wanted):
                if isinstance(block, LostRecords):
                    facts.add_damage(str(queue), str(block))
                    continue
                columns = read_columns(block.buffer, block.starts)
                if not columns.valid.all():
                    bad = int((~columns.valid).sum())
                    facts.add_damage(str(queue), f"{bad} records are malformed")
                    columns = read_columns(block.buffer, block.starts[columns.valid])
                for row in wrong_bodies(block.buffer, columns):
                    offset = int(columns.heads["queue_offset"][row])
                    facts.add_damage(f"{queue} offset {offset}", "the body's CRC is wrong")
                facts.add(block.buffer, 0, columns)
        return facts


_Slice = _LogSlice | _QueueSlice


def _slices(source: Source, topics: Collection[str]) -> Iterator[_Slice]:
    if isinstance(source, StoreSource):
        with closing(source.open()) as log:
            for wanted in log.log_ranges():
                yield _LogSlice(source, wanted)
        return
    with closing(source.open()) as origin:
        queues: list[Queue] = []
        for topic in (*origin.topics(), *_TRANSACTION_TOPICS):
            is_needed = topic in _TRANSACTION_TOPICS or topic.startswith(DEAD_LETTER_TOPIC_PREFIX)
            if not topics or topic in topics or is_needed:
                queues += origin.queues(topic)
        for queue, (first, end) in sorted(origin.bounds(queues).items()):
            for start in range(first, end, _OFFSETS_PER_TASK):
                stop = min(start + _OFFSETS_PER_TASK, end)
                yield _QueueSlice(source, QueueRange(queue, start, stop))


def _read(part: _Slice) -> Facts:
    return part.facts()


def _add_facts(report: AuditReport, facts: Facts, topics: Collection[str]) -> None:
    for (topic, broker, queue_id), queue in sorted(facts.queues.items()):
        if topics and topic not in topics:
            continue
        for findings, ranges in (
            (report.gaps, queue.gaps()),
            (report.repeated_offsets, queue.repeats()),
        ):
            findings += [Finding(topic, broker, queue_id, *each) for each in ranges]
    report.damage += [(each.place, each.message) for each in facts.damage]
    report.damage_count += facts.damage_count
    newest = max((queue.last_stored for queue in facts.queues.values()), default=0)
    for half, is_given_up in facts.open_halves():
        is_old = newest - half.stored >= OPEN_SECONDS * 1000
        if (is_old or is_given_up) and (not topics or half.topic in topics):
            report.open_transactions.append(
                OpenTransaction(
                    facts.broker_name,
                    half.offset,
                    half.stored,
                    half.topic,
                    half.group,
                    is_given_up,
                )
            )
    for (group, topic), count in sorted(facts.dead_letters.items()):
        if not topics or topic in topics:
            report.dead_letters.append(DeadLetters(group, topic, count))


def _topic_names(all_facts: Sequence[Facts], topics: Collection[str]) -> list[str]:
    found = {topic for facts in all_facts for topic, _, _ in facts.queues}
    return sorted(
        topic for topic in found if not is_system_topic(topic) and (not topics or topic in topics)
    )


def _topics(
    all_facts: Sequence[Facts], names: Sequence[str], consumers: dict[str, dict[str, int]]
) -> list[TopicAudit]:
    audits = []
    for name in names:
        queues = [
            queue
            for facts in all_facts
            for (topic, _, _), queue in facts.queues.items()
            if topic == name
        ]
        producers: dict[str, int] = {}
        for facts in all_facts:
            for host, count in facts.producers.get(name, {}).items():
                producers[host] = producers.get(host, 0) + count
        audits.append(
            TopicAudit(
                name,
                len(queues),
                sum(queue.messages for queue in queues),
                sum(queue.bytes for queue in queues),
                min(queue.first_stored for queue in queues),
                max(queue.last_stored for queue in queues),
                dict(sorted(producers.items())),
                dict(sorted(consumers.get(name, {}).items())),
            )
        )
    return audits


def _consumers(
    sources: Sequence[Source],
    all_facts: Sequence[Facts],
    topics: Sequence[str],
    cluster: ConnectionSettings | None,
) -> dict[str, dict[str, int]]:
    """Return the lag of each group, by topic and group."""
    brokers = [source for source in sources if isinstance(source, BrokerSource)]
    if cluster is not None and not brokers:
        brokers = [BrokerSource(cluster)]
    if not brokers:
        stores = [source for source in sources if isinstance(source, StoreSource)]
        return _saved_lags(stores, all_facts, topics)
    consumers: dict[str, dict[str, int]] = {}
    for source in brokers:
        with closing(source.open()) as origin:
            for lag in group_lags(origin, topics):
                consumers.setdefault(lag.topic, {})[lag.group] = lag.lag
    return consumers


def _saved_lags(
    stores: Sequence[StoreSource], all_facts: Sequence[Facts], topics: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return the lags according to the offsets that the stores saved."""
    ends = {
        key: max(end for _, end in queue.ranges)
        for facts in all_facts
        for key, queue in facts.queues.items()
        if queue.ranges
    }
    consumers: dict[str, dict[str, int]] = {}
    for store in stores:
        name = store.broker_name or Path(store.store_path).resolve().name
        for topic, group, queue_id, offset in _saved_offsets(Path(store.store_path)):
            if topic in topics:
                lag = max(ends.get((topic, name, queue_id), offset) - offset, 0)
                groups = consumers.setdefault(topic, {})
                groups[group] = groups.get(group, 0) + lag
    return consumers


def _saved_offsets(store: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield topic, group, queue and offset from the table that a broker saves periodically."""
    try:
        table = parse_json((store / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
        for name, offsets in table.items():
            topic, _, group = name.partition("@")
            for queue_id, offset in offsets.items():
                yield topic, group, int(queue_id), int(offset)
    except (BodyError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return  # the store has no such table, or a torn copy of it


def _add_duplicate_keys(
    report: AuditReport,
    session: SparkSession,
    sources: Sequence[Source],
    topics: Sequence[str],
) -> None:
    """Add the unique keys of messages that were sent and stored more than once."""
    # In retry and dead-letter topics a message keeps its key each time it is stored.
    repeating = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
    wanted = [topic for topic in topics if not topic.startswith(repeating)]
    frames = [
        frame for source in sources if (frame := _keys_frame(session, source, wanted)) is not None
    ]
    if not frames:
        return
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.union(frame)
    repeated = (
        rows.where(fn.col("uniqueKey").isNotNull())
        .groupBy("topic", "uniqueKey")
        .agg(fn.count("*").alias("messages"))
        .where("messages > 1")
    )
    order = (fn.desc("messages"), "topic", "uniqueKey")
    found = repeated.orderBy(*order).limit(_MAX_LISTED_KEYS + 1).collect()
    is_complete = len(found) <= _MAX_LISTED_KEYS
    report.duplicate_key_count = len(found) if is_complete else repeated.count()
    report.duplicate_keys = [
        DuplicateKey(row["topic"], row["uniqueKey"], row["messages"])
        for row in found[:_MAX_LISTED_KEYS]
    ]


def _keys_frame(session: SparkSession, source: Source, topics: Sequence[str]) -> DataFrame | None:
    reader = session.read.format("rocketmq").option("failOnDataLoss", "false")
    if isinstance(source, StoreSource):
        with closing(source.open()) as origin:
            topics = sorted(set(topics) & set(origin.topics()))
        reader = reader.option("storePath", source.store_path)
        if source.commit_log_paths:
            reader = reader.option("storePathCommitLog", ",".join(source.commit_log_paths))
    else:
        reader = reader.options(**source.settings.format_options())
    if not topics:
        return None
    return (
        reader.option("subscribe", ",".join(topics)).schema("topic string, uniqueKey string").load()
    )
