"""The state of a consumer as it reports it itself (GET_CONSUMER_RUNNING_INFO), and its analysis.

The rules are Java's: members of a push group that has run for two minutes must have equal
subscriptions; a queue of an ordered consumer must be locked; a queue with cached messages must have
been consumed within the last minute. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyromq.protocol.wire.bodies import ConsumeType, MessageQueue
from pyromq.protocol.wire.bodies_consumer import (
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
)

CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"
#: Members may differ while a new version of an application is rolled out.
_SETTLED_MS: Final = 120_000
_BLOCKED_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """A consumer's own report."""

    client_id: str
    properties: dict[str, str]
    #: Topic and expression of each subscription, sorted.
    subscriptions: tuple[tuple[str, str], ...]
    #: The unfinished messages and times of each queue.
    queues: dict[MessageQueue, ProcessQueueInfo]
    #: Latencies and rates by topic.
    rates: dict[str, ConsumeStatus]
    #: The stacks of the consumer's threads, if they were asked for.
    stacks: str | None = None

    @property
    def is_push(self) -> bool:
        """Return whether it is a push consumer."""
        return self.properties.get(CONSUME_TYPE) == ConsumeType.CONSUME_PASSIVELY.name

    @property
    def is_ordered(self) -> bool:
        """Return whether it consumes its queues in order."""
        return self.properties.get(CONSUME_ORDERLY, "").lower() == "true"

    @property
    def started(self) -> int:
        """Return when it started, in milliseconds since the epoch, or 0."""
        text = self.properties.get(START_TIMESTAMP, "")
        return int(text) if text.isascii() and text.isdecimal() else 0


def running_info(client_id: str, body: ConsumerRunningInfo) -> RunningInfo:
    """Return the report of a client."""
    return RunningInfo(
        client_id,
        dict(sorted(body.properties.items())),
        tuple(sorted((each.topic, each.sub_string) for each in body.subscription_set)),
        dict(sorted(body.mq_table.items())),
        dict(sorted(body.status_table.items())),
        body.jstack,
    )


def same_subscriptions(members: Mapping[str, RunningInfo], now_ms: int) -> bool:
    """Return whether all members have equal subscriptions, as far as that can be told."""
    infos = [members[client_id] for client_id in sorted(members)]
    if not infos or not infos[0].is_push or now_ms - infos[0].started <= _SETTLED_MS:
        return True
    return bool(infos[0].subscriptions) and all(
        each.subscriptions == infos[0].subscriptions for each in infos
    )


def problems(members: Iterable[RunningInfo], now_ms: int) -> list[str]:
    """Return what is wrong with the queues of members, a sentence each."""
    found = []
    for info in members:
        if not info.is_push:
            continue
        for queue, state in info.queues.items():
            name = f"{info.client_id}: queue {queue.queue_id} of {queue.topic} at "
            name += queue.broker_name
            if not info.is_ordered:
                idle = now_ms - state.last_consume_timestamp
                if idle > _BLOCKED_MS and state.cached_msg_count > 0:
                    found.append(f"{name} was not consumed for {idle} ms, it may be blocked")
            elif not state.locked:
                waited = now_ms - state.last_lock_timestamp
                found.append(f"{name} was not locked for {waited} ms")
            elif state.droped and state.try_unlock_times > 0:
                found.append(f"{name} was not unlocked in {state.try_unlock_times} attempts")
    return found
