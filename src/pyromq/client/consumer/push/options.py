"""The options of a push consumer, in addition to those of every client.

`PushOptions` are the keyword arguments of `PushConsumer`; `PushSettings` are the checked values
with all defaults filled in. Read once, by the consumer's constructor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from os import PathLike
from typing import Final

from pyromq.base.sizes import MIB
from pyromq.client.arguments import (
    INT_MAX,
    LONG_MAX,
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_path,
    check_seconds,
)
from pyromq.client.consumer.offsets import DEFAULT_INSTANCE
from pyromq.client.consumer.process_queue import Limits
from pyromq.client.consumer.rebalance import Strategy, allocate_averagely
from pyromq.client.consumer.start_from import Start, StartFrom, check_start
from pyromq.client.errors import OptionError
from pyromq.client.options import ClientOptions, own_options
from pyromq.protocol.wire.bodies import MessageModel

#: How often a concurrent consumer's message is delivered again by default.
_DEFAULT_RECONSUME_TIMES: Final = 16
_MAX_BATCH_SIZE: Final = 1024


class Order(Enum):
    """How a consumer handles the messages of a queue."""

    #: Many at once, in any order.
    CONCURRENT = "concurrent"
    #: One after the other, in the order of the queue. A failing message blocks its queue.
    ORDERLY = "orderly"


class PushOptions(ClientOptions, total=False):
    """Keyword arguments of `PushConsumer`. Times are in seconds."""

    #: Whether messages of a queue are handled concurrently (default) or in order.
    order: Order
    #: CLUSTERING (default): members share the messages. BROADCASTING: every member gets every
    #: message, and failed messages are not delivered again.
    model: MessageModel
    #: Maximum number of messages per handler call, up to 1024. With more than 1, the handler gets
    #: lists. Default: 1, or `pull_batch_size` with `takes_lists`.
    batch_size: int
    #: Whether the handler gets lists of messages. Default: only if `batch_size` is above 1.
    takes_lists: bool
    #: Where to start on queues that the group has never consumed. Default: `StartFrom.LAST`.
    start_from: Start
    #: Maximum number of handler calls in flight. Default: 20.
    max_handlers: int
    #: How often a failing message is delivered again before it becomes a dead letter. Default: 16;
    #: unlimited if orderly.
    max_reconsume_times: int
    #: A concurrent handler that takes longer is abandoned, and its messages are delivered again.
    #: Default: 900.
    consume_timeout: float
    #: Orderly only: how long a queue pauses after a failure. Default: 1.
    suspend: float
    #: Maximum number of messages per pull; brokers cap it, usually at 32. Default: 32.
    pull_batch_size: int
    #: Pause between pulls of a queue that return messages. Default: 0.
    pull_interval: float
    #: Maximum number of cached messages per queue; pulling pauses above it. Default: 1000.
    max_cached_messages: int
    #: Maximum body bytes of the cached messages per queue; pulling pauses above it. Default:
    #: 100 MiB.
    max_cached_bytes: int
    #: Maximum offset distance between the oldest unfinished and the newest cached message of a
    #: queue (concurrent only). Default: 2000.
    max_span: int
    #: Maximum number of cached messages per topic, divided among its queues; replaces
    #: `max_cached_messages`.
    max_cached_messages_of_topic: int
    #: Maximum body bytes of the cached messages per topic, divided among its queues; replaces
    #: `max_cached_bytes`.
    max_cached_bytes_of_topic: int
    #: Strategy that picks a member's queues; all members of a group must use the same. Default:
    #: `allocate_averagely`.
    allocate: Strategy
    #: Passed to brokers as RocketMQ's `unitMode`. Default: False.
    unit_mode: bool
    #: Interval between commits of offsets. Default: 5.
    commit_interval: float
    #: How long handlers may take to return when the consumer closes or a queue goes to another
    #: member; then they are cancelled or ignored. Default: 10.
    close_grace: float
    #: Directory of the offset files in broadcasting. Each consumer of a group on this machine has
    #: its own file, see `instance_name`. Default: ~/.rocketmq_offsets.
    offsets_directory: str | PathLike[str]


@dataclass(frozen=True, slots=True)
class PushSettings:
    """The checked values of `PushOptions`."""

    order: Order = Order.CONCURRENT
    model: MessageModel = MessageModel.CLUSTERING
    batch_size: int = 0
    takes_lists: bool | None = None
    start_from: Start = StartFrom.LAST
    max_handlers: int = 20
    max_reconsume_times: int = -1
    consume_timeout: float = 15 * 60.0
    suspend: float = 1.0
    pull_batch_size: int = 32
    pull_interval: float = 0.0
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 * MIB
    max_span: int = 2000
    max_cached_messages_of_topic: int | None = None
    max_cached_bytes_of_topic: int | None = None
    allocate: Strategy = allocate_averagely
    unit_mode: bool = False
    commit_interval: float = 5.0
    close_grace: float = 10.0
    offsets_directory: str | PathLike[str] | None = None

    @classmethod
    def split(cls, options: PushOptions) -> tuple[PushSettings, ClientOptions]:
        """Separate a push consumer's own options from those of every client."""
        own, common = own_options(cls, options)
        settings = cls(**own)
        if settings.is_broadcasting:
            # Offsets are stored under the client id, so it must survive a restart.
            common.setdefault("instance_name", DEFAULT_INSTANCE)
        return settings, common

    def __post_init__(self) -> None:
        check_choice("order", self.order, Order)
        check_choice("model", self.model, MessageModel)
        check_flag("unit_mode", self.unit_mode)
        check_callable("allocate", self.allocate)
        if self.takes_lists is not None:
            check_flag("takes_lists", self.takes_lists)
        if self.offsets_directory is not None:
            check_path("offsets_directory", self.offsets_directory)
        for name in (
            "max_handlers",
            "pull_batch_size",
            "max_cached_messages",
            "max_cached_bytes",
            "max_span",
        ):
            check_count(name, getattr(self, name), most=LONG_MAX)
        for name in ("max_cached_messages_of_topic", "max_cached_bytes_of_topic"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), most=LONG_MAX)
        for name in ("consume_timeout", "suspend", "commit_interval"):
            check_seconds(name, getattr(self, name))
        for name in ("pull_interval", "close_grace"):
            check_seconds(name, getattr(self, name), may_be_zero=True)
        check_count("batch_size", self.batch_size, 0, _MAX_BATCH_SIZE)
        if self.takes_lists is False and self.batch_size > 1:
            raise OptionError(
                f"takes_lists=False with batch_size={self.batch_size}: a handler without lists "
                "gets one message per call"
            )
        # -1 is the default.
        check_count("max_reconsume_times", self.max_reconsume_times, -1)
        check_start(self.start_from)

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.model is MessageModel.BROADCASTING

    @property
    def is_orderly(self) -> bool:
        """Whether the messages of a queue are handled in order."""
        return self.order is Order.ORDERLY

    @property
    def hands_out_lists(self) -> bool:
        """Whether the handler gets lists."""
        return self.batch_size > 1 if self.takes_lists is None else self.takes_lists

    @property
    def messages_per_call(self) -> int:
        """Maximum number of messages per handler call."""
        if not self.hands_out_lists:
            return 1
        return self.batch_size or self.pull_batch_size

    @property
    def reconsume_limit(self) -> int:
        """How often a message is delivered again before it becomes a dead letter."""
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return INT_MAX if self.is_orderly else _DEFAULT_RECONSUME_TIMES

    def limits(self, queues_of_topic: int) -> Limits:
        """Return the limits of one queue if we have `queues_of_topic` queues of its topic."""
        messages, size = self.max_cached_messages, self.max_cached_bytes
        count = max(queues_of_topic, 1)
        if self.max_cached_messages_of_topic is not None:
            messages = max(1, self.max_cached_messages_of_topic // count)
        if self.max_cached_bytes_of_topic is not None:
            size = max(1, self.max_cached_bytes_of_topic // count)
        return Limits(messages, size, None if self.is_orderly else self.max_span)
