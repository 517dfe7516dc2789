"""Decide what a lite pull consumer reads: topics shared with its group, or queues of its choice.

    UNDECIDED -> SUBSCRIBED     `subscribe` joined the group
    UNDECIDED -> ASSIGNED       `assign` was called; the group is not joined
    SUBSCRIBED -> UNDECIDED     the first `subscribe` failed

A consumer either subscribes or assigns. Created by the lite pull consumer; runs on its event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from pyromq.client.consumer.handover import MARGIN_SECONDS, Handover
from pyromq.client.consumer.lite_pull.assigned_queues import (
    READER_SECONDS,
    AssignedQueues,
    AssignmentListener,
)
from pyromq.client.consumer.lite_pull.options import LitePullSettings
from pyromq.client.consumer.membership import Membership
from pyromq.client.consumer.subscription import TopicSubscription, check_expressions
from pyromq.client.errors import ClientStateError
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import MessageQueue


class Mode(Enum):
    """How the queues of a consumer are chosen."""

    UNDECIDED = "undecided"
    SUBSCRIBED = "subscribed"
    ASSIGNED = "assigned"


class Subscriber:
    """The subscriptions of one consumer. `subscriptions` is the table that it fills and empties."""

    def __init__(
        self,
        session: Session,
        group: str,
        settings: LitePullSettings,
        subscriptions: dict[str, TopicSubscription],
        queues: AssignedQueues,
        *,
        takes_all: bool,
    ) -> None:
        """`takes_all`: take every queue of a topic, regardless of other members."""
        self._session = session
        self._group = group
        self._settings = settings
        self._subscriptions = subscriptions
        self._queues = queues
        self._takes_all = takes_all
        self.mode = Mode.UNDECIDED
        self.membership: Membership | None = None

    def check(self, mode: Mode) -> None:
        """Raise ClientStateError if the consumer cannot move to `mode`."""
        if self.mode not in (Mode.UNDECIDED, mode):
            called = "subscribe" if self.mode is Mode.SUBSCRIBED else "assign"
            raise ClientStateError(f"{called} was called: a consumer either subscribes or assigns")

    async def subscribe(
        self,
        added: Mapping[str, TopicSubscription],
        on_assigned: AssignmentListener | None,
        on_revoked: AssignmentListener | None,
    ) -> None:
        """Add topics. Raises TopicNotFoundError, BrokerError or RemotingError."""
        await self._check_expressions(added)
        self._queues.listen(on_assigned, on_revoked)
        if self.membership is None:
            await self._join(added)
            return
        for topic in added:
            await self._session.routes.get(self._session.wrap(topic))
        self._update(added)
        await self.membership.set_topics(self._subscriptions)

    async def unsubscribe(self, topics: Iterable[str]) -> None:
        """Remove topics."""
        if self.membership is None:
            raise ClientStateError("nothing was subscribed to: call subscribe first")
        for topic in topics:
            self._subscriptions.pop(topic, None)
            self._queues.forget_topic(topic)
        await self.membership.set_topics(self._subscriptions)

    async def assign(
        self, queues: Collection[MessageQueue], added: Mapping[str, TopicSubscription]
    ) -> None:
        """Read exactly these queues."""
        await self._check_expressions(added)
        self.mode = Mode.ASSIGNED
        self._update(added)
        await self._queues.assign(queues)

    def members_changed(self) -> None:
        """Rebalance soon."""
        if self.membership is not None:
            self.membership.members_changed()

    async def stop(self) -> None:
        """Stop rebalancing."""
        if self.membership is not None:
            await self.membership.stop()

    # Helpers, in call order.

    async def _check_expressions(self, subscriptions: Mapping[str, TopicSubscription]) -> None:
        await check_expressions(
            self._session,
            self._group,
            {topic: subscribed.subscription for topic, subscribed in subscriptions.items()},
        )

    async def _join(self, subscriptions: Mapping[str, TopicSubscription]) -> None:
        """Join the group with the first subscriptions; undo everything if that fails."""
        self._subscriptions.update(subscriptions)
        self.mode = Mode.SUBSCRIBED
        self.membership = membership = Membership(
            self._session,
            self._group,
            subscriptions,
            self._queues.take_share,
            strategy=self._settings.allocate,
            is_broadcasting=self._takes_all,
        )
        handover = None
        if not self._takes_all:
            patience = READER_SECONDS + MARGIN_SECONDS
            handover = Handover(self._session, self._group, membership, patience=patience)
        self._queues.begin_subscription(handover)
        try:
            await membership.join()
        except BaseException:
            self.mode = Mode.UNDECIDED
            self.membership = None
            self._subscriptions.clear()
            await self._queues.end_subscription()
            raise

    def _update(self, subscriptions: Mapping[str, TopicSubscription]) -> None:
        for topic, new in subscriptions.items():
            old = self._subscriptions.get(topic)
            if old is not None and old.subscription == new.subscription:
                continue
            self._subscriptions[topic] = new
            if old is not None:
                self._queues.pull_again(topic)
