from __future__ import annotations

import re
from unittest.mock import create_autospec

import pytest

from pyromq.acl import classification as access
from pyromq.broker.config import BrokerConfig
from pyromq.broker.routes import (
    Body,
    FrameTaker,
    Pool,
    Route,
    Routes,
    SlowPath,
    build_routes,
    chained,
    fast,
    runs,
    with_body_limits,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    Encoding,
    RawFrame,
    RemotingCommand,
    RequestError,
    split_frames,
)
from pyromq.remoting.connection import Connection
from pyromq.remoting.service import Service
from tests.support.requests import raw_frame, send_request
from tests.unit.broker.assembled import Client, served

SEND, QUERY, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.QUERY_MESSAGE, RequestCode.PULL_MESSAGE


def answer(_: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(body=request.body)


def ignore(_: Connection, __: list[RawFrame], ___: list[bytes]) -> None:
    """Serve nothing."""


class Family:
    def __init__(self, *routes: Route) -> None:
        self._routes = Routes(*routes)

    def routes(self) -> Routes:
        return self._routes


def test_families_are_merged() -> None:
    routes = build_routes(
        [
            Family(Route(SEND, access.ADMIN, answer, hot=runs(ignore), pool=Pool.SEND)),
            Family(
                Route(QUERY, access.ADMIN, answer, is_query=True),
                Route(PULL, access.ADMIN, hot=runs(ignore), pool=Pool.PULL, max_run=8),
            ),
        ]
    )

    assert len(routes) == 3
    assert routes[QUERY].is_query
    assert routes.plain == {SEND: answer, QUERY: answer}
    assert routes.hot == {SEND: ignore, PULL: ignore}
    assert routes.queries == {QUERY}
    assert routes.max_runs == {PULL: 8}
    assert routes.pools == {SEND: Pool.SEND, PULL: Pool.PULL}


def test_a_code_with_two_routes_is_refused() -> None:
    with pytest.raises(ValueError, match="QUERY_MESSAGE has two routes"):
        build_routes(
            [Family(Route(QUERY, access.ADMIN, answer)), Family(Route(QUERY, access.ADMIN, answer))]
        )


async def test_a_fast_handler_leaves_frames_to_the_slow_path() -> None:
    def send(
        slow: SlowPath, connection: Connection, frames: list[RawFrame], answers: list[bytes]
    ) -> None:
        for frame in frames:
            slow(connection, frame, answers)

    async def later(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer()

    def refuse(_: Connection, request: RemotingCommand) -> RemotingCommand:
        if request.body == b"refuse":
            raise RequestError(ResponseCode.NO_PERMISSION, "no")
        return request.answer()

    for handler, codes in (
        (answer, [ResponseCode.SUCCESS] * 2),
        (refuse, [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]),
        (later, []),
    ):
        routes = Routes(Route(SEND, access.ADMIN, handler, hot=fast(send)))
        client = Client(served(Service({}, hot_handlers=routes.hot)), ("127.0.0.1", 40404))
        answers = client.exchange(
            send_request(), send_request(oneway=True), send_request(body=b"refuse")
        )
        assert [each.code for each in answers] == codes


def test_bodies_that_are_not_messages_are_limited() -> None:
    config = BrokerConfig(
        broker_ip1="127.0.0.1",
        broker_ip2="127.0.0.1",
        max_request_body_size=10,
        max_heartbeat_body_size=20,
    )
    routes = Routes(
        Route(SEND, access.ADMIN, answer, hot=runs(ignore), body=Body.MESSAGES),
        Route(QUERY, access.ADMIN, answer),
        Route(RequestCode.HEART_BEAT, access.ADMIN, answer, body=Body.CLIENT_DATA),
        Route(PULL, access.ADMIN, hot=runs(ignore)),
    )
    limited = with_body_limits(routes, config)

    assert limited.hot == routes.hot
    assert limited.plain[SEND] is answer
    connection = create_autospec(Connection, instance=True)
    for code, limit, key in (
        (QUERY, 10, "maxRequestBodySize"),
        (RequestCode.HEART_BEAT, 20, "maxHeartbeatBodySize"),
    ):
        handler = limited.plain[code]
        whole = RemotingCommand(code, body=b"x" * limit)
        served_answer = handler(connection, whole)
        assert isinstance(served_answer, RemotingCommand)
        assert served_answer.body == whole.body
        fault = f"body of request {code} has {limit + 1} bytes, limit {limit} ({key})"
        with pytest.raises(RequestError, match=re.escape(fault)):
            handler(connection, RemotingCommand(code, body=b"x" * (limit + 1)))


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_chunk_goes_to_the_taker_of_each_frame(encoding: Encoding) -> None:
    calls: list[tuple[int, int]] = []

    def taker(code: RequestCode) -> FrameTaker:
        def take(_: Connection, chunk: bytes, position: int, answers: list[bytes]) -> int:
            """Serve one frame of a code, wherever its header has it."""
            calls.append((code, position))
            frames, end, _error = split_frames(chunk, position=position, max_count=1)
            if not frames or frames[0][1]["code"] != code:
                return position
            answers.append(b"%d" % code)
            return end

        return FrameTaker([code], take)

    take_all = chained([taker(SEND), taker(PULL)])
    assert take_all is not None
    connection = create_autospec(Connection, instance=True)
    send, pull, query = (
        RemotingCommand(code, encoding=encoding).encode() for code in (SEND, PULL, QUERY)
    )
    answers: list[bytes] = []

    assert take_all(connection, pull + send + pull + query + pull, 0, answers) == len(
        pull + send + pull
    )
    assert answers == [b"%d" % code for code in (PULL, SEND, PULL)]
    # The others are asked only about the frame that is nobody's.
    assert [code for code, _ in calls] == [PULL, SEND, PULL, SEND, PULL]

    answers.clear()
    odd = raw_frame(b' {"opaque":1, "code": %d}' % PULL)
    assert take_all(connection, odd + odd, 0, answers) == len(odd + odd)
    assert len(answers) == 2
    assert take_all(connection, b"", 0, answers) == 0
    assert chained([]) is None
