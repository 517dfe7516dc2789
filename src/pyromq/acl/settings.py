"""Settings of access control that brokers and NameServers share, and what follows from them.

`ServerSettings` declares the fields; a configuration class takes them over one by one, so that each
has a place of its own in the reference. Used at start-up.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any, Protocol

from pyromq.acl.audit import AuditLog
from pyromq.acl.files import DEFAULT_FILE, AclFiles
from pyromq.base.settings import ConfigError, setting


class AclMode(enum.Enum):
    """How much of RocketMQ's access control is repeated."""

    compatible = "compatible"
    strict = "strict"


class AccessConfig(Protocol):
    """The part of a server's configuration that `ServerSettings` declares."""

    @property
    def rocketmq_home(self) -> str | None:
        """The directory of the files."""

    @property
    def acl_plain_file(self) -> str:
        """The default file, below the directory."""

    @property
    def audit_log_path(self) -> str | None:
        """The audit log, None for the default."""

    @property
    def audit_log_max_bytes(self) -> int:
        """Its size."""

    @property
    def audit_log_files(self) -> int:
        """The number of old ones."""


class ServerSettings:
    """Fields for a configuration class; each class needs an instance of its own."""

    def __init__(self, default_audit_log: str) -> None:
        """`default_audit_log` says where the audit log is by default."""
        self.rocketmq_home: Any = setting(
            "rocketmqHome",
            doc="Find the files of access control below this directory. The default comes from "
            "the ROCKETMQ_HOME environment variable.",
            default_factory=lambda: os.environ.get("ROCKETMQ_HOME"),
            path=True,
        )
        self.acl_plain_file: Any = setting(
            "aclPlainFile",
            str(DEFAULT_FILE),
            "Read this file below rocketmqHome, and write accounts to it that an administrator "
            "adds; RocketMQ's system property rocketmq.acl.plain.file.",
        )
        self.audit_log_path: Any = setting(
            "auditLogPath",
            None,
            "Log refused and administrative requests to this file while aclEnable is true. The "
            f"default is {default_audit_log}.",
            path=True,
        )
        self.audit_log_max_bytes: Any = setting(
            "auditLogMaxBytes",
            64 * 1024 * 1024,
            "Rotate the audit log when it reaches this size.",
            minimum=64 * 1024,
        )
        self.audit_log_files: Any = setting(
            "auditLogFiles", 10, "Keep this many old audit logs.", minimum=0, maximum=1000
        )


def check_files(config: AccessConfig) -> None:
    """Raise ConfigError if there is no home, or a path leaves it."""
    if not config.rocketmq_home:
        raise ConfigError(
            "aclEnable=true: expected rocketmqHome or the ROCKETMQ_HOME environment variable; "
            "it names the directory with conf/plain_acl.yml"
        )
    file = Path(config.acl_plain_file)
    if file.is_absolute() or ".." in file.parts:
        raise ConfigError(
            f"aclPlainFile={config.acl_plain_file}: expected a path below rocketmqHome"
        )


def files_of(config: AccessConfig, *, strict: bool) -> AclFiles:
    """Return the files of a server. Raises ConfigError as `check_files`."""
    check_files(config)
    assert config.rocketmq_home
    return AclFiles(Path(config.rocketmq_home), strict=strict, default=Path(config.acl_plain_file))


def audit_log_of(config: AccessConfig, server: str, default: Path) -> AuditLog:
    """Return the audit log of a server."""
    return AuditLog(
        Path(config.audit_log_path) if config.audit_log_path else default,
        server,
        max_bytes=config.audit_log_max_bytes,
        backups=config.audit_log_files,
    )
