"""Plans of pulls: the checked part that a consumer's pulls of one queue share.

A consumer repeats its pulls with nothing but the offsets changed. The other header fields are the
key to a `PullPlan`, which is checked once and reused until topics, groups or subscriptions change.
Checks, codes and their order are those of RocketMQ's PullMessageProcessor.

Called by `handlers.pull` for each request, and by `handlers.waiting_pull` and `handlers.disk_pull`
before they serve a pull that has waited. On the loop.
"""

from __future__ import annotations

import copy
from typing import Final, Protocol, TypeAlias

from pyromq.broker.handlers.pull_filters import PullFilter, PullFilters
from pyromq.broker.parts import BrokerParts
from pyromq.protocol.java.wire_types import INT64, parse_integer
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION, is_readable
from pyromq.protocol.wire import header_json
from pyromq.protocol.wire.bodies import DataVersion, SubscriptionGroupConfig
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError
from pyromq.protocol.wire.headers import PullMessageRequestHeader
from pyromq.remoting.connection import Connection

#: Plans to cache; one whose key is longer than MAX_CACHED_LENGTH characters is not cached.
_MAX_PLANS: Final = 65_536
MAX_CACHED_LENGTH: Final = 1024
#: The header fields of a plan as they were sent, in the order of `pull_fields`.
PlanKey: TypeAlias = tuple[str | None, ...]


class PullPlan:
    """Everything about a pull except its offsets."""

    __slots__ = (
        "consumers",
        "expression_type",
        "group",
        "group_config",
        "groups",
        "is_checked",
        "max_bytes",
        "max_count",
        "message_filter",
        "queue_id",
        "sub_version",
        "subscription",
        "suspend_ms",
        "sys_flag",
        "topic",
        "topics",
    )

    #: Set once the checks have passed, as are the following.
    is_checked: bool
    group_config: SubscriptionGroupConfig
    message_filter: PullFilter | None
    #: Versions of the tables that the plan was checked against.
    topics: DataVersion
    groups: DataVersion
    consumers: int

    def __init__(self, header: PullMessageRequestHeader, max_bytes: int) -> None:
        self.group = header.consumer_group
        self.topic = header.topic
        self.queue_id = header.queue_id
        self.max_count = header.max_msg_nums
        self.sys_flag = header.sys_flag
        self.suspend_ms = header.suspend_timeout_millis
        self.sub_version = header.sub_version
        # Without the flag the expression is ignored, and it may be of any length: drop it.
        brings_subscription = header.sys_flag & PULL_SUBSCRIPTION
        self.subscription = header.subscription if brings_subscription else None
        self.expression_type = header.expression_type if brings_subscription else None
        #: 0 means the usual limits of a pull.
        self.max_bytes = max_bytes

    @property
    def reads_records(self) -> bool:
        """Whether the filter reads records (SQL92), which takes time."""
        return self.message_filter is not None and self.message_filter.reads_records

    def without_filter(self) -> PullPlan:
        """Return an unchecked copy without the compiled filter."""
        plan = copy.copy(self)
        plan.message_filter = None
        plan.is_checked = False
        return plan


class Pull:
    """One pull: its offsets and its plan."""

    __slots__ = ("commit_offset", "offset", "plan")

    def __init__(self, plan: PullPlan, offset: int, commit_offset: int) -> None:
        self.plan = plan
        self.offset = offset
        self.commit_offset = commit_offset


class PlanUser(Protocol):
    """Serves pulls with cached plans by itself."""

    def add(self, key: PlanKey, plan: PullPlan) -> None:
        """Use a plan that is cached now."""

    def clear(self) -> None:
        """Stop using all plans."""


