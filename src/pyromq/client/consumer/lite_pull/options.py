"""The options of a lite pull consumer, in addition to those of every client.

`LitePullOptions` are the keyword arguments of `LitePullConsumer`; `LitePullSettings` are the
checked values with all defaults filled in. Read once, by the consumer's constructor.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from pyromq.base.sizes import MIB
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
from pyromq.client.options import ClientOptions, own_options
from pyromq.protocol.wire.bodies import MessageModel


class LitePullOptions(ClientOptions, total=False):
    """Keyword arguments of `LitePullConsumer`. Times are in seconds."""

    #: Where to start on queues that the group has never consumed. Default: `StartFrom.LAST`.
    start_from: Start
    #: Whether consumed messages are committed automatically. Default: True.
    auto_commit: bool
    #: Interval between automatic commits. Default: 5.
    commit_interval: float
    #: CLUSTERING (default): members share the messages. BROADCASTING: every member gets every
    #: message.
    model: MessageModel
    #: Directory of the offset files in broadcasting. Each consumer of a group on this machine has
    #: its own file, see `instance_name`. Default: ~/.rocketmq_offsets.
    offsets_directory: str | PathLike[str]
    #: Strategy that picks a member's queues; all members of a group must use the same. Default:
    #: `allocate_averagely`.
    allocate: Strategy
    #: Maximum number of messages per pull; brokers cap it, usually at 32. Default: 32.
    pull_batch_size: int
    #: Maximum number of cached messages per queue; pulling pauses above it. Default: 1000.
    max_cached_messages: int
    #: Maximum body bytes of the cached messages per queue; pulling pauses above it. Default:
    #: 100 MiB.
    max_cached_bytes: int
    #: Maximum offset distance between the first and the last cached message of a queue. Default:
    #: 2000.
    max_span: int
    #: Maximum number of cached messages of all queues. Default: 10,000.
    max_cached_in_all: int


@dataclass(frozen=True, slots=True)
class LitePullSettings:
    """The checked values of `LitePullOptions`."""

    start_from: Start = StartFrom.LAST
    auto_commit: bool = True
    commit_interval: float = 5.0
    model: MessageModel = MessageModel.CLUSTERING
    offsets_directory: str | PathLike[str] | None = None
    allocate: Strategy = allocate_averagely
    pull_batch_size: int = 32
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 * MIB
    max_span: int = 2000
    max_cached_in_all: int = 10_000

    @classmethod
    def split(
        cls, options: LitePullOptions, group: str | None
    ) -> tuple[LitePullSettings, ClientOptions]:
        """Separate a lite pull consumer's own options from those of every client."""
        own, common = own_options(cls, options)
        settings = cls(**own)
        if settings.is_broadcasting:
            if group is None:
                raise OptionError("model=BROADCASTING needs a group: pass group=...")
            # Offsets are stored under the client id, so it must survive a restart.
            common.setdefault("instance_name", DEFAULT_INSTANCE)
        return settings, common

    def __post_init__(self) -> None:
        check_flag("auto_commit", self.auto_commit)
        check_seconds("commit_interval", self.commit_interval)
        check_choice("model", self.model, MessageModel)
        check_callable("allocate", self.allocate)
        if self.offsets_directory is not None:
            check_path("offsets_directory", self.offsets_directory)
        for name in (
            "pull_batch_size",
            "max_cached_messages",
            "max_cached_bytes",
            "max_span",
            "max_cached_in_all",
        ):
            check_count(name, getattr(self, name), most=LONG_MAX)
        check_start(self.start_from)

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.model is MessageModel.BROADCASTING

    @property
    def limits(self) -> Limits:
        """The limits of one queue."""
        return Limits(self.max_cached_messages, self.max_cached_bytes, self.max_span)
