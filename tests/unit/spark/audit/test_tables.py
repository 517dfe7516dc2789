from __future__ import annotations

import io

import pytest
from rich.console import Console

from pyromq.spark.audit import tables
from pyromq.spark.audit.report import (
    AuditReport,
    DeadLetters,
    DuplicateKey,
    Finding,
    OpenTransaction,
)
from pyromq.spark.jobs.output import output_console


def test_message_keys_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [DuplicateKey("T", "[/bold] [red] :smile:", 2)]
    tables.show(AuditReport(duplicate_keys=keys, duplicate_key_count=1), output_console())
    assert "T [/bold] [red] :smile:: 2 messages" in capsys.readouterr().out


def test_times_out_of_range() -> None:
    assert tables._time(1_700_000_000_000) == "2023-11-14 22:13:20Z"
    for milliseconds in (2**63 - 1, -(2**63)):
        assert tables._time(milliseconds) == f"{milliseconds} ms"


def test_all_findings_are_shown() -> None:
    report = AuditReport(
        records=5,
        gaps=[Finding("T", "b", 0, number, number + 1) for number in range(0, 30, 2)],
        repeated_offsets=[Finding("T", "b", 1, 3, 5)],
        duplicate_keys=[DuplicateKey("T", "KEY", 2)],
        duplicate_key_count=1,
        damage=[("file at 3", "wrong")],
        damage_count=1,
        open_transactions=[OpenTransaction("b", 7, 1_700_000_000_000, "Paid", "pay", True)],
        dead_letters=[DeadLetters("workers", "T", 4)],
    )
    console = Console(width=200, record=True, file=io.StringIO())
    tables.show(report, console)
    text = console.export_text()
    for expected in (
        "T@b:0 0 to 0",
        "...",
        "T@b:1 3 to 4",
        "T KEY: 2 messages",
        "file at 3: wrong",
        "half 7 at b since 2023-11-14 22:13:20Z, given up",
        "group workers, topic T: 4",
    ):
        assert expected in text
    assert "5 records = 0 messages of these topics + 5 records of RocketMQ itself" in text
