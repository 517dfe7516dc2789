"""The store: sizes, backlogs, latencies, and when its disks will be full.

The forecast assumes that the log grows as in the last ten minutes and that nothing is deleted. It
is +Inf while the log does not grow. The disks are measured on a thread, everything else on the
loop. `sample` runs every `SAMPLE_SECONDS`.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.broker.instruments import BrokerInstruments
from pyromq.broker.parts import BrokerParts
from pyromq.metrics.family import Source, gauge, histogram
from pyromq.metrics.page import Page, Steps, label_text

SAMPLE_SECONDS: Final = 10.0
#: Samples of the log's end that the forecast looks at.
_MAX_SAMPLES: Final = 61
_STORAGE: Final = ("storage_type", "storage_medium")
_PATH: Final = ("path",)

STORAGE_SIZE: Final = gauge(
    "rocketmq_storage_size_bytes",
    "Bytes that are used on the disk of the commit log, by this broker and by others.",
    _STORAGE,
    Source.ROCKETMQ,
)
FLUSH_BEHIND: Final = gauge(
    "rocketmq_storage_flush_behind_bytes",
    "Bytes of the log that are not fsynced yet.",
    _STORAGE,
    Source.ROCKETMQ,
)
DISPATCH_BEHIND: Final = gauge(
    "rocketmq_storage_dispatch_behind_bytes",
    "Bytes of the log that are not in the consume queues or not in the key index yet.",
    _STORAGE,
    Source.ROCKETMQ,
)
RESERVE_TIME: Final = gauge(
    "rocketmq_storage_message_reserve_time_milliseconds",
    "Age of the oldest message in the log, in milliseconds.",
    _STORAGE,
    Source.ROCKETMQ,
)
INDEX_BEHIND: Final = gauge(
    "pyromq_index_behind_bytes", "Bytes of the log that are not in the key index yet."
)
QUEUES_BEHIND: Final = gauge(
    "pyromq_dispatch_behind_bytes",
    "Bytes of the log that are not in the consume queues yet; in a raft group, also those that are "
    "not committed.",
)
LOG_START: Final = gauge(
    "pyromq_log_start_bytes", "Physical offset of the first message in the log."
)
LOG_END: Final = gauge("pyromq_log_end_bytes", "Physical offset after the last message in the log.")
LOG_FLUSHED: Final = gauge(
    "pyromq_log_flushed_bytes", "Physical offset below which the log is fsynced."
)
FREE_BUFFERS: Final = gauge(
    "pyromq_transient_store_free_buffers",
    "Free buffers of the transient store pool; absent without a pool.",
)
CONSUME_QUEUES: Final = gauge("pyromq_consume_queues", "Consume queues of the store.")
DISK_USED: Final = gauge(
    "pyromq_disk_used_ratio",
    "How full the disk of a directory of the store is, from 0 to 1.",
    _PATH,
)
DISK_FREE: Final = gauge(
    "pyromq_disk_free_bytes", "Bytes that are free on the disk of a directory of the store.", _PATH
)
DISK_GROWTH: Final = gauge(
    "pyromq_log_growth_bytes_per_second", "Growth of the log over the last ten minutes."
)
UNTIL_CLEANING: Final = gauge(
    "pyromq_disk_seconds_until_cleaning",
    "Seconds until a disk reaches diskMaxUsedSpaceRatio, where expired files are deleted at any "
    "hour; +Inf if the log does not grow.",
    _PATH,
)
UNTIL_REFUSAL: Final = gauge(
    "pyromq_disk_seconds_until_refusal",
    "Seconds until a disk reaches diskSpaceWarningLevelRatio, where messages are refused; +Inf if "
    "the log does not grow.",
    _PATH,
)
PUT: Final = histogram(
    "pyromq_put_seconds",
    "How long the store takes to write the messages of a chunk to the log and its queues.",
)
FLUSH: Final = histogram("pyromq_flush_seconds", "How long an fsync of the log takes.")
ACKNOWLEDGEMENT: Final = histogram(
    "pyromq_acknowledgement_seconds",
    "How long the responses of a chunk of sends wait for an fsync (SYNC_FLUSH), a replica "
    "(SYNC_MASTER) or the raft group: the latency of replication.",
    ("waits_for",),
)
PULL: Final = histogram(
    "pyromq_pull_seconds", "How long the broker takes to serve a run of pulls that find messages."
)
DELIVERY: Final = histogram(
    "pyromq_delivery_seconds",
    "Time from the storing of a message to its delivery, for one message of a run of pulls.",
)
END_TO_END: Final = histogram(
    "pyromq_end_to_end_seconds",
    "Time from the making of a message in its producer, by its clock, to its delivery, for one "
    "message of a run of pulls.",
)

FAMILIES: Final = (
    STORAGE_SIZE,
    FLUSH_BEHIND,
    DISPATCH_BEHIND,
    RESERVE_TIME,
    INDEX_BEHIND,
    QUEUES_BEHIND,
    LOG_START,
    LOG_END,
    LOG_FLUSHED,
    FREE_BUFFERS,
    CONSUME_QUEUES,
    DISK_USED,
    DISK_FREE,
    DISK_GROWTH,
    UNTIL_CLEANING,
    UNTIL_REFUSAL,
    PUT,
    FLUSH,
    ACKNOWLEDGEMENT,
    PULL,
    DELIVERY,
    END_TO_END,
)


class Disk(NamedTuple):
    """A disk, as the store's limits see it: without blocks that only root may use."""

    used: int
    usable: int

    def seconds_until(self, percent: float, growth: float) -> float:
        """Return the seconds until the disk is so full, at this growth per second."""
        left = self.usable * percent / 100 - self.used
        if left <= 0:
            return 0.0
        return left / growth if growth > 0 else math.inf


