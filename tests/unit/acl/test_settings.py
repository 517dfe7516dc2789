from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pyromq.acl.settings import ServerSettings, audit_log_of, check_files, files_of
from pyromq.base.settings import ConfigError, settings_of

_FIELDS = ServerSettings("there")


@dataclass(frozen=True)
class Config:
    rocketmq_home: str | None = _FIELDS.rocketmq_home
    acl_plain_file: str = _FIELDS.acl_plain_file
    audit_log_path: str | None = _FIELDS.audit_log_path
    audit_log_max_bytes: int = _FIELDS.audit_log_max_bytes
    audit_log_files: int = _FIELDS.audit_log_files


def test_files() -> None:
    files = files_of(Config("/etc/pyromq"), strict=True)
    assert files.default == Path("/etc/pyromq/conf/plain_acl.yml")
    assert files.strict


@pytest.mark.parametrize("file", ["/etc/passwd", "../plain_acl.yml"])
def test_the_file_stays_below_home(file: str) -> None:
    with pytest.raises(ConfigError, match="below rocketmqHome"):
        check_files(Config("/etc/pyromq", file))


def test_a_home_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    with pytest.raises(ConfigError, match="rocketmqHome"):
        files_of(Config(), strict=False)
    monkeypatch.setenv("ROCKETMQ_HOME", "/opt")
    assert files_of(Config(), strict=False).home == Path("/opt")


def test_the_audit_log() -> None:
    default = Path("/default/audit.log")
    assert audit_log_of(Config("/x"), "s", default).path == default
    assert audit_log_of(Config("/x", audit_log_path="/y"), "s", default).path == Path("/y")
    docs = {item.key: item.doc for item in settings_of(Config)}
    assert docs["auditLogPath"].endswith("The default is there.")
