"""Settings of access control, and of the audit log. `aclEnable` and `rocketmqHome` are RocketMQ's.

`BrokerConfig` inherits these fields. None of them can be changed over the wire: an administrator of
topics must not be able to open the broker.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from pyromq.acl.files import DEFAULT_FILE, home_of
from pyromq.base.settings import ConfigError, setting
from pyromq.broker.limit_settings import LimitSettings


class AclMode(enum.Enum):
    """How much of RocketMQ's access control is repeated."""

    compatible = "compatible"
    strict = "strict"


@dataclass(frozen=True, slots=True)
class AccessSettings(LimitSettings):
    """Who may use the broker."""

    # ruff: noqa: RUF009 - `setting` returns a dataclass field

    acl_enable: bool = setting(
        "aclEnable",
        False,
        "Check the signature and the permissions of every request, by the accounts in "
        "conf/plain_acl.yml and conf/acl below rocketmqHome.",
        important=True,
    )
    acl_mode: AclMode = setting(
        "aclMode",
        AclMode.compatible,
        "Check what RocketMQ checks (compatible), or close what it leaves open (strict).",
    )
    rocketmq_home: str | None = setting(
        "rocketmqHome",
        doc="Find the files of access control below this directory. The default comes from the "
        "ROCKETMQ_HOME environment variable.",
        default_factory=lambda: os.environ.get("ROCKETMQ_HOME"),
        path=True,
    )
    acl_plain_file: str = setting(
        "aclPlainFile",
        str(DEFAULT_FILE),
        "Read this file below rocketmqHome, and write accounts to it that an administrator adds; "
        "RocketMQ's system property rocketmq.acl.plain.file.",
    )
    acl_replay_window_millis: int = setting(
        "aclReplayWindowMillis",
        600_000,
        "In strict mode, refuse sends that their clients made more than this many milliseconds "
        "ago, or that are this far in the future; 0 accepts any time.",
        bits=64,
        minimum=0,
    )
    audit_log_path: str | None = setting(
        "auditLogPath",
        None,
        "Log refused and administrative requests to this file while aclEnable is true. The "
        "default is audit/audit.log below storePathRootDir.",
        path=True,
    )
    audit_log_max_bytes: int = setting(
        "auditLogMaxBytes",
        64 * 1024 * 1024,
        "Rotate the audit log when it reaches this size.",
        minimum=64 * 1024,
    )
    audit_log_files: int = setting(
        "auditLogFiles", 10, "Keep this many old audit logs.", minimum=0, maximum=1000
    )

    @property
    def is_acl_strict(self) -> bool:
        """Whether access control is strict, if it is on."""
        return self.acl_mode is AclMode.strict

    def acl_home(self) -> Path:
        """Return the directory of the files. Raises ConfigError without one."""
        return home_of(self.rocketmq_home)

    def check_access(self) -> None:
        """Raise ConfigError if access control is on and has no files, or the path leaves home."""
        if not self.acl_enable:
            return
        self.acl_home()
        file = Path(self.acl_plain_file)
        if file.is_absolute() or ".." in file.parts:
            raise ConfigError(
                f"aclPlainFile={self.acl_plain_file}: expected a path below rocketmqHome"
            )
