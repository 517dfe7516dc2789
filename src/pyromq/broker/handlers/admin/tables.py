"""Whole tables of the broker: GET_ALL_*, for replicas and for administrators.

GET_ALL_TOPIC_CONFIG, GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GET_ALL_CONSUMER_OFFSET and
GET_ALL_DELAY_OFFSET, in the form in which RocketMQ's replicas read them;
GET_ALL_CONSUMER_FILTER and GET_ALL_TOPIC_DELETION for pyromq's own. Every replica sends all of them
every ten seconds, on either port (RocketMQ's asks for the topics on the fast one).

A body is a snapshot, encoded on the admin lane, once for all concurrent requests. One that exceeds
a frame is refused with the reason; RocketMQ's broker would send it, and its replica would close the
connection and try again for ever. Replicas of pyromq ask for compression
(`protocol.wire.large_bodies`).

Handlers run on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from pyromq.acl import classification as access
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.flow_control import Lane, SharedBody
from pyromq.broker.state.connections import ClientConnection
from pyromq.broker.state.persistence import Snapshot
from pyromq.protocol.wire import large_bodies
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand

_Encoder = Callable[[], bytes]


class TableHandlers:
    """Returns whole tables."""

    def __init__(self, parts: BrokerParts) -> None:
        tables, lane = parts.tables, parts.lanes.admin
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets

        def snapshot(table: Callable[[], Snapshot]) -> Callable[[], _Encoder]:
            return lambda: table().encode

        self._tables = {
            RequestCode.GET_ALL_TOPIC_CONFIG: _Table(
                "the table of topics",
                lane,
                lambda: partial(topics.json.table, topics.snapshot()),
                lambda: topics.data_version,
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _Table(
                "the table of consumer groups",
                lane,
                snapshot(groups.snapshot),
                lambda: groups.data_version,
            ),
            RequestCode.GET_ALL_CONSUMER_OFFSET: _Table(
                "the table of consumer offsets",
                lane,
                snapshot(offsets.snapshot),
                lambda: offsets.version,
            ),
            RequestCode.GET_ALL_DELAY_OFFSET: _Table(
                "the table of delay levels", lane, snapshot(tables.delay_offsets.table)
            ),
            RequestCode.GET_ALL_CONSUMER_FILTER: _Table(
                "the table of SQL92 filters", lane, snapshot(tables.filters.snapshot)
            ),
            RequestCode.GET_ALL_TOPIC_DELETION: _Table(
                "the table of deleted topics", lane, snapshot(tables.deleted_topics.snapshot)
            ),
        }

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            *(Route(code, access.PEER, self.get_all, is_query=True) for code in self._tables)
        )

    async def get_all(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """Return a whole table, compressed if the request says so."""
        table = self._tables[RequestCode(request.code)]
        is_compressed = large_bodies.accepts_compression(request.ext_fields)
        body = await (table.compressed if is_compressed else table.plain).get()
        return request.answer(
            ext_fields=dict(large_bodies.COMPRESSION) if is_compressed else {},
            body=large_bodies.fitting(body, table.name),
        )


class _Table:
    """One table in both forms."""

    def __init__(
        self,
        name: str,
        lane: Lane,
        take: Callable[[], _Encoder],
        version: Callable[[], object] | None = None,
    ) -> None:
        """`take` returns the encoder of a snapshot; `version` see `SharedBody`."""
        self.name = name

        def encode() -> Coroutine[Any, Any, bytes]:
            return lane.run(take())

        def compress() -> Coroutine[Any, Any, bytes]:
            encoder = take()
            return lane.run(lambda: large_bodies.compressed(encoder()))

        self.plain = SharedBody(encode, version)
        self.compressed = SharedBody(compress, version)
