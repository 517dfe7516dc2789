"""Settings of the services that watch the broker (`broker.services.upkeep`) and of its extensions.

Most keys are RocketMQ's. `BrokerConfig` inherits these fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.base.settings import setting
from pyromq.broker.replication_settings import ReplicationSettings


@dataclass(frozen=True, slots=True)
class UpkeepSettings(ReplicationSettings):
    """Protection of the broker, and what it loads by name."""

    disable_consume_if_consumer_read_slowly: bool = setting(
        "disableConsumeIfConsumerReadSlowly",
        False,
        "Disable a consumer group whose pulls are farther behind the end of the log than "
        "consumerFallbehindThreshold, until an administrator enables it again.",
        live=True,
    )
    consumer_fallbehind_threshold: int = setting(
        "consumerFallbehindThreshold",
        16 << 30,
        "Call a group slow if its last pull was more than this many bytes behind the end of the "
        "log; see disableConsumeIfConsumerReadSlowly.",
        bits=64,
        minimum=0,
        live=True,
    )
    loop_hang_millis: int = setting(
        "loopHangMillis",
        10_000,
        "Write the stacks of all threads to `debug` in the store's directory if the event loop "
        "does not respond for this many milliseconds; 0 never does. debugLockEnable lowers it to "
        "1000.",
        minimum=0,
        live=True,
    )
