"""Routes: which handler serves which request code, and on what terms.

Each family of handlers declares its own routes, so adding a request is one edit, in its family. The
second argument says what a caller needs for it (`acl.classification`):

    def routes(self) -> Routes:
        return Routes(
            Route(RequestCode.QUERY_MESSAGE, access.QUERY_TOPIC, self.query_message, is_query=True),
            Route(RequestCode.VIEW_MESSAGE_BY_ID, access.VIEW, self.view_message, is_query=True),
        )

`build_routes` merges the families and refuses a code that two of them claim. Decorators
(`with_body_limits`, `hooks.with_hooks`, `flow_control.reject_sends_while`) return changed copies.
`Routes.plain` and `Routes.hot` are the tables that a server gets, see `broker.assembly`. A code
without a route is answered REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from pyromq.acl.classification import Access
from pyromq.broker.config import BrokerConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    PREFIX_SIZE,
    RawFrame,
    RemotingCommand,
    RequestError,
    command_from,
)
from pyromq.remoting.connection import Connection, Handler, HotHandler
from pyromq.remoting.service import Result

#: Serves one frame of a run by the plain handler of its route and appends the response, if any.
SlowPath: TypeAlias = Callable[[Connection, RawFrame, list[bytes]], None]
#: A hot handler that leaves some frames to the slow path.
FastHandler: TypeAlias = Callable[[SlowPath, Connection, list[RawFrame], list[bytes]], None]


@dataclass(frozen=True, eq=False, slots=True)
class FrameTaker:
    """Serves plain requests of some codes from the bytes of a chunk."""

    codes: Collection[RequestCode]
    #: See `Service.take_frames`.
    take: Callable[[Connection, bytes, int, list[bytes]], int]


@dataclass(frozen=True, slots=True)
class HotBuilder:
    """Builds the handler of runs, given the complete slow path with hooks and limits."""

    build: Callable[[SlowPath], HotHandler]
    #: Serves plain requests before they reach the handler. Dropped when the handler is wrapped,
    #: because hooks and guards must see every request.
    taker: FrameTaker | None = None


class Body(enum.Enum):
    """What a request's body holds, and which setting caps it."""

    #: Parameters: `maxRequestBodySize`.
    PARAMETERS = "maxRequestBodySize"
    #: Data of clients with thousands of groups or queues: `maxHeartbeatBodySize`.
    CLIENT_DATA = "maxHeartbeatBodySize"
    #: A message or a batch: `maxMessageSize`, which the store checks.
    MESSAGES = "maxMessageSize"


class Pool(enum.Enum):
    """RocketMQ's thread pools whose requests have a limit on waiting (`services.flow_control`)."""

    SEND = "send"
    PULL = "pull"
    HEARTBEAT = "heartbeat"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class Route:
    """How one request code is served."""

    code: RequestCode
    #: What a caller needs in strict mode; no route is without it.
    access: Access
    #: Serves one request; None for a code that is only served in runs.
    plain: Handler | None = None
    #: Serves runs of requests: `runs(handler)` or `fast(handler)`.
    hot: HotBuilder | None = None
    body: Body = Body.PARAMETERS
    pool: Pool | None = None
    #: Whether the request changes nothing and may be cancelled when its connection is lost.
    is_query: bool = False
    #: Cap on the length of runs, for large responses.
    max_run: int | None = None


def runs(handler: HotHandler, taker: FrameTaker | None = None) -> HotBuilder:
    """Declare a hot handler that serves every frame itself."""
    return HotBuilder(lambda _: handler, taker)


def fast(handler: FastHandler, taker: FrameTaker | None = None) -> HotBuilder:
    """Declare a hot handler that gets the slow path as its first argument."""
    return HotBuilder(lambda slow: partial(handler, slow), taker)


def wrapped(hot: HotBuilder, wrap: Callable[[HotHandler], HotHandler]) -> HotBuilder:
    """Wrap the handler of runs that `hot` will build."""
    return HotBuilder(lambda slow: wrap(hot.build(slow)))


