from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from pyromq.acl import audit
from pyromq.acl.audit import DENIED, AuditLog


class Clock:
    now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


def opened(path: Path, clock: Clock, max_bytes: int = 1 << 20, backups: int = 2) -> AuditLog:
    return AuditLog(path, "broker-a", max_bytes=max_bytes, backups=backups, clock=clock)


def write(log: AuditLog, reason: str = "because") -> None:
    log.write(
        account="alice_key",
        address="10.0.0.7:40112",
        code=17,
        request="UPDATE_AND_CREATE_TOPIC",
        resource="orders",
        result=DENIED,
        reason=reason,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line(tmp_path: Path) -> None:
    log = opened(tmp_path / "logs/audit.log", Clock())
    write(log)
    log.close()
    assert lines(log.path) == [
        {
            "time": "2023-11-14T22:13:20.000Z",
            "server": "broker-a",
            "account": "alice_key",
            "address": "10.0.0.7:40112",
            "code": 17,
            "request": "UPDATE_AND_CREATE_TOPIC",
            "resource": "orders",
            "result": "denied",
            "reason": "because",
        }
    ]
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_hostile_text_is_one_short_line(tmp_path: Path) -> None:
    log = opened(tmp_path / "audit.log", Clock())
    write(log, 'x\n{"time":""}' * 1000)
    (line,) = lines(log.path)
    assert len(line["reason"]) < 1000


def test_a_flood_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_LINES_PER_SECOND", 3)
    clock = Clock()
    log = opened(tmp_path / "audit.log", clock)
    for _ in range(10):
        write(log)
    assert len(lines(log.path)) == 3
    clock.now += 1000
    write(log)
    assert lines(log.path)[3]["dropped"] == 7
    assert len(lines(log.path)) == 5
    for _ in range(5):
        write(log)
    log.close()
    assert lines(log.path)[-1]["dropped"] == 3


def test_rotation(tmp_path: Path) -> None:
    log = opened(tmp_path / "audit.log", Clock(), max_bytes=600)
    for number in range(12):
        write(log, f"number {number}")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(path.stat().st_size <= 600 for path in tmp_path.iterdir())
    assert lines(log.path)[-1]["reason"] == "number 11"


def test_a_log_continues(tmp_path: Path) -> None:
    for _ in range(2):
        log = opened(tmp_path / "audit.log", Clock())
        write(log)
        log.close()
        log.close()
    assert len(lines(tmp_path / "audit.log")) == 2


def test_a_log_that_cannot_be_written_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    log = opened(tmp_path / "file/audit.log", Clock())
    write(log)
    assert "not written" in caplog.text
