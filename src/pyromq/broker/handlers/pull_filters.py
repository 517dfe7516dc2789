"""Filters of pulls, from the pull's own subscription or from the heartbeats of its group.

Tag filters match the tags code in the consume queue. SQL92 filters read the properties of records
(`protocol.filter.by_properties`) and need `enablePropertyFilter`. Codes and their order are those
of RocketMQ's PullMessageProcessor, with one difference: a pull with an expression that does not
compile, or of an unknown type, is refused with the cause; Java delivers every message. Tag
expressions have the length limit of SQL92 expressions, because waiting pulls keep them in memory.

Called by `handlers.pull_plans`, on the loop.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

from pyromq.base.memo import Memo
from pyromq.base.sizes import MIB
from pyromq.broker.config import BrokerConfig
from pyromq.broker.services.turns import Turns
from pyromq.broker.state.connections import ConsumerTable
from pyromq.broker.state.filters import ConsumerFilterTable, compile_expression
from pyromq.protocol.filter.by_properties import PropertyFilter, RetryFilter
from pyromq.protocol.filter.sql import MAX_LENGTH, SQL92_EXPRESSION_TYPE, SqlError
from pyromq.protocol.filter.tags import SubscriptionError, TagFilter, is_tag_type
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import MessageModel, SubscriptionData, SubscriptionGroupConfig
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError

#: Total characters of cached SQL92 expressions; each takes up to 70 bytes when compiled.
_MAX_COMPILED_LENGTH: Final = MIB

PullFilter = TagFilter | PropertyFilter | RetryFilter


class PullFilters:
    """Finds or builds the filter of each pull, and caches compiled expressions."""

    def __init__(
        self,
        config: BrokerConfig,
        consumers: ConsumerTable,
        filters: ConsumerFilterTable,
        turns: Turns,
    ) -> None:
        self._config = config
        self._turns = turns
        self._consumers = consumers
        self._filters = filters
        self._by_tags: Memo[str, TagFilter | None] = Memo(TagFilter.of)
        #: Compiled expressions, least recently used first.
        self._by_sql: dict[str, PropertyFilter] = {}
        self._compiled_length = 0

    def of_pull(
        self, topic: str, expression_type: str | None, subscription: str | None
    ) -> PullFilter | None:
        """Return the filter of a pull that carries its subscription. Raises RequestError."""
        try:
            if is_tag_type(expression_type):
                if len(subscription or "") > MAX_LENGTH:
                    raise SubscriptionError(
                        f"{len(subscription or '')} characters, limit {MAX_LENGTH}"
                    )
                return self._retried(topic, self._by_tags[subscription or ""])
            self._refuse_unless_enabled(expression_type)
            return self._of_sql(expression_type or "", subscription or "")
        except (SubscriptionError, SqlError) as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from error

    def of_group(
        self, topic: str, group: SubscriptionGroupConfig, version: int
    ) -> PullFilter | None:
        """Return the filter from the heartbeats of a group. Raises RequestError."""
        subscription = self._subscription(topic, group, version)
        if is_tag_type(subscription.expression_type):
            return self._retried(topic, self._of_tags(subscription))
        consumer = self._filters.find(topic, group.group_name)
        if consumer is None or consumer.message_filter is None:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if consumer.client_version < version:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        self._refuse_unless_enabled(subscription.expression_type)
        return None if subscription.class_filter_mode else consumer.message_filter

    def _subscription(
        self, topic: str, group: SubscriptionGroupConfig, version: int
    ) -> SubscriptionData:
        members = self._consumers.find(group.group_name)
        if members is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if (
            not group.consume_broadcast_enable
            and members.message_model is MessageModel.BROADCASTING
        ):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group.group_name}] can not consume by broadcast way",
            )
        subscription = members.subscriptions.get(topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if subscription.sub_version < version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return subscription

    def _of_tags(self, subscription: SubscriptionData) -> TagFilter | None:
        if subscription.class_filter_mode:
            return None
        if not subscription.code_set:
            return self._by_tags[subscription.sub_string]
        return TagFilter(subscription.code_set)

    def _of_sql(self, expression_type: str, text: str) -> PropertyFilter:
        by_sql = self._by_sql
        if expression_type == SQL92_EXPRESSION_TYPE and text in by_sql:
            cached = by_sql[text] = by_sql.pop(text)
            return cached
        begun = perf_counter()
        try:
            made = PropertyFilter(compile_expression(expression_type, text))
        finally:
            self._turns.charge(begun)
        by_sql[text] = made
        self._compiled_length += len(text)
        while self._compiled_length > _MAX_COMPILED_LENGTH:
            oldest = next(iter(by_sql))
            del by_sql[oldest]
            self._compiled_length -= len(oldest)
        return made

    def _retried(self, topic: str, tags: TagFilter | None) -> PullFilter | None:
        """Return the filter of a retry topic, which `filterSupportRetry` filters as well."""
        if not self._config.filter_support_retry or not topic.startswith(RETRY_TOPIC_PREFIX):
            return tags
        return RetryFilter(tags, self._filters, topic.removeprefix(RETRY_TOPIC_PREFIX))

    def _refuse_unless_enabled(self, expression_type: str | None) -> None:
        if not self._config.enable_property_filter:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {expression_type}",
            )
