"""Asks brokers whether they can read an SQL92 expression, before anything is pulled with it.

Java's brokers give every message to a pull whose expression they cannot read; whoever
subscribes must have asked first (CHECK_CLIENT_CONFIG). Used by every consumer, on its event
loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyromq.client.consumer.subscription import SQL92, Subscription
from pyromq.client.errors import TopicNotFoundError
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import CheckClientRequestBody
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)


async def check_expressions(
    session: Session,
    group: str,
    subscriptions: Mapping[str, Subscription],
    *,
    may_be_missing: bool = False,
) -> None:
    """Let a broker of each topic read its expression, where that is SQL92.

    Names are the application's. Raises BrokerError for an expression that it cannot read or
    when it filters only by tags, TopicNotFoundError for a topic that does not exist (unless
    it `may_be_missing`). Topics none of whose brokers answers are passed over: their pulls
    fail anyway.
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
        for address in sorted(route.masters()):
            command = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
            try:
                await session.ask(address, command)
            except RemotingError as error:
                logger.warning("the expression for topic %s was not checked: %s", topic, error)
            else:
                break
