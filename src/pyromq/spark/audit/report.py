"""The result of an audit: the findings, and the topics with their producers and consumers.

Plain data; `to_json` defines the format of `pyromq spark audit --json`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import orjson


class Finding(NamedTuple):
    """Offsets of a queue, excluding `end`, that are missing or duplicate."""

    topic: str
    broker: str
    queue: int
    start: int
    end: int


class TopicAudit(NamedTuple):
    """One topic."""

    topic: str
    queues: int
    messages: int
    bytes: int
    first_stored: int
    last_stored: int
    #: Messages by the address of their sender.
    producers: dict[str, int]
    #: Lag in messages by consumer group.
    consumers: dict[str, int]


class OpenTransaction(NamedTuple):
    """A half message that was neither committed nor rolled back."""

    broker: str
    offset: int
    stored: int
    topic: str
    group: str
    #: Whether the broker has stopped checking it.
    is_given_up: bool


class DeadLetters(NamedTuple):
    """Messages of a topic that a group failed to consume."""

    group: str
    topic: str
    messages: int


class DuplicateKey(NamedTuple):
    """A unique key that several messages of a topic have."""

    topic: str
    unique_key: str
    messages: int


@dataclass(slots=True)
class AuditReport:
    """Everything that an audit found."""

    records: int = 0
    topics: list[TopicAudit] = field(default_factory=list)
    gaps: list[Finding] = field(default_factory=list)
    repeated_offsets: list[Finding] = field(default_factory=list)
    duplicate_keys: list[DuplicateKey] = field(default_factory=list)
    duplicate_key_count: int = 0
    #: Where the damage is, and its description.
    damage: list[tuple[str, str]] = field(default_factory=list)
    damage_count: int = 0
    open_transactions: list[OpenTransaction] = field(default_factory=list)
    dead_letters: list[DeadLetters] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings; dead letters do not count."""
        return not (
            self.gaps
            or self.repeated_offsets
            or self.duplicate_key_count
            or self.damage_count
            or self.open_transactions
        )

    def to_json(self) -> bytes:
        """Return the report as an indented JSON object."""
        fields = asdict(self)
        for name in ("topics", "gaps", "repeated_offsets", "duplicate_keys", "open_transactions"):
            fields[name] = [each._asdict() for each in getattr(self, name)]
        fields["dead_letters"] = [each._asdict() for each in self.dead_letters]
        fields["damage"] = [{"place": place, "message": text} for place, text in self.damage]
        return orjson.dumps(fields, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
