from __future__ import annotations

import json

from pyromq.spark.audit.report import (
    AuditReport,
    DeadLetters,
    DuplicateKey,
    Finding,
    OpenTransaction,
    TopicAudit,
)


def test_a_report_is_clean_without_findings() -> None:
    assert AuditReport(dead_letters=[DeadLetters("g", "T", 1)]).is_clean
    for report in (
        AuditReport(gaps=[Finding("T", "b", 0, 1, 2)]),
        AuditReport(repeated_offsets=[Finding("T", "b", 0, 1, 2)]),
        AuditReport(duplicate_key_count=1),
        AuditReport(damage_count=1),
        AuditReport(open_transactions=[OpenTransaction("b", 7, 0, "T", "g", False)]),
    ):
        assert not report.is_clean


def test_json() -> None:
    report = AuditReport(
        records=5,
        topics=[TopicAudit("T", 1, 5, 100, 0, 9, {"10.0.0.1": 5}, {"g": 2})],
        gaps=[Finding("T", "b", 0, 1, 2)],
        duplicate_keys=[DuplicateKey("T", "KEY", 2)],
        duplicate_key_count=1,
        damage=[("file at 3", "wrong")],
        damage_count=1,
        dead_letters=[DeadLetters("g", "T", 4)],
    )
    values = json.loads(report.to_json())
    assert values["gaps"] == [{"topic": "T", "broker": "b", "queue": 0, "start": 1, "end": 2}]
    assert values["damage"] == [{"place": "file at 3", "message": "wrong"}]
    assert values["dead_letters"] == [{"group": "g", "topic": "T", "messages": 4}]
    assert values["duplicate_keys"] == [{"topic": "T", "unique_key": "KEY", "messages": 2}]
    assert values["topics"][0]["producers"] == {"10.0.0.1": 5}
    assert values["open_transactions"] == []
