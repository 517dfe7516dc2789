"""What a lite pull consumer can be told beside what every client can be told.

`LitePullOptions` are keyword arguments of `LitePullConsumer`, `LitePullSettings` the same with
all defaults, checked. Read when a consumer is made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
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


class LitePullOptions(ClientOptions, total=False):
    """Keyword arguments of `LitePullConsumer`. Times are in seconds."""

    #: Where to begin on queues of which the group has consumed nothing yet.
    start_from: Start
    #: Whether what was consumed is committed by itself, and how often.
    auto_commit: bool
    commit_interval: float
    #: BROADCASTING: every member gets every message.
    model: MessageModel
    #: Where offsets are kept in broadcasting; by default ~/.rocketmq_offsets. Each consumer of a
    #: group on this machine has its own file there, see `instance_name`.
    offsets_directory: str | PathLike[str]
    #: Which queues a member takes; all members of a group need the same.
    allocate: Strategy
    #: How many messages a pull brings at most; brokers have their own limit, mostly 32.
    pull_batch_size: int
    #: How much of each queue may wait in memory: pulling pauses beyond.
    max_cached_messages: int
    max_cached_bytes: int
    #: From the first waiting message of a queue to the last one.
    max_span: int
    #: How many messages of all queues may wait.
    max_cached_in_all: int


@dataclass(frozen=True, slots=True)
class LitePullSettings:
    """All of a lite pull consumer's own options, checked."""

    start_from: Start = StartFrom.LAST
    auto_commit: bool = True
    commit_interval: float = 5.0
    model: MessageModel = MessageModel.CLUSTERING
    offsets_directory: str | PathLike[str] | None = None
    allocate: Strategy = allocate_averagely
    pull_batch_size: int = 32
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 * 1024 * 1024
    max_span: int = 2000
    max_cached_in_all: int = 10_000

    @classmethod
    def split(
        cls, options: LitePullOptions, group: str | None
    ) -> tuple[LitePullSettings, ClientOptions]:
        """A lite pull consumer's own options, and those that every client has."""
        own_names = {field.name for field in fields(cls)}
        own: dict[str, Any] = {}
        common: dict[str, Any] = {}
        for name, value in options.items():
            (own if name in own_names else common)[name] = value
        settings = cls(**own)
        if settings.is_broadcasting:
            if group is None:
                raise OptionError("model=BROADCASTING is for groups: give group=, or no model")
            # Offsets are kept under the client's id: it must be the same after a restart.
            common.setdefault("instance_name", DEFAULT_INSTANCE)
        return settings, cast(ClientOptions, common)

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
        """What may wait of one queue."""
        return Limits(self.max_cached_messages, self.max_cached_bytes, self.max_span)
