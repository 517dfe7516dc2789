"""Stop consumer groups that read so far back that they push new messages out of memory.

RocketMQ's protectBroker: with `disableConsumeIfConsumerReadSlowly`, a group whose last pull was
more than `consumerFallbehindThreshold` bytes behind the end of the log is disabled. Its pulls are
refused until an administrator enables it again; then only new pulls count.

Unlike RocketMQ, the groups of the system and of tools are exempt: disabling TOOLS_CONSUMER would
break the tools that an operator needs then. A replica disables nobody, because its groups are its
master's.

Every five minutes a line names the groups that are farthest behind, as RocketMQ's statistics log
does for all groups.

Runs on the loop, every three minutes.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator
from typing import Final

from pyromq.broker.config import BrokerConfig
from pyromq.broker.role import Role
from pyromq.broker.services.upkeep.fall_behind import Fall, FallBehind
from pyromq.broker.state.groups import GroupTable
from pyromq.protocol import names

logger = logging.getLogger(__name__)

#: Seconds between two checks, as in RocketMQ.
PROTECT_SECONDS: Final = 180.0
#: Seconds between two lines about the slowest groups, as in RocketMQ.
REPORT_SECONDS: Final = 300.0
#: Groups and queues that such a line names.
_MAX_REPORTED: Final = 8
#: Queues examined between two yields to the loop.
_FALLS_PER_YIELD: Final = 256


class BrokerProtection:
    """Disables groups that are too far behind."""

    def __init__(
        self, config: BrokerConfig, groups: GroupTable, role: Role, fall_behind: FallBehind
    ) -> None:
        self._config = config
        self._groups = groups
        self._role = role
        self._fall_behind = fall_behind

    async def protect(self) -> None:
        """Disable the groups whose last pulls were too far behind."""
        for _ in self._fall_behind.forget_deleted(self._groups.__contains__):
            await asyncio.sleep(0)
        if not self._config.disable_consume_if_consumer_read_slowly or self._role.is_replica:
            return
        limit = self._config.consumer_fallbehind_threshold
        worst: dict[str, Fall] = {}
        async for fall in self._falls():
            if fall.size > limit and fall.size >= worst.get(fall.group, fall).size:
                worst[fall.group] = fall
        for group, fall in worst.items():
            config = self._groups.get(group)
            if config is None or not config.consume_enable or names.is_system_group(group):
                continue
            logger.warning(
                "group %s reads slowly and is disabled: its last pull of %s queue %d was %d bytes "
                "behind the log, limit %d (consumerFallbehindThreshold); enable it with "
                "updateSubGroup when its consumers keep up",
                group,
                fall.topic,
                fall.queue_id,
                fall.size,
                limit,
            )
            self._groups.disable_consume(group)
            self._fall_behind.forget_group(group)

    async def report(self) -> None:
        """Name the groups whose last pulls were farthest behind the log."""
        falls = [fall async for fall in self._falls() if fall.size]
        slowest = heapq.nlargest(_MAX_REPORTED, falls, key=lambda fall: fall.size)
        if slowest:
            logger.info(
                "groups farthest behind the log in their last pull: %s",
                ", ".join(
                    f"{fall.group} in {fall.topic} queue {fall.queue_id} {fall.size} bytes"
                    for fall in slowest
                ),
            )

    async def _falls(self) -> AsyncIterator[Fall]:
        for number, fall in enumerate(self._fall_behind.falls(), 1):
            if number % _FALLS_PER_YIELD == 0:
                await asyncio.sleep(0)
            yield fall
