"""Print an audit report as tables on the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from pyromq.spark.audit.report import (
    AuditReport,
    DeadLetters,
    DuplicateKey,
    Finding,
    OpenTransaction,
)

#: Findings of each kind, and producers and consumers of each topic.
_MAX_SHOWN: Final = 10
_NUMBERS: Final = frozenset({"queues", "messages", "MB"})


def show(report: AuditReport, console: Console) -> None:
    """Print a report."""
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
            _listed(topic.producers, "sent"),
            _listed(topic.consumers, "behind"),
        )
    console.print(table)
    for line in _explanation(report):
        console.print(line)
    findings: list[tuple[str, int, Sequence[Any]]] = [
        ("gaps", len(report.gaps), report.gaps),
        ("duplicate offsets", len(report.repeated_offsets), report.repeated_offsets),
        ("duplicate unique keys", report.duplicate_key_count, report.duplicate_keys),
        ("damage", report.damage_count, report.damage),
        ("open transactions", len(report.open_transactions), report.open_transactions),
        ("dead letters", sum(each.messages for each in report.dead_letters), report.dead_letters),
    ]
    table = Table(title="findings")
    for column in ("finding", "count", "where"):
        table.add_column(column)
    for name, count, places in findings:
        lines = [_describe(each) for each in places[:_MAX_SHOWN]]
        if len(places) > _MAX_SHOWN:
            lines.append("...")
        table.add_row(name, f"{count:,}", "\n".join(lines))
    console.print(table)


def _explanation(report: AuditReport) -> list[str]:
    """Explain the columns, and account for the records that no row counts."""
    listed = sum(topic.messages for topic in report.topics)
    others = report.records - listed
    total = f"{report.records:,} records = {listed:,} messages of these topics"
    if others:
        total += (
            f" + {others:,} records of RocketMQ itself (half messages, ends of transactions, "
            "delayed messages not yet due) and of topics not shown"
        )
    columns = (
        "MB: whole records with their properties. Producers: messages per sender address. "
        "Consumers: messages that each group is behind."
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
    first = [f"{name} ({count:,} {word})" for name, count in list(counts.items())[:_MAX_SHOWN]]
    return "\n".join([*first, "..."] if len(counts) > _MAX_SHOWN else first)


def _time(milliseconds: int) -> str:
    try:
        text = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"  # out of range: a damaged record, or a broken clock
    return re.sub(r"\+00:00$", "Z", text)
