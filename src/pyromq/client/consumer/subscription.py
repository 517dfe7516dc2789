"""Select the messages of a topic: all of them, some tags, or an SQL92 expression.

    Subscription()                       everything
    Subscription.tags("new || paid")     messages with one of these tags
    Subscription.sql("price > 10")       by properties; brokers need enablePropertyFilter=true

Brokers select by the hashes of tags, so a consumer compares the text of the tags again. SQL92
expressions are checked before the first pull (`check_expressions`): Java's broker returns every
message to a pull whose expression it cannot parse.

`Subscription` is an immutable value for any thread. `check_expressions` runs on the consumer's
event loop; every consumer calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyromq.base.clock import now_ms
from pyromq.client.arguments import refusal
from pyromq.client.errors import IllegalMessageError, OptionError, TopicNotFoundError
from pyromq.client.message import check_topic
from pyromq.client.session.session import Session
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.wire.bodies import CheckClientRequestBody, SubscriptionData
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

TAG: Final = "TAG"
SQL92: Final = "SQL92"
EVERYTHING: Final = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A filter for the messages of a topic: an expression, and its kind (`TAG` or `SQL92`).

    Without arguments it selects everything. `tags` and `sql` are the usual constructors.
    """

    expression: str = EVERYTHING
    kind: str = TAG

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or not self.expression.strip():
            raise OptionError(f"expression={self.expression!r:.100}: expected a non-empty str")
        if self.kind not in (TAG, SQL92):
            raise OptionError(f"kind={self.kind!r:.100}: must be {TAG} or {SQL92}")

    @classmethod
    def tags(cls, expression: str) -> Subscription:
        """Select messages with one of the tags in `a || b`; `*` or an empty str selects all."""
        if not isinstance(expression, str):
            expectation = "expected tags as `a || b` or a Subscription"
            raise refusal("subscription", expression, expectation)
        if not (expression.strip() or EVERYTHING).replace("|", "").strip():
            raise IllegalMessageError(f"{expression!r} names no tag: write `a || b`, or `*`")
        return cls(expression.strip() or EVERYTHING)

    @classmethod
    def sql(cls, expression: str) -> Subscription:
        """Select messages whose properties match an SQL92 expression; the broker evaluates it."""
        if not isinstance(expression, str):
            raise refusal("expression", expression, "expected a str")
        if not expression.strip():
            raise IllegalMessageError("an SQL92 expression must not be empty")
        return cls(expression.strip(), SQL92)

    @classmethod
    def of(cls, value: str | Subscription) -> Subscription:
        """Return a subscription unchanged, or parse a str as tags."""
        return value if isinstance(value, Subscription) else cls.tags(value)

    def wanted_tags(self) -> frozenset[str]:
        """Return the tags to select; empty if tags do not matter."""
        if self.kind != TAG or self.expression == EVERYTHING:
            return frozenset()
        return frozenset(tag.strip() for tag in self.expression.split("||") if tag.strip())

    def data(self, topic: str, version: int | None = None) -> SubscriptionData:
        """Return the form for heartbeats. A higher version replaces a lower one; default: now."""
        tags = sorted(self.wanted_tags())
        return SubscriptionData(
            topic=topic,
            sub_string=self.expression,
            tags_set=set(tags),
            code_set={java_hash(tag) for tag in tags},
            sub_version=now_ms() if version is None else version,
            expression_type=self.kind,
        )


#: A topic, several topics, or a mapping from topics to tags or subscriptions.
Subscriptions = str | Iterable[str] | Mapping[str, str | Subscription]


class TopicSubscription:
    """The current subscription of a topic, with its version and its parsed tags."""

    __slots__ = ("subscription", "tags", "version")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.tags = subscription.wanted_tags()
        self.version = now_ms()


def parse_subscriptions(subscriptions: Subscriptions) -> dict[str, TopicSubscription]:
    """Return the subscription of each topic. Raises OptionError or IllegalMessageError."""
    if isinstance(subscriptions, str):
        subscriptions = [subscriptions]
    if not isinstance(subscriptions, Iterable):
        raise refusal(
            "subscriptions", subscriptions, "expected a topic, a list of topics or a mapping"
        )
    if not isinstance(subscriptions, Mapping):
        topics = list(subscriptions)
        for topic in topics:
            check_topic(topic)  # before it becomes a key: it may be unhashable
        subscriptions = dict.fromkeys(topics, EVERYTHING)
    for topic in subscriptions:
        check_topic(topic)
    return {
        topic: TopicSubscription(Subscription.of(value)) for topic, value in subscriptions.items()
    }


def subscription_data(
    session: Session, subscriptions: Mapping[str, TopicSubscription]
) -> list[SubscriptionData]:
    """Return subscriptions in the form of heartbeats, with the topics' names on the wire."""
    return [
        each.subscription.data(session.wrap(topic), each.version)
        for topic, each in subscriptions.items()
    ]


async def check_expressions(
    session: Session,
    group: str,
    subscriptions: Mapping[str, Subscription],
    *,
    may_be_missing: bool = False,
) -> None:
    """Have a broker of each topic parse the topic's expression if it is SQL92.

    Topics carry the application's names. Raises BrokerError if the broker cannot parse the
    expression or filters by tags only, TopicNotFoundError if the topic does not exist (unless it
    `may_be_missing`). A topic without a reachable broker is skipped: its pulls fail anyway.
    """
    for topic, subscription in subscriptions.items():
        if subscription.kind != SQL92:
            continue
        name = session.wrap(topic)
        body = CheckClientRequestBody(session.client_id, session.wrap(group))
        body.subscription_data = subscription.data(name)
        try:
            route = await session.routes.get(name)
        except TopicNotFoundError:
            if may_be_missing:
                continue
            raise
        for address in route.everyone():
            command = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
            try:
                await session.ask(address, command)
            except RemotingError as error:
                logger.warning("expression of topic %s not checked: %s", topic, error)
            else:
                break
