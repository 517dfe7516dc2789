"""QUERY_MESSAGE and VIEW_MESSAGE_BY_ID: find messages by key, or one by its physical offset.

The messages of a key are scattered over index and log, possibly on disk, so the query lane collects
them and a slow query never delays a send. If they exceed one frame, the response has the newest;
RocketMQ's would break the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from pyromq.acl import classification as access
from pyromq.base.sizes import KIB
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.flow_control import Lane
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import MAX_FRAME, RemotingCommand, RequestError
from pyromq.protocol.wire.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from pyromq.remoting.connection import Connection
from pyromq.store.message_store import MessageStore

#: Set by clients that query a unique key; maxNum does not apply then.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
#: Leaves room for the header in the frame.
_MAX_BODY: Final = MAX_FRAME - 64 * KIB


class QueryHandlers:
    """Finds messages by key or physical offset."""

    def __init__(self, store: MessageStore, lane: Lane) -> None:
        self._store = store
        self._lane = lane

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.QUERY_MESSAGE, access.QUERY_TOPIC, self.query_message, is_query=True),
            Route(RequestCode.VIEW_MESSAGE_BY_ID, access.VIEW, self.view_message, is_query=True),
        )

    async def query_message(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """QUERY_MESSAGE: return the records of a key, oldest first."""
        header = QueryMessageRequestHeader.decode(request.ext_fields)
        max_num = header.max_num
        if request.ext_fields.get(_UNIQUE_KEY_QUERY) == "true":
            max_num = self._store.config.default_query_max_num
        records = await self._lane.run(
            lambda: self._records(
                header.topic, header.key, max_num, header.begin_timestamp, header.end_timestamp
            )
        )
        timestamp, offset = self._store.indexed_to
        found = QueryMessageResponseHeader(timestamp, offset).encode()
        if not records:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                found,
            )
        return request.answer(ext_fields=found, body=b"".join(records))

    def view_message(
        self, _: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """VIEW_MESSAGE_BY_ID: return the record at a physical offset."""
        header = ViewMessageRequestHeader.decode(request.ext_fields)
        self._store.seal()  # the message may be of the same chunk
        if self._store.is_cold(header.offset):
            return self._view_cold_message(request, header.offset)
        return _viewed(request, header.offset, self._store.read_record(header.offset))

    async def _view_cold_message(self, request: RemotingCommand, offset: int) -> RemotingCommand:
        record = await self._lane.run(lambda: self._store.fetch_record(offset))
        return _viewed(request, offset, record)

    def _records(self, topic: str, key: str, max_num: int, begin: int, end: int) -> list[bytes]:
        records: list[bytes] = []
        room = _MAX_BODY
        for offset in sorted(self._store.query(topic, key, max_num, begin, end), reverse=True):
            record = self._store.fetch_record(offset)
            if record is None:
                continue
            room -= len(record)
            if room < 0:
                break
            records.append(record)
        records.reverse()
        return records


def _viewed(request: RemotingCommand, offset: int, record: bytes | None) -> RemotingCommand:
    if record is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
        )
    return request.answer(body=record)