def disk_of(path: Path) -> Disk:
    """Measure the disk of a directory, which need not exist yet. Raises OSError. May block."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    used = found.f_blocks - found.f_bfree
    return Disk(used * found.f_frsize, (used + found.f_bavail) * found.f_frsize)


class StorageMetrics:
    """The store and its disks."""

    def __init__(
        self,
        parts: BrokerParts,
        instruments: BrokerInstruments,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = parts.store
        self._role = parts.role
        self._now = parts.clock
        self._instruments = instruments
        self._monotonic = monotonic
        #: When the log ended where.
        self._ends: deque[tuple[float, int]] = deque(maxlen=_MAX_SAMPLES)
        self.sample()

    def sample(self) -> None:
        """Note the end of the log, for the forecast."""
        self._ends.append((self._monotonic(), self._store.put_end))

    @property
    def growth(self) -> float:
        """Return the bytes per second by which the log grew in the last ten minutes."""
        begun, first = self._ends[0]
        elapsed = self._monotonic() - begun
        return (self._store.put_end - first) / elapsed if elapsed > 0 else 0.0

    def collect(self, page: Page) -> Steps:
        """Write the families of this module."""
        disks, earliest = yield self._measure
        store, config = self._store, self._store.config
        where = label_text(storage_type="local", storage_medium="disk")
        page.add(STORAGE_SIZE, (where, next(iter(disks.values())).used))
        page.add(FLUSH_BEHIND, (where, max(0, store.max_physical_offset - store.flushed_offset)))
        queues_behind = max(0, store.put_end - store.max_physical_offset)
        page.add(DISPATCH_BEHIND, (where, max(store.dispatch_behind, queues_behind)))
        age = 0 if earliest is None else max(0, self._now() - earliest)
        page.add(RESERVE_TIME, (where, age))
        page.add(INDEX_BEHIND, ("", store.dispatch_behind))
        page.add(QUEUES_BEHIND, ("", queues_behind))
        page.add(LOG_START, ("", store.min_physical_offset))
        page.add(LOG_END, ("", store.max_physical_offset))
        page.add(LOG_FLUSHED, ("", store.flushed_offset))
        if store.free_buffers is not None:
            page.add(FREE_BUFFERS, ("", store.free_buffers))
        page.add(CONSUME_QUEUES, ("", store.queue_count))
        growth = self.growth
        page.add(DISK_GROWTH, ("", growth))
        labels = {path: label_text(path=str(path)) for path in disks}
        page.add(
            DISK_USED,
            *((labels[path], disk.used / max(1, disk.usable)) for path, disk in disks.items()),
        )
        page.add(
            DISK_FREE, *((labels[path], disk.usable - disk.used) for path, disk in disks.items())
        )
        for family, percent in (
            (UNTIL_CLEANING, config.disk_cleaning_percent),
            (UNTIL_REFUSAL, config.disk_space_warning_level_ratio),
        ):
            page.add(
                family,
                *(
                    (labels[path], disk.seconds_until(percent, growth))
                    for path, disk in disks.items()
                ),
            )
        yield None
        self._latencies(page)
        yield None

    def _latencies(self, page: Page) -> None:
        found = self._instruments
        page.add_histogram(PUT, ("", found.put))
        page.add_histogram(FLUSH, ("", found.flush))
        page.add_histogram(
            ACKNOWLEDGEMENT, (label_text(waits_for=self._gate()), found.acknowledgement)
        )
        page.add_histogram(PULL, ("", found.pull))
        page.add_histogram(DELIVERY, ("", found.delivery))
        page.add_histogram(END_TO_END, ("", found.end_to_end))

    def _gate(self) -> str:
        store = self._store
        if store.agreement is not None:
            return "quorum"
        waits = []
        if store.config.flush_disk_type.name == "SYNC_FLUSH":
            waits.append("flush")
        if self._role.current.name == "SYNC_MASTER":
            waits.append("replica")
        return "_and_".join(waits) or "nothing"

    def _measure(self) -> tuple[dict[Path, Disk], int | None]:
        """Return the disks, that of the log first, and the oldest store time. On a thread."""
        config, store = self._store.config, self._store
        paths = (
            config.commit_log_directory,
            *config.more_commit_log_directories,
            config.consume_queue_directory,
        )
        return {path: disk_of(path) for path in paths}, store.store_time(store.min_physical_offset)
