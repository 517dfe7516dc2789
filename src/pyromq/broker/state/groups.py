"""Consumer groups: which exist, and how each may consume.

The table starts with the system's own groups and those of `config/subscriptionGroup.json`. Groups
are added when they first connect (unless autoCreateSubscriptionGroup is off) and by administrators.
A replica takes over its master's table (`take_over`).

Effects of a group's settings:

| setting | effect |
| --- | --- |
| consumeEnable, consumeBroadcastEnable | pulls are refused |
| retryQueueNums | queues of the retry topic, created by the first heartbeat; 0 disables retries |
| retryMaxTimes | retries before a message becomes a dead letter |
| brokerId, whichBrokerWhenConsumeSlowly | the broker that responses suggest, with slaveReadEnable |
| notifyConsumerIdsChangedEnable | whether members are notified of changes |
| consumeFromMinEnable | none, as in RocketMQ 4.9.7: only kept and shown |

(mqadmin's updateSubGroup sets consumeFromMinEnable to false by default: with an effect, new groups
would skip messages that RocketMQ gives them.)

Invariants
1. A `SubscriptionGroupConfig` in the table is never modified, only replaced.
2. Every change makes a new data version and is saved.
3. Groups created by clients have legal names, because the name becomes part of topics.
4. The table has at most `maxSubscriptionGroups`; groups of the system and of the file are exempt. A
   master's table with more is refused as a whole.

Called on the loop; nothing here waits for the disk.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from pyromq.base.clock import Clock, now_ms
from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.capacity import Capacity
from pyromq.broker.state.copied_tables import CopyError
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
        """Load the file; its groups replace built-in ones. Raises PersistenceError."""
        loaded = self.file.load(SubscriptionGroupWrapper.decode)
        if loaded is not None:
            self._groups.update(loaded.subscription_group_table)
            self.data_version = loaded.data_version
            self._capacity.note(len(self._groups))

    def find(self, group: str, *, may_create: bool = True) -> SubscriptionGroupConfig | None:
        """Return the configuration of a group, created if missing; None if that is not allowed.

        Without `may_create`, a missing group that is allowed gets the default configuration, and
        the table stays as it is. Raises RequestError if the table is full.
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
            logger.warning("group %r not created: %s", group[:300], fault)
            return None
        if not may_create:
            return SubscriptionGroupConfig(group)
        self._refuse_when_full(group)
        config = SubscriptionGroupConfig(group)
        logger.info("group %s created by its first consumer", group)
        self._put(config)
        return config

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a group, or None. Never creates one."""
        return self._groups.get(group)

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def snapshot(self) -> SubscriptionGroupWrapper:
        """Return a copy of the table."""
        return SubscriptionGroupWrapper(dict(self._groups), self.data_version)

    def update(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group. Raises RequestError if the table is full."""
        self._refuse_when_full(config.group_name)
        verb = "updated" if config.group_name in self._groups else "created"
        logger.info("group %s %s: %s", config.group_name, verb, config)
        self._put(config)

    def disable_consume(self, group: str) -> None:
        """Stop a group from consuming until an administrator enables it."""
        config = self._groups.get(group)
        if config is not None and config.consume_enable:
            logger.warning(
                "consumption of group %s disabled: its pulls are refused until an administrator "
                "enables it",
                group,
            )
            self._put(dataclasses.replace(config, consume_enable=False))

    def delete(self, group: str) -> bool:
        """Delete a group; return False if it does not exist."""
        if self._groups.pop(group, None) is None:
            logger.warning("group %r not deleted: it does not exist", group)
            return False
        logger.info("group %s deleted", group)
        self._capacity.note(len(self._groups))
        self._changed()
        return True

    def take_over(self, copy: SubscriptionGroupWrapper) -> bool:
        """Replace the table and its version by those of the master, unless the versions are equal.

        Return whether it did. Raises CopyError, and changes nothing, if there are too many groups.
        """
        if copy.data_version == self.data_version:
            return False
        groups = copy.subscription_group_table
        count = sum(not names.is_system_group(name) for name in groups)
        limit = self._config.max_subscription_groups
        if count > limit:
            raise CopyError(
                f"{count} consumer groups, limit {limit}: raise maxSubscriptionGroups of this "
                "replica"
            )
        self._groups = dict(groups)
        self.data_version = copy.data_version
        self._capacity.note(len(self._groups))
        logger.info("%d consumer groups copied from the master", len(self._groups))
        self.file.save_soon()
        return True

    def _refuse_when_full(self, group: str) -> None:
        fault = self._capacity.fault(len(self._groups))
        if fault is None or group in self._groups or group.startswith(names.SYSTEM_GROUP_PREFIX):
            return
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group} not created: {fault}"
        )

    def _put(self, config: SubscriptionGroupConfig) -> None:
        self._groups[config.group_name] = config
        self._capacity.note(len(self._groups))
        self._changed()

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._now())
        self.file.save_soon()
