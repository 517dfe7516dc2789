"""The options of a replay: which messages to send, and how. Does not load Spark."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Any, Final

DEFAULT_PART_MESSAGES: Final = 1_000_000


class Order(enum.Enum):
    """Which messages keep their order, and therefore go to one queue."""

    NONE = "none"
    #: Those of a source queue, which go to the queue of the same number.
    QUEUES = "queues"
    #: Those of an ordering key.
    KEYS = "keys"


@dataclass(frozen=True)
class Filters:
    """Which messages to replay."""

    where: str | None = None
    tags: tuple[str, ...] = ()
    #: storeTimestamp in milliseconds, excluding `until`.
    since: int | None = None
    until: int | None = None

    def within(self, since: int, until: int) -> Filters:
        """Return these filters, restricted to a time slice."""
        return replace(
            self,
            since=max(since, self.since) if self.since is not None else since,
            until=min(until, self.until) if self.until is not None else until,
        )


@dataclass(frozen=True)
class ReplayOptions:
    """Which messages of a source to replay, and how."""

    filters: Filters = field(default_factory=Filters)
    to_topic: str | None = None
    #: Messages per second of the whole job.
    rate: int | None = None
    #: 1.0 keeps the original intervals between messages; 2.0 is twice as fast.
    pace: float | None = None
    #: Added to the times in messages, in milliseconds; None makes the first message's time now.
    shift: int | None = 0
    order: Order = Order.NONE
    keep_unique_keys: bool = False
    #: Messages per batch, at most; a kill repeats one batch.
    part_messages: int = DEFAULT_PART_MESSAGES

    def settings(self) -> dict[str, Any]:
        """Return the options that must not change when a replay resumes."""
        return {
            "where": self.filters.where,
            "tags": list(self.filters.tags),
            "since": self.filters.since,
            "until": self.filters.until,
            "to-topic": self.to_topic,
            "shift": "now" if self.shift is None else self.shift,
            "order": self.order.value,
            "keep-unique-keys": self.keep_unique_keys,
        }
