"""Changes of a broker's settings while it runs.

A change is checked by the rules of a start, as a whole: of several keys that come together,
one that cannot be used refuses all. What passes is written to the broker's file first, and
then takes effect: settings that are marked live (`protocol.settings`) at once, in the very
instances that all parts of the broker hold; those of `NEXT_START` with the next start.

Every other setting says who the broker is and where and how its store lies. Anybody can send a
change, and one of these would let the next start fail, or begin with an empty store: they are
changed in the file, by its owner.

The file is the one that the broker was started with. Its other lines and comments stay.
Without one, `config/broker.properties` in the store is written, as RocketMQ does; it counts
when it is named at the next start. RocketMQ ignores keys that it does not know, and keeps
the old value where the new one is none; here both are refused.

Invariants
1. Either all of a change is in the file, and its live part in effect, or nothing is.
2. A file is replaced by a complete one, in one step, and only by one that a start can load.

Used by `handlers.admin.config`, on the loop; the file is written in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.base.settings import ConfigError, settings_of, unknown_key_hint
from pyromq.broker.config import BrokerConfig, known_keys, load_broker_properties
from pyromq.protocol.java.properties import (
    PropertiesError,
    parse_properties,
    update_properties,
)
from pyromq.protocol.wire.bodies import DataVersion
from pyromq.store.config import MessageStoreConfig

#: Keys without effect here that RocketMQ's tools read: `mqadmin exportConfigs` fails without
#: the first two, `exportMetrics` takes the last one for the number of processors.
_FOR_TOOLS: Final = {
    "filterServerNums": "0",
    "useTLS": "false",
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
}
#: Characters of an unknown key that an answer shows, and for which a known one is looked for.
_MAX_KEY_LENGTH: Final = 100
#: Settings that may be changed over the wire and count from the next start: whatever their
#: value, the broker starts, under its name and with its messages.
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
        "flushCommitLogTimed",
        "flushConsumeQueueLeastPages",
        "flushConsumeQueueThoroughInterval",
        "flushConsumerOffsetInterval",
        "flushDelayOffsetInterval",
        "flushDiskType",
        "haHousekeepingInterval",
        "haSendHeartbeatInterval",
        "haSlaveFallbehindMax",
        "haTransferBatchSize",
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
        "slaveTimeout",
        "traceTopicEnable",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)
#: Settings without effect here that would let RocketMQ's broker, started with the same file, run
#: a command, load a class or take its store or its NameServers from somewhere else.
_UNSAFE_WITHOUT_EFFECT: Final = frozenset(
    {
        "dLegerGroup",
        "dLegerPeers",
        "dLegerSelfId",
        "enableDLegerCommitLog",
        "fetchNamesrvAddrByAddressServer",
        "filterServerNums",
        "messageStorePlugIn",
        "preferredLeaderId",
        "rmqAddressServerDomain",
        "rmqAddressServerSubGroup",
        "rocketmqHome",
        "storePathDLedgerCommitLog",
    }
)


class Applied(NamedTuple):
    """What became of a change: keys in effect now, and keys that count from the next start."""

    now: list[str]
    later: list[str]


class LiveConfig:
    """The settings of a running broker."""

    def __init__(
        self,
        broker: BrokerConfig,
        store: MessageStoreConfig,
        file: Path | None = None,
        *,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._broker = broker
        self._store = store
        self._now = now
        #: Where changes are written.
        self.file = file or store.config_directory / "broker.properties"
        self.version = DataVersion(now(), 0)
        #: Told the keys that have changed, after they have.
        self.listeners: list[Callable[[list[str]], None]] = []
        self._changing = asyncio.Lock()

    def text(self) -> str:
        """All settings that have a value, as they are in effect: `key=value` lines."""
        table = {**_FOR_TOOLS, **self._table()}
        return "".join(f"{key}={value}\n" for key, value in table.items() if value)

    async def update(self, changes: Mapping[str, str]) -> Applied:
        """Check, write and apply. Raises ConfigError for a bad key or value, OSError for the file.

        PropertiesError when the file, which was changed meanwhile, cannot be read.
        """
        known = known_keys()
        for key in changes:
            if key not in known:
                shown = repr(key)[1:-1][:_MAX_KEY_LENGTH]
                hint = unknown_key_hint(key, known) if len(key) <= _MAX_KEY_LENGTH else ""
                raise ConfigError(f"unknown setting {shown}{hint}")
        async with self._changing:
            before = {**_FOR_TOOLS, **self._table()}
            loaded = load_broker_properties({**before, **changes})
            for key, value in changes.items():
                if value != before.get(key) and not self._may_change(key):
                    raise ConfigError(
                        f"{key} cannot be changed while the broker runs: "
                        f"edit {self.file} and restart the broker"
                    )
            await asyncio.to_thread(_write, self.file, changes)
            applied = Applied([], [])
            for config, changed in ((self._broker, loaded.broker), (self._store, loaded.store)):
                for item in settings_of(type(config)):
                    value = getattr(changed, item.attribute)
                    if item.key not in changes or value == getattr(config, item.attribute):
                        continue
                    if item.live:
                        # Frozen for all others: this is the one place where they change.
                        object.__setattr__(config, item.attribute, value)
                    (applied.now if item.live else applied.later).append(item.key)
            self.version = self.version.next(self._now())
        for listener in self.listeners:
            listener(applied.now)
        return applied

    def _may_change(self, key: str) -> bool:
        """Whether a setting is live, safe to change for the next start, or of no effect."""
        for config in (self._broker, self._store):
            for item in settings_of(type(config)):
                if item.key == key:
                    return item.live or key in NEXT_START
        return key not in _UNSAFE_WITHOUT_EFFECT

    def _table(self) -> dict[str, str]:
        """The settings in effect, as a file would have them."""
        return {
            item.key: item.format(getattr(config, item.attribute))
            for config in (self._broker, self._store)
            for item in settings_of(type(config))
        }


def _write(path: Path, changes: Mapping[str, str]) -> None:
    """In a thread: put changes into a file that need not exist."""
    path = path.resolve()  # of a link, what it points at is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        before = path.read_bytes()
        mode = path.stat().st_mode & 0o7777
    except FileNotFoundError:
        before, mode = b"", 0o644
    try:
        content = update_properties(before, changes)
        # The file may have been edited since the start: it must load at the next one.
        load_broker_properties(parse_properties(content))
    except PropertiesError as error:
        raise PropertiesError(f"{path}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path} would not load: {error}") from error
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
