"""`pyromq spark audit`: what is wrong with stored messages, and who sends and consumes them.

    report = audit(session, [StoreSource("/data/broker-a/store")])

Gaps in queues, offsets and unique keys that occur twice, bodies with a wrong CRC and other
damage, transactions that nothing ended, dead letters, producers and consumers of each topic.
Of stores the whole log is read, of a cluster all queues that consumers can read. Called in
the driver.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from pyromq.spark.jobs.options import (
    ClusterSettings,
    SparkSettings,
    check_writable,
    clear_errors,
    cluster_options,
    open_session,
    output_console,
    progress_bars,
    spark_options,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

    from pyromq.spark.audit.data import Facts
    from pyromq.spark.origins.opening import BrokerSource, Source, StoreSource
    from pyromq.spark.origins.origin import Queue, QueueRange
    from pyromq.spark.origins.store import LogRange
    from pyromq.spark.stores.builds import Progress

#: Offsets of a queue that one task looks at.
_RANGE: Final = 200_000
#: Of each kind of finding so many are listed; all are counted.
_LISTED: Final = 1000
_SHOWN: Final = 10
#: A transaction that is younger, seen from the newest message, may still end.
OPEN_SECONDS: Final = 60


class Finding(NamedTuple):
    """Offsets of a queue that are missing, or that occur more than once, without `end`."""

    topic: str
    broker: str
    queue: int
    start: int
    end: int


class TopicAudit(NamedTuple):
    """One topic."""

    topic: str
    queues: int
    messages: int
    bytes: int
    first_stored: int
    last_stored: int
    #: Addresses of who sent, and how many messages.
    producers: dict[str, int]
    #: Groups, and how many messages they are behind.
    consumers: dict[str, int]


class OpenTransaction(NamedTuple):
    """A half message that nothing ended."""

    broker: str
    offset: int
    stored: int
    topic: str
    group: str
    is_given_up: bool


class DeadLetters(NamedTuple):
    """Messages that a group gave up."""

    group: str
    topic: str
    messages: int


class DuplicateKey(NamedTuple):
    """A unique key that several messages of a topic have."""

    topic: str
    unique_key: str
    messages: int


@dataclass(slots=True)
class AuditReport:
    """Everything that an audit found."""

    records: int = 0
    topics: list[TopicAudit] = field(default_factory=list)
    gaps: list[Finding] = field(default_factory=list)
    repeated_offsets: list[Finding] = field(default_factory=list)
    duplicate_keys: list[DuplicateKey] = field(default_factory=list)
    duplicate_key_count: int = 0
    #: Place and what is wrong there.
    damage: list[tuple[str, str]] = field(default_factory=list)
    damage_count: int = 0
    open_transactions: list[OpenTransaction] = field(default_factory=list)
    dead_letters: list[DeadLetters] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found that must not be."""
        return not (
            self.gaps
            or self.repeated_offsets
            or self.duplicate_key_count
            or self.damage_count
            or self.open_transactions
        )

    def to_json(self) -> bytes:
        """The report as an indented JSON object."""
        import orjson

        fields = asdict(self)
        for name in ("topics", "gaps", "repeated_offsets", "duplicate_keys", "open_transactions"):
            fields[name] = [each._asdict() for each in getattr(self, name)]
        fields["dead_letters"] = [each._asdict() for each in self.dead_letters]
        fields["damage"] = [{"place": place, "message": text} for place, text in self.damage]
        return orjson.dumps(fields, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def audit(
    session: SparkSession,
    sources: Sequence[Source],
    *,
    topics: Collection[str] = (),
    cluster: ClusterSettings | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Look at all messages of these sources, or at those of some topics.

    `cluster` is asked for consumer groups; stores know their own, as they last saved them.
    """
    from pyromq.spark.audit.data import join
    from pyromq.spark.runtime.fan_out import fan_out
    from pyromq.spark.stores.builds import watched

    plans = [
        (number, item) for number, source in enumerate(sources) for item in _plan(source, topics)
    ]
    with watched(session, progress, "reading messages", len(plans)):
        found = fan_out(session, _look, [item for _, item in plans])
    by_broker: dict[tuple[int, str], list[Facts]] = {}
    for (number, _), facts in zip(plans, found, strict=True):
        by_broker.setdefault((number, facts.broker_name), []).append(facts)
    all_facts = [join(parts, name) for (_, name), parts in sorted(by_broker.items())]
    report = AuditReport(records=sum(facts.records for facts in all_facts))
    for facts in all_facts:
        _add_facts(report, facts, topics)
    shown = _topic_names(all_facts, topics)
    report.topics = _topics(all_facts, shown, _consumers(sources, all_facts, shown, cluster))
    with watched(session, progress, "comparing unique keys", 1):
        _add_duplicates(report, session, sources, shown)
    return report


class _LogWork(NamedTuple):
    source: StoreSource
    wanted: LogRange

    def facts(self) -> Facts:
        from pyromq.spark.audit.data import Facts
        from pyromq.spark.origins.store import StoreOrigin
        from pyromq.store.offline.violation import Violation

        store_path, broker_name, commit_log_paths = self.source
        origin = StoreOrigin(store_path, broker_name, commit_log_paths=commit_log_paths)
        with closing(origin):
            facts = Facts(origin.broker_name)
            for found in origin.checked_log(self.wanted):
                if isinstance(found, Violation):
                    place = f"{found.file} at {found.position}"
                    facts.add_damage(place, f"{found.kind.value}: {found.message}")
                else:
                    facts.add(found.data, found.base, found.columns)
        return facts


class _QueueWork(NamedTuple):
    source: BrokerSource
    wanted: QueueRange

    def facts(self) -> Facts:
        from pyromq.protocol.message.bulk import read_columns
        from pyromq.spark.audit.data import Facts, wrong_bodies
        from pyromq.spark.origins.origin import LostRecords

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
                    facts.add_damage(str(queue), f"{bad} records are not whole")
                    columns = read_columns(block.buffer, block.starts[columns.valid])
                for row in wrong_bodies(block.buffer, columns):
                    offset = int(columns.heads["queue_offset"][row])
                    facts.add_damage(f"{queue} offset {offset}", "the body's CRC is wrong")
                facts.add(block.buffer, 0, columns)
        return facts


_Work = _LogWork | _QueueWork


def _plan(source: Source, topics: Collection[str]) -> Iterator[_Work]:
    from pyromq.protocol.names import (
        TRANSACTION_GIVEN_UP_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
    )
    from pyromq.spark.origins.opening import StoreSource
    from pyromq.spark.origins.origin import QueueRange
    from pyromq.spark.origins.store import StoreOrigin

    if isinstance(source, StoreSource):
        store_path, broker_name, commit_log_paths = source
        with closing(
            StoreOrigin(store_path, broker_name, commit_log_paths=commit_log_paths)
        ) as log:
            for wanted in log.log_ranges():
                yield _LogWork(source, wanted)
        return
    with closing(source.open()) as origin:
        queues: list[Queue] = []
        transactional = (TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC, TRANSACTION_GIVEN_UP_TOPIC)
        for topic in (*origin.topics(), *transactional):
            if not topics or topic in topics or topic in transactional or _is_dead(topic):
                queues += origin.queues(topic)
        for queue, (first, end) in sorted(origin.bounds(queues).items()):
            for start in range(first, end, _RANGE):
                yield _QueueWork(source, QueueRange(queue, start, min(start + _RANGE, end)))


def _is_dead(topic: str) -> bool:
    from pyromq.protocol.names import DEAD_LETTER_TOPIC_PREFIX

    return topic.startswith(DEAD_LETTER_TOPIC_PREFIX)


def _look(work: _Work) -> Facts:
    return work.facts()


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
    from pyromq.protocol.names import is_system_topic

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
    cluster: ClusterSettings | None,
) -> dict[str, dict[str, int]]:
    """By topic, the groups that have consumed it, and how far they are behind."""
    from pyromq.spark.origins.broker import BrokerOrigin
    from pyromq.spark.origins.opening import BrokerSource
    from pyromq.spark.report.groups import group_lags

    consumers: dict[str, dict[str, int]] = {}
    asked = [source.settings for source in sources if isinstance(source, BrokerSource)]
    if cluster is not None and not asked:
        asked = [cluster.connection()]
    for settings in asked:
        with closing(BrokerOrigin(settings)) as origin:
            for lag in group_lags(origin, topics):
                consumers.setdefault(lag.topic, {})[lag.group] = lag.lag
    if asked:
        return consumers
    ends = {
        key: max(end for _, end in queue.ranges)
        for facts in all_facts
        for key, queue in facts.queues.items()
        if queue.ranges
    }
    for source in sources:
        if isinstance(source, BrokerSource):
            continue
        name = source.broker_name or Path(source.store_path).resolve().name
        for topic, group, queue_id, offset in _saved_offsets(Path(source.store_path)):
            if topic in topics:
                lag_there = max(ends.get((topic, name, queue_id), offset) - offset, 0)
                groups = consumers.setdefault(topic, {})
                groups[group] = groups.get(group, 0) + lag_there
    return consumers


def _saved_offsets(store: Path) -> Iterator[tuple[str, str, int, int]]:
    """Topic, group, queue and offset of the table that a broker saves every few seconds."""
    from pyromq.protocol.java.fastjson import BodyError, parse_json

    try:
        table = parse_json((store / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
        for name, offsets in table.items():
            topic, _, group = name.partition("@")
            for queue_id, offset in offsets.items():
                yield topic, group, int(queue_id), int(offset)
    except (BodyError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return  # a store without the table, or a torn copy of it


def _add_duplicates(
    report: AuditReport,
    session: SparkSession,
    sources: Sequence[Source],
    topics: Sequence[str],
) -> None:
    """Unique keys that occur twice: the same message was sent again, and stored again."""
    from pyspark.sql import functions as fn

    from pyromq.protocol.names import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

    # A message that is consumed again and again has one key in these, as it must.
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
    found = repeated.orderBy(*order).limit(_LISTED + 1).collect()
    report.duplicate_key_count = len(found) if len(found) <= _LISTED else repeated.count()
    report.duplicate_keys = [
        DuplicateKey(row["topic"], row["uniqueKey"], row["messages"]) for row in found[:_LISTED]
    ]


def _keys_frame(session: SparkSession, source: Source, topics: Sequence[str]) -> DataFrame | None:
    from pyromq.spark.origins.opening import StoreSource
    from pyromq.spark.origins.store import StoreOrigin

    reader = session.read.format("rocketmq").option("failOnDataLoss", "false")
    if isinstance(source, StoreSource):
        with closing(StoreOrigin(source.store_path)) as origin:
            topics = sorted(set(topics) & set(origin.topics()))
        reader = reader.option("storePath", source.store_path)
        if source.commit_log_paths:
            reader = reader.option("storePathCommitLog", ",".join(source.commit_log_paths))
    else:
        servers, access_key, secret_key, tls, *_ = source.settings
        cluster = ClusterSettings(";".join(servers), access_key, secret_key, tls)
        reader = reader.options(**cluster.source_options())
    if not topics:
        return None
    return (
        reader.option("subscribe", ",".join(topics)).schema("topic string, uniqueKey string").load()
    )


@click.command("audit")
@click.option(
    "--store",
    "stores",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    help="The directory of a broker's store; repeatable. Without, the cluster is asked.",
)
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--consumers", is_flag=True, help="With --store: ask the NameServers for consumer groups."
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write everything that was found to this file.",
)
@click.option("--strict", is_flag=True, help="End with exit code 1 when something is wrong.")
@click.option("--dry-run", is_flag=True, help="Say what would be read, and read nothing.")
@cluster_options
@spark_options
def command(
    cluster: ClusterSettings,
    spark: SparkSettings,
    stores: tuple[Path, ...],
    topics: tuple[str, ...],
    consumers: bool,
    json_file: Path | None,
    strict: bool,
    dry_run: bool,
) -> None:
    """Find what is wrong with stored messages, and who sends and consumes them.

    Gaps in queues, offsets and unique keys that occur twice, wrong CRCs and other damage,
    transactions without an end, dead letters; producers and consumer groups of each topic. Only
    reads; brokers may be running.

    \b
    Examples
        pyromq spark audit --store /data/broker-a/store --store /data/broker-b/store
        pyromq spark audit --nameserver localhost:9876 --topic Orders --json audit.json --strict
    """
    from pyromq.spark.jobs.rebuild import bar_updater
    from pyromq.spark.origins.opening import BrokerSource

    with clear_errors():
        sources: list[Source] = _store_sources(stores)
        if not sources:
            sources = [BrokerSource(cluster.connection())]
        if dry_run:
            work = [item for source in sources for item in _plan(source, topics)]
            click.echo(f"{len(work)} parts of {len(sources)} sources would be read; nothing was")
            return
    if json_file is not None:
        check_writable(json_file)
    with open_session(spark) as session, progress_bars() as bars:
        report = audit(
            session,
            sources,
            topics=topics,
            cluster=cluster if consumers or not stores else None,
            progress=bar_updater(bars),
        )
    if json_file is not None:
        json_file.write_bytes(report.to_json())
    show(report, output_console())
    if strict and not report.is_clean:
        raise SystemExit(1)


def _store_sources(stores: Sequence[Path]) -> list[Source]:
    """Stores by the names of their directories, or by their paths where those are the same."""
    from pyromq.spark.origins.opening import StoreSource

    roots = [store.resolve() for store in stores]
    names = [root.name for root in roots]
    are_unique = len(set(names)) == len(names)
    return [StoreSource(str(root), root.name if are_unique else str(root)) for root in roots]


def show(report: AuditReport, console: Console) -> None:
    """Print a report as tables."""
    from rich.table import Table

    table = Table(title=f"{report.records:,} records")
    for column in ("topic", "queues", "messages", "MB", "from", "to", "producers", "consumers"):
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    for topic in report.topics:
        table.add_row(
            topic.topic,
            str(topic.queues),
            f"{topic.messages:,}",
            f"{topic.bytes / 1e6:,.1f}",
            _time(topic.first_stored),
            _time(topic.last_stored),
            _listed(topic.producers, "from"),
            _listed(topic.consumers, "behind"),
        )
    console.print(table)
    for line in _explanation(report):
        console.print(line)
    findings: list[tuple[str, int, Sequence[Any]]] = [
        ("gaps", len(report.gaps), report.gaps),
        ("offsets twice", len(report.repeated_offsets), report.repeated_offsets),
        ("unique keys twice", report.duplicate_key_count, report.duplicate_keys),
        ("damage", report.damage_count, report.damage),
        ("open transactions", len(report.open_transactions), report.open_transactions),
        ("dead letters", sum(each.messages for each in report.dead_letters), report.dead_letters),
    ]
    table = Table(title="findings")
    for column in ("what", "count", "which"):
        table.add_column(column)
    for what, count, which in findings:
        lines = [_describe(each) for each in which[:_SHOWN]]
        if len(which) > _SHOWN:
            lines.append("...")
        table.add_row(what, f"{count:,}", "\n".join(lines))
    console.print(table)


_NUMBERS: Final = frozenset({"queues", "messages", "MB"})


def _explanation(report: AuditReport) -> list[str]:
    """What the numbers count, and where those records are that no row counts."""
    listed = sum(topic.messages for topic in report.topics)
    others = report.records - listed
    total = f"{report.records:,} records = {listed:,} messages of these topics"
    if others:
        total += (
            f" + {others:,} of RocketMQ's own (halves and ends of transactions, delayed messages "
            "before their time) and of topics that are not shown"
        )
    columns = (
        "MB: whole records, with properties. Producers: addresses, and how many messages came from "
        "each. Consumers: groups, and how many messages each is behind."
    )
    return [f"{total}.", columns]


def _describe(finding: Any) -> str:
    if isinstance(finding, Finding):
        last = finding.end - 1
        return f"{finding.topic}@{finding.broker}:{finding.queue} {finding.start} to {last}"
    if isinstance(finding, DuplicateKey):
        return f"{finding.topic} {finding.unique_key}: {finding.messages} messages"
    if isinstance(finding, OpenTransaction):
        state = ", given up" if finding.is_given_up else ""
        return (
            f"{finding.topic} of group {finding.group}, half {finding.offset} at {finding.broker} "
            f"since {_time(finding.stored)}{state}"
        )
    if isinstance(finding, DeadLetters):
        return f"group {finding.group}, topic {finding.topic}: {finding.messages:,}"
    place, message = finding
    return f"{place}: {message}"


def _listed(counts: dict[str, int], word: str) -> str:
    few = [f"{name} ({count:,} {word})" for name, count in list(counts.items())[:_SHOWN]]
    return "\n".join([*few, "..."] if len(counts) > _SHOWN else few)


def _time(milliseconds: int) -> str:
    try:
        text = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"  # of a record that no clock has made
    return re.sub(r"\+00:00$", "Z", text)