class PullPlans:
    """The plans of a broker's consumers."""

    def __init__(self, parts: BrokerParts, plain: PlanUser | None = None) -> None:
        tables = parts.tables
        self._config = parts.config
        self._role = parts.role
        self._topics = tables.topics
        self._groups = tables.groups
        self._consumers = tables.consumers
        self._filters = PullFilters(
            parts.config, tables.consumers, tables.filters, parts.long_poll.turns
        )
        self._plans: dict[PlanKey, PullPlan] = {}
        self._plain = plain

    def clear(self) -> None:
        """Drop all plans, so that the next pulls are checked again."""
        self._plans.clear()
        if self._plain is not None:
            self._plain.clear()

    def pull_of(self, connection: Connection, ext: dict[str, str]) -> Pull:
        """Return the checked pull of a header.

        Raises RequestError or ValueError, and whatever else a malformed header causes.
        """
        try:
            key = (
                ext["consumerGroup"],
                ext["topic"],
                ext["queueId"],
                ext["maxMsgNums"],
                ext["sysFlag"],
                ext["suspendTimeoutMillis"],
                ext["subVersion"],
                ext.get("subscription"),
                ext.get("expressionType"),
                ext.get("maxMsgBytes"),
            )
            plan = self._plans.get(key)
            if plan is not None and self._is_current(plan):
                return Pull(
                    plan,
                    parse_integer(ext["queueOffset"], INT64),
                    parse_integer(ext["commitOffset"], INT64),
                )
        except (KeyError, TypeError, ValueError):
            key = None  # fall through: the typed header reports the error or accepts the form
        header = PullMessageRequestHeader.decode(header_json.text_fields(ext))
        plan = PullPlan(header, min(header.max_msg_bytes or 0, self._config.bulk_pull_max_bytes))
        self._check(connection, plan)
        if key is not None and not plan.reads_records and _is_short(key):
            if len(self._plans) >= _MAX_PLANS:
                self.clear()
            self._plans[key] = plan
            if self._plain is not None:
                self._plain.add(key, plan)
        return Pull(plan, header.queue_offset, header.commit_offset)

    def recheck(self, connection: Connection, pull: Pull) -> None:
        """Check a pull that has waited. Raises RequestError or ValueError.

        Other pulls may share its plan, so a changed one is a copy.
        """
        plan = pull.plan
        if not plan.is_checked or not self._is_current(plan) or plan.reads_records:
            plan = copy.copy(plan)
            self._check(connection, plan)
            pull.plan = plan

    def _is_current(self, plan: PullPlan) -> bool:
        """Return whether the tables are those that a plan was checked against."""
        return (
            plan.topics is self._topics.data_version
            and plan.groups is self._groups.data_version
            and plan.consumers == self._consumers.version
        )

    def _check(self, connection: Connection, plan: PullPlan) -> None:
        """Make RocketMQ's checks in RocketMQ's order. Raises RequestError."""
        config = self._config
        if not is_readable(config.broker_permission):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] pulling message is forbidden",
            )
        group = self._groups.find(plan.group, may_create=not self._role.is_replica)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{plan.group}] does not exist",
            )
        if not group.consume_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {plan.group}",
            )
        topic = self._topics.get(plan.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{plan.topic}] not exist, apply first please!",
            )
        if not is_readable(topic.perm):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{plan.topic}] pulling message is forbidden",
            )
        if not 0 <= plan.queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{plan.queue_id}] is illegal, topic:[{plan.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{connection.remote_address}]",
            )
        plan.is_checked = True
        plan.group_config = group
        plan.topics = self._topics.data_version
        plan.groups = self._groups.data_version
        plan.consumers = self._consumers.version
        if plan.sys_flag & PULL_SUBSCRIPTION:
            plan.message_filter = self._filters.of_pull(
                plan.topic, plan.expression_type, plan.subscription
            )
        else:
            plan.message_filter = self._filters.of_group(plan.topic, group, plan.sub_version)


def _is_short(key: PlanKey) -> bool:
    # Some clients send numbers unquoted.
    return sum(len(text) for text in key if isinstance(text, str)) <= MAX_CACHED_LENGTH
