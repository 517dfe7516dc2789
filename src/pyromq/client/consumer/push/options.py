"""What a push consumer can be told beside what every client can be told.

`PushOptions` are keyword arguments of `PushConsumer`, `PushSettings` the same with all
defaults, checked. Read when a consumer is made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from os import PathLike
from typing import Any, cast

from pyromq.client.arguments import (
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
from pyromq.client.options import ClientOptions
from pyromq.protocol.wire.bodies import MessageModel

#: How often brokers deliver a message again by default, when handled in any order.
_DEFAULT_RECONSUME_TIMES = 16
_INT_MAX = 0x7FFFFFFF
_LARGEST_BATCH = 1024


class Order(Enum):
    """How a queue's messages are handled."""

    #: Many at once, in any order.
    CONCURRENT = "concurrent"
    #: One after the other, in the queue's order; a message that fails holds up its queue.
    ORDERLY = "orderly"


class PushOptions(ClientOptions, total=False):
    """Keyword arguments of `PushConsumer`. Times are in seconds."""

    order: Order
    #: BROADCASTING: every member gets every message, nothing is delivered again.
    model: MessageModel
    #: How many messages a handler gets at most; with more than one it gets lists.
    batch_size: int
    #: Whether the handler gets lists, by default of up to `pull_batch_size` messages.
    takes_lists: bool
    #: Where to begin on queues of which the group has consumed nothing yet.
    start_from: Start
    #: How many calls of the handler may run at once.
    max_handlers: int
    #: After which a message becomes a dead letter; by default 16, in order: never.
    max_reconsume_times: int
    #: A handler that takes longer is given up, and its messages are sent back.
    consume_timeout: float
    #: For how long a queue rests after a failure, when handled in order.
    suspend: float
    pull_batch_size: int
    #: Between pulls of a queue that bring messages.
    pull_interval: float
    #: How much of each queue may wait in memory: pulling pauses beyond.
    max_cached_messages: int
    max_cached_bytes: int
    #: From the first unfinished message of a queue to the last one; not when in order.
    max_span: int
    #: The same for all queues of a topic together, divided among them.
    max_cached_messages_of_topic: int
    max_cached_bytes_of_topic: int
    #: Which queues a member takes; all members of a group need the same.
    allocate: Strategy
    unit_mode: bool
    #: Between commits of offsets.
    commit_interval: float
    #: How long `close` waits for handlers, and a queue that goes to another member.
    close_grace: float
    #: Where offsets are kept in broadcasting; by default ~/.rocketmq_offsets. Each consumer of a
    #: group on this machine has its own file there, see `instance_name`.
    offsets_directory: str | PathLike[str]


@dataclass(frozen=True, slots=True)
class PushSettings:
    """All of a push consumer's own options, checked."""

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
    max_cached_bytes: int = 100 * 1024 * 1024
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
        """A push consumer's own options, and those that every client has."""
        own_names = {field.name for field in fields(cls)}
        own: dict[str, Any] = {}
        common: dict[str, Any] = {}
        for name, value in options.items():
            (own if name in own_names else common)[name] = value
        settings = cls(**own)
        if settings.is_broadcasting:
            # Offsets are kept under the client's id: it must be the same after a restart.
            common.setdefault("instance_name", DEFAULT_INSTANCE)
        return settings, cast(ClientOptions, common)

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
        check_count("batch_size", self.batch_size, 0, _LARGEST_BATCH)
        if self.takes_lists is False and self.batch_size > 1:
            raise OptionError(
                f"takes_lists=False with batch_size={self.batch_size}: without lists, a handler "
                "gets one message"
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
        """Whether queues are handled in order."""
        return self.order is Order.ORDERLY

    @property
    def hands_out_lists(self) -> bool:
        """Whether the handler gets lists."""
        return self.batch_size > 1 if self.takes_lists is None else self.takes_lists

    @property
    def messages_per_call(self) -> int:
        """How many messages the handler gets at most."""
        if not self.hands_out_lists:
            return 1
        return self.batch_size or self.pull_batch_size

    @property
    def reconsume_limit(self) -> int:
        """How often a message is delivered again before it is a dead letter."""
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return _INT_MAX if self.is_orderly else _DEFAULT_RECONSUME_TIMES

    def limits(self, queues_of_topic: int) -> Limits:
        """What may wait of one queue, when so many of its topic are ours."""
        messages, size = self.max_cached_messages, self.max_cached_bytes
        count = max(queues_of_topic, 1)
        if self.max_cached_messages_of_topic is not None:
            messages = max(1, self.max_cached_messages_of_topic // count)
        if self.max_cached_bytes_of_topic is not None:
            size = max(1, self.max_cached_bytes_of_topic // count)
        return Limits(messages, size, None if self.is_orderly else self.max_span)
