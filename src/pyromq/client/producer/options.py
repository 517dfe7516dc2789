"""Options of producers beyond those of every client; `client.options` has the rule."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.client.arguments import (
    LONG_MAX,
    check_count,
    check_flag,
    check_seconds,
    refusal,
)
from pyromq.client.message import MAX_DELAY_LEVEL
from pyromq.client.options import ClientOptions, own_options
from pyromq.client.producer.accumulator import Batching


class ProducerOptions(ClientOptions, total=False):
    """Keyword arguments of producers; `ProducerSettings` has the defaults. Times are in seconds."""

    #: Limits one attempt. A send with retries can take longer.
    send_timeout: float
    #: Sets the number of attempts after a failed first one.
    retries: int
    #: Retries a send whose message was stored, but not flushed or replicated in time.
    retry_unsafe: bool
    #: Lets sends share requests. With None each send is a request of its own.
    batching: Batching | None
    #: Compresses bodies of at least this many bytes with zlib.
    compress_over: int
    #: Sets the number of queues of a topic that a send creates. Brokers may have a lower limit.
    topic_queues: int
    #: Caps the number of messages in flight. Further sends wait.
    max_in_flight: int
    #: Prefers other brokers for a while after one failed or was slow.
    avoid_slow_brokers: bool
    #: Allows higher delay levels, for brokers with more than RocketMQ's 18.
    max_delay_level: int


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """A producer's own options, checked."""

    send_timeout: float = 3.0
    retries: int = 2
    retry_unsafe: bool = False
    batching: Batching | None = None
    compress_over: int = 4096
    topic_queues: int = 4
    max_in_flight: int = 16_384
    avoid_slow_brokers: bool = True
    max_delay_level: int = MAX_DELAY_LEVEL

    @classmethod
    def split(cls, options: ProducerOptions) -> tuple[ProducerSettings, ClientOptions]:
        """Return a producer's own options, checked, and the options that every client has."""
        own, common = own_options(cls, options)
        return cls(**own), common

    def __post_init__(self) -> None:
        check_seconds("send_timeout", self.send_timeout)
        check_count("retries", self.retries, 0)
        check_flag("retry_unsafe", self.retry_unsafe)
        if self.batching is not None and not isinstance(self.batching, Batching):
            raise refusal("batching", self.batching, "expected a Batching or None")
        check_count("compress_over", self.compress_over, most=LONG_MAX)
        check_count("topic_queues", self.topic_queues)
        check_count("max_in_flight", self.max_in_flight)
        check_count("max_delay_level", self.max_delay_level)
        check_flag("avoid_slow_brokers", self.avoid_slow_brokers)
