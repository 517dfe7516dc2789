"""Changes of a broker's settings at run time.

A change is checked as a whole, by the rules of a start: one invalid key refuses all keys of the
request. A valid change is written to the broker's file first and then takes effect: live settings
(`base.settings`) at once, in the instances that all parts of the broker share; the settings
of `NEXT_START` with the next start. RocketMQ's settings that have no effect here are saved too,
and reported.

Every other setting defines the broker's identity, or where and how its store is kept. Anybody can
send a change, and such a change could make the next start fail, or begin with an empty store: the
operator changes these settings in the file.

The file is the one that the broker was started with; its other lines and comments stay. Without
one, changes go to `config/broker.properties` in the store, as in RocketMQ, which counts if it is
named at the next start. Brokers may share a file: they write it one at a time, and a change to one
of them counts for all from their next start. RocketMQ ignores unknown keys and keeps the old value
if the new one is invalid; this broker refuses both.

Invariants
1. Either the whole change is in the file and its live part in effect, or nothing is.
2. The file is replaced atomically, and only by one that a start can load.

`brokerRole` changes over the wire only between the two kinds of master; a promotion saves the role
of the broker with `save_role`.

Used by `handlers.admin.config` and `broker.role_switch` on the loop; a thread writes the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyromq.base.atomic_file import write_file
from pyromq.base.clock import Clock, now_ms
from pyromq.base.descriptors import opened
from pyromq.base.settings import (
    ENVIRONMENT,
    ConfigError,
    Setting,
    ineffective_warnings,
    settings_of,
    shown,
    unknown_key_hint,
    with_environment,
)
from pyromq.broker.config import (
    UNSUPPORTED,
    BrokerConfig,
    known_keys,
    load_broker_properties,
)
from pyromq.protocol.java.properties import (
    PropertiesError,
    parse_properties,
    update_properties,
)
from pyromq.protocol.wire.bodies import DataVersion
from pyromq.store.config import BrokerRole, MessageStoreConfig

#: A key without effect that `mqadmin exportMetrics` takes for the number of processors.
_FOR_TOOLS: Final = {"clientCallbackExecutorThreads": str(os.cpu_count() or 1)}
#: Settings that may be changed over the wire and count from the next start: with any legal value
#: the broker starts, under its name and with its messages.
NEXT_START: Final = frozenset(
    {
        "accessMessageInMemoryMaxRatio",
        "brokerTopicEnable",
        "checkCRCOnRecover",
        "cleanResourceInterval",
        "clientManagerThreadPoolQueueCapacity",
        "clusterTopicEnable",
        "commitCommitLogLeastPages",
        "commitCommitLogThoroughInterval",
        "commitIntervalCommitLog",
        "compressedRegister",
        "consumerManagerThreadPoolQueueCapacity",
        "defaultTopicQueueNums",
        "destroyMapedFileIntervalForcibly",
        "endTransactionPoolQueueCapacity",
        "fastFailIfNoBufferInStorePool",
        "flushConsumerOffsetInterval",
        "flushDelayOffsetInterval",
        "flushDiskType",
        "haHousekeepingInterval",
        "haReportFlushed",
        "haSendHeartbeatInterval",
        "heartbeatThreadPoolQueueCapacity",
        "maxMessageSize",
        "maxMsgsNumBatch",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory",
        "messageIndexEnable",
        "messageIndexSafe",
        "offsetCheckInSlave",
        "osPageCacheBusyTimeOutMills",
        "pullThreadPoolQueueCapacity",
        "queryThreadPoolQueueCapacity",
        "registerNameServerPeriod",
        "replyThreadPoolQueueCapacity",
        "sendThreadPoolQueueCapacity",
        "serverChannelMaxIdleTimeSeconds",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "traceTopicEnable",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)


class Applied(NamedTuple):
    """The outcome of a change."""

    #: Keys that took effect at once.
    now: list[str]
    #: Keys that count from the next start.
    later: list[str]
    #: A warning for each reason why keys have no effect.
    ineffective: list[str]


def own_file(store: MessageStoreConfig) -> Path:
    """Return the file of a broker that was started without one."""
    return store.config_directory / "broker.properties"


class LiveConfig:
    """The settings of a running broker."""

    def __init__(
        self,
        broker: BrokerConfig,
        store: MessageStoreConfig,
        file: Path | None = None,
        *,
        role_file: Path | None = None,
        now: Clock = now_ms,
    ) -> None:
        self._broker = broker
        self._store = store
        self._now = now
        #: The file that changes are written to.
        self.file = file or own_file(store)
        #: The file that the role is written to: another one if brokers share `file`.
        self._role_file = role_file or self.file
        self.version = DataVersion(now(), 0)
        #: Called with the keys that took effect, after the change.
        self.listeners: list[Callable[[list[str]], None]] = []
        self._changing = asyncio.Lock()

    def text(self) -> str:
        """Return the settings in effect as `key=value` lines, without unset ones.

        Secrets are masked: anybody can ask for this text.
        """
        table = {**_FOR_TOOLS, **self._table(Setting.shown)}
        return "".join(f"{key}={value}\n" for key, value in table.items() if value)

    async def update(self, changes: Mapping[str, str]) -> Applied:
        """Check, save and apply a change.

        Raise ConfigError for a bad key or value, OSError if the file cannot be written, and
        PropertiesError if it was edited and cannot be parsed.
        """
        known = known_keys()
        for key in changes:
            if key not in known:
                raise ConfigError(f"unknown setting {shown(key)}{unknown_key_hint(key, known)}")
            if ENVIRONMENT.fullmatch(changes[key].strip()):
                # The next start would show a secret of the environment as this setting.
                raise ConfigError(
                    f"{key}={shown(changes[key])}: expected a value, not a reference to the "
                    "environment; only the file may have one"
                )
        async with self._changing:
            before = {**_FOR_TOOLS, **self._table(Setting.format)}
            self._refuse_role_switch(changes.get("brokerRole", ""))
            loaded = load_broker_properties({**before, **changes})
            for key, value in changes.items():
                if value != before.get(key) and not self._may_change(key):
                    raise ConfigError(
                        f"{key} cannot be changed while the broker runs: "
                        f"edit {self.file} and restart the broker"
                    )
            await asyncio.to_thread(_write, self.file, changes)
            kinds = (BrokerConfig, MessageStoreConfig)
            applied = Applied([], [], ineffective_warnings(changes, kinds, UNSUPPORTED))
            for config, changed in ((self._broker, loaded.broker), (self._store, loaded.store)):
                for item in settings_of(type(config)):
                    value = getattr(changed, item.attribute)
                    unchanged = value == getattr(config, item.attribute)
                    if item.key not in changes or item.ignored or unchanged:
                        continue
                    if item.live:
                        _set(config, item.attribute, value)
                    (applied.now if item.live else applied.later).append(item.key)
            self.version = self.version.next(self._now())
        for listener in self.listeners:
            listener(applied.now)
        return applied

    async def save_role(self, role: BrokerRole, broker_id: int) -> None:
        """Save the role that the broker takes now, so that a restart keeps it.

        Listeners are not called: the caller changes the role (`broker.role`). Raises as `update`.
        """
        changes = {"brokerRole": role.name, "brokerId": str(broker_id)}
        async with self._changing:
            await asyncio.to_thread(_write, self._role_file, changes)
            _set(self._store, "broker_role", role)
            _set(self._broker, "broker_id", broker_id)
            self.version = self.version.next(self._now())

    def _refuse_role_switch(self, text: str) -> None:
        """Raise ConfigError for a change between master and replica, which takes more than this."""
        role = BrokerRole.__members__.get(text.strip())
        now = self._store.broker_role
        if role is None or role is now or BrokerRole.SLAVE not in (now, role):
            return
        advice = (
            "`pyromq broker promote` makes a replica a master"
            if now is BrokerRole.SLAVE
            else f"set brokerRole and brokerId in {self.file} and restart the broker; "
            "`pyromq broker promote` makes a replica a master"
        )
        raise ConfigError(f"brokerRole cannot be changed from {now.name} to {role.name}: {advice}")

    def _may_change(self, key: str) -> bool:
        """Return whether a setting is live, safe for the next start, or without effect."""
        for config in (self._broker, self._store):
            for item in settings_of(type(config)):
                if item.key == key:
                    return item.live or key in NEXT_START
        return not UNSUPPORTED[key].file_only

    def _table(self, text_of: Callable[[Setting, Any], str]) -> dict[str, str]:
        """Return the settings in effect as the table of a file."""
        return {
            item.key: text_of(item, getattr(config, item.attribute))
            for config in (self._broker, self._store)
            for item in settings_of(type(config))
        }


def _set(config: BrokerConfig | MessageStoreConfig, attribute: str, value: object) -> None:
    """Set a field of a frozen configuration. Nothing else does."""
    object.__setattr__(config, attribute, value)


def _write(path: Path, changes: Mapping[str, str]) -> None:
    """Apply changes to a file, which may not exist yet. Runs in a thread."""
    path = path.resolve()  # replace the target of a link, not the link
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        _update(path, changes)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep the other brokers that were started with the same file from changing it meanwhile."""
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)


def _update(path: Path, changes: Mapping[str, str]) -> None:
    try:
        before = path.read_bytes()
        mode = path.stat().st_mode & 0o7777
    except FileNotFoundError:
        before, mode = b"", 0o644
    try:
        content = update_properties(before, changes)
        # The file may have been edited since the start, and must load at the next one.
        load_broker_properties(with_environment(parse_properties(content), os.environ))
    except PropertiesError as error:
        raise PropertiesError(f"{path}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path} would not load: {error}") from error
    write_file(path, content, mode=mode)
