"""Delayed messages: how many wait in each level, and how late the first of them is.

Runs on the loop.
"""

from __future__ import annotations

from typing import Final

from pyromq.broker.parts import BrokerParts
from pyromq.metrics.family import gauge
from pyromq.metrics.page import Page, Steps, label_text
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.units import Entry
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.store.queues.extension import is_address

_LABELS: Final = ("level", "delay")

PENDING: Final = gauge(
    "pyromq_delay_pending_messages", "Delayed messages of a level that are not delivered.", _LABELS
)
LATENESS: Final = gauge(
    "pyromq_delay_lateness_seconds",
    "By how much the next message of a level is overdue, in seconds; 0 if it is not.",
    _LABELS,
)

FAMILIES: Final = (PENDING, LATENESS)


class DelayMetrics:
    """The delay levels."""

    def __init__(self, parts: BrokerParts) -> None:
        self._store = parts.store
        self._offsets = parts.tables.delay_offsets
        self._now = parts.clock
        self._delays = DelayLevels(parts.store.config.message_delay_level)

    def collect(self, page: Page) -> Steps:
        """Write the families of this module."""
        pending, lateness = page.block(PENDING), page.block(LATENESS)
        now = self._now()
        for level, delay in enumerate(self._delays.text.split(), 1):
            labels = label_text(level=str(level), delay=delay)
            queue = self._store.find_queue(SCHEDULE_TOPIC, level - 1)
            waiting, late = 0, 0
            if queue is not None:
                offset = self._offsets.get(level)
                waiting = max(0, queue.next_offset - offset)
                entry = queue.entry(offset) if waiting else None
                late = 0 if entry is None else max(0, now - self._due(level, entry))
            pending.add(labels, waiting)
            lateness.add(labels, repr(late / 1000))
        page.close(pending, lateness)
        yield None

    def _due(self, level: int, entry: Entry) -> int:
        """Return when a message is due: its entry has that in place of the hash of its tags."""
        if not is_address(entry.tags_code):
            return entry.tags_code
        stored = self._store.store_time(entry.physical_offset)
        return self._delays.due(level, self._now() if stored is None else stored)
