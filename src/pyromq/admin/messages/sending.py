"""Sends messages for the admin API: single ones, copies of stored ones, and to measure latencies.

Each call uses a producer of its own, with the account and the TLS settings of the `Admin`. Runs on
the event loop of the `Admin`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from pyromq.admin.errors import AdminError
from pyromq.admin.message_view import MessageView
from pyromq.admin.session import AdminSession
from pyromq.client.message import Message
from pyromq.client.producer.producer import Producer
from pyromq.client.results import SendResult
from pyromq.protocol.errors import RocketMQError
from pyromq.protocol.message.system_properties import SHARDING_KEY, user_properties
from pyromq.protocol.wire.bodies import MessageQueue

_GROUP: Final = "PYROMQ_ADMIN_PRODUCER"


@dataclass(frozen=True, slots=True)
class SendLatency:
    """One send of a measurement."""

    broker_name: str
    queue_id: int
    succeeded: bool
    #: Milliseconds until the response.
    latency_ms: float
    #: Why it failed.
    problem: str = ""


async def send(
    session: AdminSession,
    message: Message,
    queue: MessageQueue | None,
    *,
    trace: bool = False,
    unit_name: str = "",
) -> SendResult:
    """Send one message."""
    async with _producer(session, trace=trace, unit_name=unit_name) as producer:
        return await producer.send(message, queue=queue)


async def send_copy(session: AdminSession, message: MessageView, unit_name: str = "") -> SendResult:
    """Send the content of a stored message to its topic again, as a new message."""
    if message.problem:
        raise AdminError(f"message {message.msg_id} cannot be copied: {message.problem}")
    copy = Message(
        message.topic,
        message.body,
        tags=message.tags,
        keys=message.keys,
        properties=user_properties(message.properties),
        flag=message.flag,
        ordering_key=message.properties.get(SHARDING_KEY, ""),
    )
    return await send(session, copy, None, unit_name=unit_name)


async def check_latency(
    session: AdminSession, topic: str, amount: int, size: int
) -> AsyncIterator[SendLatency]:
    """Send `amount` messages of `size` bytes, one after the other."""
    await session.route(topic)  # fails for an unknown one, which a producer would create
    message = Message(topic, b"a" * size)
    async with _producer(session, retries=0) as producer:
        queues = await producer.queues(topic)
        for number in range(amount):
            queue = queues[number % len(queues)]
            problem = ""
            begin = time.perf_counter()
            try:
                await producer.send(message, queue=queue)
            except RocketMQError as error:
                problem = str(error)
            elapsed = (time.perf_counter() - begin) * 1000
            yield SendLatency(queue.broker_name, queue.queue_id, not problem, elapsed, problem)


def _producer(session: AdminSession, **options: Any) -> Producer:
    return Producer(list(session.name_servers), group=_GROUP, **{**session.options, **options})
