"""RocketMQ clients: producers, consumers, and the values they exchange with the application.

`Producer`, `TransactionProducer`, `PushConsumer`, `LitePullConsumer` and `PullConsumer` are for
asyncio. `Producer.sync(...)` and the others' `sync` return clients for programs without an event
loop.
"""

from __future__ import annotations

from pyromq.client.consumer.lite_pull.assigned_queues import AssignmentListener
from pyromq.client.consumer.lite_pull.consumer import LitePullConsumer
from pyromq.client.consumer.lite_pull.options import LitePullOptions
from pyromq.client.consumer.pull import PullConsumer
from pyromq.client.consumer.push.consumer import PushConsumer
from pyromq.client.consumer.push.handling import ConsumeResult, Handler, Retry
from pyromq.client.consumer.push.options import Order, PushOptions
from pyromq.client.consumer.queue_access import PullResult, PullStatus
from pyromq.client.consumer.rebalance import (
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    Strategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.consumer.sync import (
    SyncLitePullConsumer,
    SyncPullConsumer,
    SyncPushConsumer,
)
from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    ClientError,
    ClientStateError,
    IllegalMessageError,
    NameServerError,
    NoMasterError,
    OptionError,
    RequestTimeoutError,
    TopicNotFoundError,
    UnreadableBodyError,
)
from pyromq.client.hooks import (
    ConsumeHook,
    Consuming,
    EndingTransaction,
    PublishHook,
    Publishing,
    PublishOperation,
    ReceiveHook,
    Receiving,
    SendHook,
    Sending,
    TransactionHook,
)
from pyromq.client.message import HalfMessage, Message
from pyromq.client.options import ClientOptions
from pyromq.client.producer.accumulator import Batching
from pyromq.client.producer.options import ProducerOptions
from pyromq.client.producer.producer import Producer
from pyromq.client.producer.request_reply import reply_to
from pyromq.client.producer.sync import SyncProducer, SyncTransactionProducer
from pyromq.client.producer.targets import QueueSelector
from pyromq.client.producer.transaction import TransactionProducer
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import SendResult, SendStatus, TransactionResult, TransactionState
from pyromq.client.session.session import Client
from pyromq.protocol.errors import RocketMQError
from pyromq.protocol.wire.bodies import MessageModel, MessageQueue
from pyromq.remoting.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from pyromq.tls.client import Tls

__all__ = [
    "AllocateByConfig",
    "AllocateByMachineRoom",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "AnswerError",
    "AssignmentListener",
    "Batching",
    "BrokerError",
    "Client",
    "ClientError",
    "ClientOptions",
    "ClientStateError",
    "ConsumeHook",
    "ConsumeResult",
    "Consuming",
    "EndingTransaction",
    "HalfMessage",
    "Handler",
    "IllegalMessageError",
    "LitePullConsumer",
    "LitePullOptions",
    "Message",
    "MessageModel",
    "MessageQueue",
    "NameServerError",
    "NoMasterError",
    "OptionError",
    "Order",
    "Producer",
    "ProducerOptions",
    "PublishHook",
    "PublishOperation",
    "Publishing",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushOptions",
    "QueueSelector",
    "ReceiveHook",
    "ReceivedMessage",
    "Receiving",
    "RemotingClosedError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingTimeoutError",
    "RequestTimeoutError",
    "Retry",
    "RocketMQError",
    "SendHook",
    "SendResult",
    "SendStatus",
    "Sending",
    "StartFrom",
    "Strategy",
    "Subscription",
    "SyncLitePullConsumer",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncTransactionProducer",
    "Tls",
    "TopicNotFoundError",
    "TransactionHook",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "UnreadableBodyError",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "reply_to",
]
