"""What a consumer wants of a topic: all of it, some tags, or what an SQL92 expression says.

    Subscription()                       everything
    Subscription.tags("new || paid")     messages with one of these tags
    Subscription.sql("price > 10")       by properties; brokers need enablePropertyFilter=true

Pure values. Brokers select by the hashes of tags, so a client looks at their text again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyromq.client.arguments import refusal
from pyromq.client.errors import IllegalMessageError, OptionError
from pyromq.client.message import check_topic
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.wire.bodies import SubscriptionData

TAG: Final = "TAG"
SQL92: Final = "SQL92"
EVERYTHING: Final = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """An expression and its kind."""

    expression: str = EVERYTHING
    kind: str = TAG

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or not self.expression.strip():
            raise OptionError(f"expression={self.expression!r:.100}: a text is needed")
        if self.kind not in (TAG, SQL92):
            raise OptionError(f"kind={self.kind!r:.100}: {TAG} and {SQL92} are possible")

    @classmethod
    def tags(cls, expression: str) -> Subscription:
        """Messages with one of the tags in `a || b`; `*` or nothing for all."""
        if not isinstance(expression, str):
            need = "tags as `a || b` or a Subscription is needed"
            raise refusal("subscription", expression, need)
        if not (expression.strip() or EVERYTHING).replace("|", "").strip():
            raise IllegalMessageError(f"{expression!r} names no tag: write `a || b`, or `*`")
        return cls(expression.strip() or EVERYTHING)

    @classmethod
    def sql(cls, expression: str) -> Subscription:
        """Messages whose properties make the expression true; the broker judges it."""
        if not isinstance(expression, str):
            raise refusal("expression", expression, "a str is needed")
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


#: One topic, several, or a table that says what is wanted of each.
Subscriptions = str | Iterable[str] | Mapping[str, str | Subscription]


class Wanted:
    """What is wanted of a topic, and since when."""

    __slots__ = ("subscription", "tags", "version")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.tags = subscription.wanted_tags()
        self.version = time.time_ns() // 1_000_000


def wanted_of(subscriptions: Subscriptions) -> dict[str, Wanted]:
    """Return what is wanted of each topic; refuse what names none."""
    if isinstance(subscriptions, str):
        subscriptions = [subscriptions]
    if not isinstance(subscriptions, Iterable):
        raise refusal(
            "subscriptions", subscriptions, "a topic, a list or a table of topics is needed"
        )
    if not isinstance(subscriptions, Mapping):
        topics = list(subscriptions)
        for topic in topics:
            check_topic(topic)  # before it is a key: what is no name may be unhashable
        subscriptions = dict.fromkeys(topics, EVERYTHING)
    for topic in subscriptions:
        check_topic(topic)
    return {topic: Wanted(Subscription.of(wanted)) for topic, wanted in subscriptions.items()}
