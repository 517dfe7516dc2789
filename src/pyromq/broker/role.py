"""The role of a running broker: master or replica, and its id among the brokers of one name.

A role changes while the broker runs: a replica is promoted, a master switches between ASYNC_MASTER
and SYNC_MASTER. Request handlers ask `is_replica` for every request and keep no copy; parts that
must prepare for a role, such as cached plans, add a listener.

Invariants
1. A master has the id 0, a replica a greater one.
2. Listeners run synchronously in `change`, after the new role counts. No request is served between.

Owned by the broker (`broker.role_switch` changes it). On the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyromq.broker.config import MASTER_ID
from pyromq.store.config import BrokerRole

logger = logging.getLogger(__name__)


class RoleError(Exception):
    """A change of role that is not possible; the message says why."""


class Role:
    """The part that this broker plays now."""

    def __init__(
        self, current: BrokerRole = BrokerRole.ASYNC_MASTER, broker_id: int = MASTER_ID
    ) -> None:
        self.current = current
        self.broker_id = broker_id
        #: Called after each change.
        self.listeners: list[Callable[[], None]] = []

    @property
    def is_replica(self) -> bool:
        """Whether the broker only follows a master."""
        return self.current is BrokerRole.SLAVE

    def change(self, role: BrokerRole, broker_id: int) -> None:
        """Take another role, then call the listeners. Raises ValueError for an impossible id."""
        if (role is BrokerRole.SLAVE) != (broker_id > MASTER_ID) or broker_id < MASTER_ID:
            raise ValueError(f"a {role.name} cannot have the broker id {broker_id}")
        if (role, broker_id) == (self.current, self.broker_id):
            return
        logger.info(
            "role changed from %s with id %d to %s with id %d",
            self.current.name,
            self.broker_id,
            role.name,
            broker_id,
        )
        self.current, self.broker_id = role, broker_id
        for listener in self.listeners:
            listener()

    def __repr__(self) -> str:
        return f"Role({self.current.name}, {self.broker_id})"
