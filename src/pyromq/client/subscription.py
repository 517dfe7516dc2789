"""What a consumer wants of a topic: all of it, some tags, or what an SQL92 expression says.

    Subscription()                       everything
    Subscription.tags("new || paid")     messages with one of these tags
    Subscription.sql("price > 10")       by properties; brokers need enablePropertyFilter=true

Pure values. Brokers select by the hashes of tags, so a client looks at their text again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from pyromq.client.errors import IllegalMessageError
from pyromq.protocol.bodies import SubscriptionData
from pyromq.protocol.java_hash import java_hash

TAG: Final = "TAG"
SQL92: Final = "SQL92"
EVERYTHING: Final = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """An expression and its kind."""

    expression: str = EVERYTHING
    kind: str = TAG

    @classmethod
    def tags(cls, expression: str) -> Subscription:
        """Messages with one of the tags in `a || b`; `*` or nothing for all."""
        if not (expression.strip() or EVERYTHING).replace("|", "").strip():
            raise IllegalMessageError(f"{expression!r} names no tag: write `a || b`, or `*`")
        return cls(expression.strip() or EVERYTHING)

    @classmethod
    def sql(cls, expression: str) -> Subscription:
        """Messages whose properties make the expression true; the broker judges it."""
        if not expression.strip():
            raise IllegalMessageError("an SQL92 expression must not be empty")
        return cls(expression.strip(), SQL92)

    @classmethod
    def of(cls, value: str | Subscription) -> Subscription:
        """A subscription as it is, or a text as tags."""
        return value if isinstance(value, Subscription) else cls.tags(value)

    def wanted_tags(self) -> frozenset[str]:
        """The tags that count; none when every message does."""
        if self.kind != TAG or self.expression == EVERYTHING:
            return frozenset()
        return frozenset(tag.strip() for tag in self.expression.split("||") if tag.strip())

    def data(self, topic: str, version: int | None = None) -> SubscriptionData:
        """What a heartbeat says of it; a later version replaces an earlier one."""
        tags = sorted(self.wanted_tags())
        return SubscriptionData(
            topic=topic,
            sub_string=self.expression,
            tags_set=set(tags),
            code_set={java_hash(tag) for tag in tags},
            sub_version=time.time_ns() // 1_000_000 if version is None else version,
            expression_type=self.kind,
        )


class Wanted:
    """What is wanted of a topic, and since when."""

    __slots__ = ("subscription", "tags", "version")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.tags = subscription.wanted_tags()
        self.version = time.time_ns() // 1_000_000
