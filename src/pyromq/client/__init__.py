"""RocketMQ clients for asyncio: `Producer`, `PullConsumer` and what they speak of."""

from __future__ import annotations

from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    ClientError,
    ClientStateError,
    IllegalMessageError,
    NameServerError,
    TopicNotFoundError,
)
from pyromq.client.message import Message, ReceivedMessage
from pyromq.client.producer import Producer, SendResult, SendStatus
from pyromq.client.pull_consumer import PullConsumer, PullResult, PullStatus, StartFrom
from pyromq.protocol.bodies import MessageQueue

__all__ = [
    "AnswerError",
    "BrokerError",
    "ClientError",
    "ClientStateError",
    "IllegalMessageError",
    "Message",
    "MessageQueue",
    "NameServerError",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "StartFrom",
    "TopicNotFoundError",
]