class Routes:
    """Routes by request code: those of a family, or all of a broker."""

    def __init__(self, *routes: Route) -> None:
        """Raise ValueError for a code that occurs twice."""
        self._by_code: dict[int, Route] = {}
        for route in routes:
            if self._by_code.setdefault(route.code, route) is not route:
                raise ValueError(f"request code {route.code.name} has two routes")

    def __iter__(self) -> Iterator[Route]:
        return iter(self._by_code.values())

    def __len__(self) -> int:
        return len(self._by_code)

    def __getitem__(self, code: int) -> Route:
        return self._by_code[code]

    def changed(self, change: Callable[[Route], Route]) -> Routes:
        """Return a copy with `change` applied to every route."""
        return Routes(*map(change, self))

    @property
    def plain(self) -> dict[int, Handler]:
        """Return the handlers of single requests by code."""
        return {route.code: route.plain for route in self if route.plain is not None}

    @property
    def hot(self) -> dict[int, HotHandler]:
        """Return the handlers of runs by code, each with the slow path of its route."""
        return {
            route.code: route.hot.build(_slow_path(route.plain))
            for route in self
            if route.hot is not None
        }

    @property
    def takers(self) -> list[FrameTaker]:
        """Return those of whose codes no handler was wrapped."""
        declared = {
            route.hot.taker: None for route in self if route.hot is not None and route.hot.taker
        }
        return [taker for taker in declared if all(self._has(taker, code) for code in taker.codes)]

    def _has(self, taker: FrameTaker, code: int) -> bool:
        route = self._by_code.get(code)
        return route is not None and route.hot is not None and route.hot.taker is taker

    @property
    def queries(self) -> frozenset[int]:
        """Return the codes of requests that change nothing."""
        return frozenset(route.code for route in self if route.is_query)

    @property
    def max_runs(self) -> dict[int, int]:
        """Return the caps on runs by code."""
        return {route.code: route.max_run for route in self if route.max_run is not None}

    @property
    def pools(self) -> dict[int, Pool]:
        """Return the pools by code."""
        return {route.code: route.pool for route in self if route.pool is not None}


class Family(Protocol):
    """Handlers of related requests."""

    def routes(self) -> Routes:
        """Return the routes of the family."""


def build_routes(families: Iterable[Family]) -> Routes:
    """Merge the routes of all families. Raises ValueError for a code with two routes."""
    return Routes(*(route for family in families for route in family.routes()))


def chained(
    takers: Sequence[FrameTaker],
) -> Callable[[Connection, bytes, int, list[bytes]], int] | None:
    """Return one function that lets each taker serve what it can, or None without takers."""
    if not takers:
        return None
    if len(takers) == 1:
        return takers[0].take
    parts = [(_header_starts(taker.codes), taker.take) for taker in takers]

    def take_all(connection: Connection, chunk: bytes, position: int, answers: list[bytes]) -> int:
        size = len(chunk)
        while position < size:
            start = position
            for header_starts, take in parts:
                if chunk.startswith(header_starts, start + PREFIX_SIZE):
                    position = take(connection, chunk, start, answers)
                    break
            else:  # a code of nobody, or not at the header's start
                for _, take in parts:
                    position = take(connection, chunk, position, answers)
            if position == start:
                break
        return position

    return take_all


def _header_starts(codes: Collection[int]) -> tuple[bytes, ...]:
    """Return how headers with these codes usually begin, in both encodings."""
    return tuple(
        start for code in codes for start in (b'{"code":%d,' % code, code.to_bytes(2, "big"))
    )


def with_body_limits(routes: Routes, config: BrokerConfig) -> Routes:
    """Check the size of every body that is not a message before its handler parses it."""

    def limited(route: Route) -> Route:
        if route.plain is None or route.body is Body.MESSAGES:
            return route
        return dataclasses.replace(route, plain=_limited(route, route.plain, config))

    return routes.changed(limited)


def _slow_path(handler: Handler | None) -> SlowPath:
    def serve_slowly(connection: Connection, frame: RawFrame, answers: list[bytes]) -> None:
        assert handler is not None, "a route with `fast` has a plain handler"
        answer = connection.serve(handler, command_from(frame))
        if answer is not None:
            answers.append(answer.encode())

    return serve_slowly


def _limited(route: Route, handler: Handler, config: BrokerConfig) -> Handler:
    is_client_data = route.body is Body.CLIENT_DATA

    def check_and_handle(connection: Connection, request: RemotingCommand) -> Result:
        limit = config.max_heartbeat_body_size if is_client_data else config.max_request_body_size
        if len(request.body) > limit:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the body of request {route.code} has {len(request.body)} bytes, "
                f"limit {limit} ({route.body.value})",
            )
        return handler(connection, request)

    return check_and_handle
