"""QUERY_CONSUME_QUEUE: return entries of a consume queue, matched by a filter.

`mqadmin queryCq` shows them. As in RocketMQ, only entries with a unit in the consume-queue
extension are evaluated (`eval`): by tags, or by the bit map.

Entries are read on the loop, units of the extension, which are immutable, on the admin lane.
"""

from __future__ import annotations

import base64
from typing import Final

import orjson

from pyromq.acl import classification as access
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.flow_control import Lane
from pyromq.broker.state.connections import ClientConnection, ConsumerTable
from pyromq.broker.state.filters import ConsumerFilter, ConsumerFilterData, ConsumerFilterTable
from pyromq.protocol.filter.tags import SUBSCRIBE_ALL, TagFilter, is_tag_type
from pyromq.protocol.wire.bodies import SubscriptionData
from pyromq.protocol.wire.bodies_admin import ConsumeQueueData, QueryConsumeQueueResponseBody
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import QueryConsumeQueueRequestHeader
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import ConsumeQueue, iter_entries
from pyromq.store.queues.extension import ExtensionUnit, is_address

#: Entries per response.
_MAX_ENTRIES: Final = 10_000


class QueueEntryHandlers:
    """Shows entries of consume queues."""

    def __init__(
        self,
        store: MessageStore,
        consumers: ConsumerTable,
        filters: ConsumerFilterTable,
        lane: Lane,
    ) -> None:
        self._store = store
        self._consumers = consumers
        self._filters = filters
        self._lane = lane

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.QUERY_CONSUME_QUEUE,
                access.ADMIN,
                self.query_consume_queue,
                is_query=True,
            ),
        )

    async def query_consume_queue(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """QUERY_CONSUME_QUEUE: return entries of a queue."""
        header = QueryConsumeQueueRequestHeader.decode(request.ext_fields)
        topic = header.topic or ""
        self._store.seal()
        queue = self._store.find_queue(topic, header.queue_id)
        if queue is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{topic} is not exist!"
            )
        body = QueryConsumeQueueResponseBody(
            max_queue_index=queue.next_offset, min_queue_index=queue.min_offset
        )
        consumer = None
        if header.consumer_group is not None:
            body.subscription_data = self._consumers.subscription(header.consumer_group, topic)
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                consumer = self._filters.find(topic, header.consumer_group)
                body.filter_data = _filter_data(consumer)
        if not queue.min_offset <= header.index < queue.next_offset:
            remark = f"Index {header.index} of {header.queue_id}@{topic} is not exist!"
            return request.answer(remark=remark)
        entries = queue.read(header.index, min(max(0, header.count), _MAX_ENTRIES))

        def encoded() -> bytes:
            body.queue_data = [
                _shown(queue, entry, body.subscription_data, consumer)
                for entry in iter_entries(entries)
            ]
            return body.encode()

        return request.answer(body=await self._lane.run(encoded))


def _filter_data(consumer: ConsumerFilter | None) -> str:
    if consumer is None:
        return "null"
    return orjson.dumps(
        ConsumerFilterData.of(consumer).to_value(), option=orjson.OPT_INDENT_2
    ).decode()


def _shown(
    queue: ConsumeQueue,
    entry: tuple[int, int, int],
    subscription: SubscriptionData | None,
    consumer: ConsumerFilter | None,
) -> ConsumeQueueData:
    physical, size, tags_code = entry
    shown = ConsumeQueueData(physical, size, tags_code)
    if not is_address(tags_code):
        return shown
    unit = queue.extension.get(tags_code) if queue.extension is not None else None
    if unit is None:
        shown.msg = f"Cq extend not exist!addr: {tags_code}"
        return shown
    shown.extend_data_json = _unit_as_json(unit)
    if unit.bit_map:
        shown.bit_map = _bits(unit.bit_map)
    if subscription is not None:
        shown.eval = _is_wanted(unit, subscription, consumer)
    return shown


def _unit_as_json(unit: ExtensionUnit) -> str:
    values: dict[str, object] = {
        "msgStoreTime": unit.store_timestamp,
        "size": unit.size,
        "tagsCode": unit.tags_code,
    }
    if unit.bit_map:
        values["filterBitMap"] = base64.b64encode(unit.bit_map).decode()
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()


def _bits(bit_map: bytes) -> str:
    """Return the bits from the last one on, eight bytes to a line, as RocketMQ shows them."""
    shown = []
    for number in range(len(bit_map) - 1, -1, -1):
        shown.append(f"{bit_map[number]:08b}")
        if number % 8 == 0:
            shown.append("\n")
    return "".join(shown)


def _is_wanted(
    unit: ExtensionUnit, subscription: SubscriptionData, consumer: ConsumerFilter | None
) -> bool:
    if subscription.class_filter_mode:
        return True
    if is_tag_type(subscription.expression_type):
        if subscription.sub_string == SUBSCRIBE_ALL:
            return True
        return unit.tags_code in TagFilter(subscription.code_set).codes
    wanted = consumer.message_filter if consumer is not None else None
    return wanted is None or not wanted.rules_out(unit.store_timestamp, unit.bit_map)
