"""The broker's consumer groups: which exist and how each may consume.

The table begins with the system's own groups, then takes what
`config/subscriptionGroup.json` says. It grows when groups first appear (unless
autoCreateSubscriptionGroup is off) and by administrators.

Where each switch of a group has its effect:

| switch | where |
| --- | --- |
| consumeEnable, consumeBroadcastEnable | pulls are refused |
| retryQueueNums | queues of the retry topic, made by the first heartbeat; at 0 nothing is retried |
| retryMaxTimes | retries before a message goes to the dead letters |
| brokerId, whichBrokerWhenConsumeSlowly | the broker that pulls suggest, with slaveReadEnable |
| notifyConsumerIdsChangedEnable | whether members hear of each other |
| consumeFromMinEnable | none, as in RocketMQ 4.9.7: it is kept and shown |

(mqadmin's updateSubGroup switches consumeFromMinEnable off unless it is told otherwise: an
effect would make new groups skip messages that RocketMQ gives them.)

Invariants:
1. A `SubscriptionGroupConfig` in the table is never modified, only replaced.
2. Every change makes a new data version and is saved.
3. Groups created by clients have legal names: a group's name becomes part of topics.
4. There are at most `maxSubscriptionGroups`, but for groups of the system and of a file.

All methods are called on the event loop; none of them waits for the disk.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from pyromq.base.clock import Clock, now_ms
from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.capacity import Capacity
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol import names
from pyromq.protocol.wire.bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError

logger = logging.getLogger(__name__)


class GroupTable:
    """Consumer groups by name; persisted as `subscriptionGroup.json`."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        *,
        now: Clock = now_ms,
    ) -> None:
        self._config = config
        self._now = now
        self._groups = {name: SubscriptionGroupConfig(name) for name in names.SYSTEM_GROUPS}
        self._capacity = Capacity(
            "consumer groups", "maxSubscriptionGroups", lambda: config.max_subscription_groups
        )
        self.data_version = DataVersion(now(), 0)
        self.file = TableFile(directory / "subscriptionGroup.json", self.snapshot)

    def load(self) -> None:
        """Take the groups of the file over the built-in ones. Raises PersistenceError."""
        loaded = self.file.load(SubscriptionGroupWrapper.decode)
        if loaded is not None:
            self._groups.update(loaded.subscription_group_table)
            self.data_version = loaded.data_version
            self._capacity.note(len(self._groups))

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's configuration, created if need be; None when it may not be created.

        Raises RequestError when the table is full.
        """
        config = self._groups.get(group)
        if config is not None:
            return config
        if not (
            self._config.auto_create_subscription_group
            or group.startswith(names.SYSTEM_GROUP_PREFIX)
        ):
            return None
        fault = names.group_fault(group)
        if fault is not None:
            logger.warning("group %r is not created: %s", group[:300], fault)
            return None
        self._refuse_when_full(group)
        config = SubscriptionGroupConfig(group)
        logger.info("group %s created by its first consumer", group)
        self._put(config)
        return config

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's configuration, if it exists; never creates one."""
        return self._groups.get(group)

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def snapshot(self) -> SubscriptionGroupWrapper:
        """The table as it is now, not shared with later changes."""
        return SubscriptionGroupWrapper(dict(self._groups), self.data_version)

    def update(self, config: SubscriptionGroupConfig) -> None:
        """Create the group, or replace its configuration. Raises RequestError when full."""
        self._refuse_when_full(config.group_name)
        verb = "updated" if config.group_name in self._groups else "created"
        logger.info("group %s %s: %s", config.group_name, verb, config)
        self._put(config)

    def disable_consume(self, group: str) -> None:
        """Keep a group from consuming until an administrator allows it again."""
        config = self._groups.get(group)
        if config is not None and config.consume_enable:
            logger.warning("group %s may not consume any more", group)
            self._put(dataclasses.replace(config, consume_enable=False))

    def delete(self, group: str) -> bool:
        """Remove a group; False when it does not exist."""
        if self._groups.pop(group, None) is None:
            logger.warning("group %r is not deleted: it does not exist", group)
            return False
        logger.info("group %s deleted", group)
        self._capacity.note(len(self._groups))
        self._changed()
        return True

    def _refuse_when_full(self, group: str) -> None:
        fault = self._capacity.fault(len(self._groups))
        if fault is None or group in self._groups or group.startswith(names.SYSTEM_GROUP_PREFIX):
            return
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group} is not created: {fault}"
        )

    def _put(self, config: SubscriptionGroupConfig) -> None:
        self._groups[config.group_name] = config
        self._capacity.note(len(self._groups))
        self._changed()

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._now())
        self.file.save_soon()
