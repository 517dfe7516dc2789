from __future__ import annotations

import json
from pathlib import Path

from pyromq.acl.audit import AuditLog
from pyromq.acl.auditing import Auditor, host_of, request_name, resource_of
from pyromq.acl.rules import Account
from pyromq.acl.validation import AccessDeniedError, Denial
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand

ALICE = Account("alice_key", "alice_secret")


def test_lines(tmp_path: Path) -> None:
    auditor = Auditor(AuditLog(tmp_path / "audit.log", "s", max_bytes=1 << 20, backups=1))
    request = RemotingCommand(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        ext_fields={"accessKey": "carol_key", "secretKey": "carol_secret"},
    )
    denied = AccessDeniedError("not an admin", "check", "alice_key")
    auditor.refused("10.0.0.1:1", request.code, request.ext_fields, denied)
    auditor.answered("10.0.0.1:1", request, ALICE, request.answer())
    auditor.answered("10.0.0.1:1", request, None, request.answer(ResponseCode.SYSTEM_ERROR, "no"))
    auditor.answered("10.0.0.1:1", request, ALICE, None)
    text = (tmp_path / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["result"] for line in lines] == ["denied", "done", "failed", "done"]
    assert [line["account"] for line in lines] == ["alice_key", "alice_key", None, "alice_key"]
    assert {line["resource"] for line in lines} == {"carol_key"}
    assert lines[2]["reason"] == "no"
    assert "secret" not in text


def test_names() -> None:
    assert request_name(17) == "UPDATE_AND_CREATE_TOPIC"
    assert request_name(99999) == "unknown"
    assert resource_of({"queueId": "1", "group": "g"}) == "g"
    assert resource_of({}) is None
    assert host_of("10.0.0.1:10911") == "10.0.0.1"
    assert host_of("[fe80::1]:10911") == "fe80::1"


def test_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    auditor = Auditor(AuditLog(tmp_path / "audit.log", "s", max_bytes=1 << 20, backups=1))
    for kind in (Denial.SIGNATURE, Denial.SIGNATURE, Denial.NOT_ADMIN):
        auditor.refused("10.0.0.1:1", 17, {}, AccessDeniedError("no", "check", None, kind))
    counts = auditor.counts()
    assert counts.keys() == {kind.value for kind in Denial}
    assert {reason: count for reason, count in counts.items() if count} == {
        "signature": 2,
        "not_admin": 1,
    }
