"""Settings of access control, and of the audit log. `aclEnable` and `rocketmqHome` are RocketMQ's.

`BrokerConfig` inherits these fields. None of them can be changed over the wire: an administrator of
topics must not be able to open the broker.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.acl.settings import AclMode, ServerSettings, check_files
from pyromq.base.settings import setting
from pyromq.broker.limit_settings import LimitSettings

_SERVER = ServerSettings("audit/audit.log below storePathRootDir")


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
    rocketmq_home: str | None = _SERVER.rocketmq_home
    acl_plain_file: str = _SERVER.acl_plain_file
    acl_replay_window_millis: int = setting(
        "aclReplayWindowMillis",
        600_000,
        "In strict mode, refuse sends that their clients made more than this many milliseconds "
        "ago, or that are this far in the future; 0 accepts any time.",
        bits=64,
        minimum=0,
    )
    audit_log_path: str | None = _SERVER.audit_log_path
    audit_log_max_bytes: int = _SERVER.audit_log_max_bytes
    audit_log_files: int = _SERVER.audit_log_files

    @property
    def is_acl_strict(self) -> bool:
        """Whether access control is strict, if it is on."""
        return self.acl_mode is AclMode.strict

    def check_access(self) -> None:
        """Raise ConfigError if access control is on and has no files, or a path leaves home."""
        if self.acl_enable:
            check_files(self)
