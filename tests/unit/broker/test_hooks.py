from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from pyromq.acl import classification as access
from pyromq.broker.assembly import assemble
from pyromq.broker.hooks import (
    ConsumeMessageContext,
    Hooks,
    SendMessageContext,
    with_hooks,
)
from pyromq.broker.routes import Route, Routes
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.remoting.connection import Connection
from pyromq.remoting.service import Service
from tests.support.patience import until
from tests.support.requests import pull_request, send_request
from tests.unit.broker.assembled import AssembledBroker, Client, served


@pytest.fixture
async def assembled(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    yield assembled
    await assembled.close()


def connect(assembled: AssembledBroker, hooks: Hooks) -> Client:
    """A client whose requests meet these hooks."""
    service = assemble(dataclasses.replace(assembled.parts, hooks=hooks)).service
    return Client(served(service), ("127.0.0.1", 40404))


class SendLog:
    """Notes what it sees; fails or refuses when told to."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, SendMessageContext]] = []
        self.before: Callable[[SendMessageContext], None] = lambda _: None
        self.after: Callable[[SendMessageContext], None] = lambda _: None

    def before_send(self, context: SendMessageContext) -> None:
        self.before(context)
        self.seen.append(("before", context))

    def after_send(self, context: SendMessageContext) -> None:
        self.after(context)
        self.seen.append(("after", context))


class RpcLog:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, int | None]] = []
        self.refusal: Exception | None = None

    def before_request(self, remote_address: str, request: RemotingCommand) -> None:
        self.seen.append(("before", remote_address, request.code, None))
        if self.refusal is not None:
            raise self.refusal

    def after_response(
        self, remote_address: str, request: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        code = None if response is None else response.code
        self.seen.append(("after", remote_address, request.code, code))


class ConsumeLog:
    def __init__(self) -> None:
        self.seen: list[tuple[str, ConsumeMessageContext]] = []

    def before_consume(self, context: ConsumeMessageContext) -> None:
        self.seen.append(("before", context))

    def after_consume(self, context: ConsumeMessageContext) -> None:
        self.seen.append(("after", context))


def fail(*_: object) -> None:
    raise ZeroDivisionError("a mistake")


async def test_without_hooks_the_table_is_the_same(assembled: AssembledBroker) -> None:
    routes = assembled.assembly.routes

    assert list(with_hooks(routes, Hooks())) == list(routes)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_send_is_seen_before_and_after(
    assembled: AssembledBroker, code: RequestCode
) -> None:
    log = SendLog()
    client = connect(assembled, Hooks(send=[log]))
    assembled.put(b"there is one already", queue_id=1)

    answer = client.ask(send_request(code, b"12345", properties="KEYS\x01k\x02"))

    (before, context), (after, same) = log.seen
    assert (before, after) == ("before", "after")
    assert same is context
    assert (context.producer_group, context.topic, context.body_length) == ("producers", "T", 5)
    assert context.properties == {"KEYS": "k"}
    assert context.born_host == "127.0.0.1:40404"
    assert context.code == answer.code == ResponseCode.SUCCESS
    assert context.message_id == answer.ext_fields["msgId"]
    assert (context.queue_id, context.queue_offset) == (1, 1)


async def test_a_send_hook_refuses(assembled: AssembledBroker) -> None:
    log = SendLog()

    def refuse(_: SendMessageContext) -> None:
        raise RequestError(ResponseCode.NO_PERMISSION, "not today")

    log.before = refuse
    client = connect(assembled, Hooks(send=[log]))

    answer = client.ask(send_request())

    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not today")
    assert assembled.records() == []


async def test_changed_properties_are_stored(assembled: AssembledBroker) -> None:
    log = SendLog()
    log.before = lambda context: context.properties.update(more="grüße")
    client = connect(assembled, Hooks(send=[log]))

    assert client.ask(send_request(properties="KEYS\x01k\x02")).code == ResponseCode.SUCCESS

    (record,) = assembled.records()
    assert record.properties["KEYS"] == "k"
    assert record.properties["more"] == "grüße"


async def test_a_refused_send_is_seen_with_its_code(assembled: AssembledBroker) -> None:
    log = SendLog()
    client = connect(assembled, Hooks(send=[log]))

    client.ask(send_request(topic="bad topic"))

    _, context = log.seen[-1]
    assert context.code == ResponseCode.SYSTEM_ERROR
    assert context.remark
    assert context.message_id is None


async def test_a_header_that_cannot_be_read_meets_no_send_hook(assembled: AssembledBroker) -> None:
    log = SendLog()
    client = connect(assembled, Hooks(send=[log]))

    answer = client.ask(send_request(queueId="one"))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert log.seen == []


async def test_a_hook_that_fails_changes_nothing(
    assembled: AssembledBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broken, log = SendLog(), SendLog()
    broken.before = broken.after = fail
    client = connect(assembled, Hooks(send=[broken, log]))

    with caplog.at_level(logging.ERROR):
        answer = client.ask(send_request())

    assert answer.code == ResponseCode.SUCCESS
    assert [when for when, _ in log.seen] == ["before", "after"]
    assert caplog.text.count("ZeroDivisionError: a mistake") == 2
    assert "SendLog.before_send" in caplog.text


async def test_every_request_meets_the_rpc_hooks_once(assembled: AssembledBroker) -> None:
    log = RpcLog()
    client = connect(assembled, Hooks(rpc=[log]))

    client.exchange(
        send_request(topic="New"),
        send_request(topic="New"),
        pull_request(topic="New", queueId="1"),
        RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": "7777"}),
    )
    address = "127.0.0.1:40404"
    assert log.seen == [
        (when, address, code, answer if when == "after" else None)
        for code, answer in (
            (RequestCode.SEND_MESSAGE_V2, 0),
            (RequestCode.SEND_MESSAGE_V2, 0),
            (RequestCode.PULL_MESSAGE, 0),
            (RequestCode.VIEW_MESSAGE_BY_ID, ResponseCode.SYSTEM_ERROR),
        )
        for when in ("before", "after")
    ]


async def test_an_answer_that_comes_later_is_seen_then(assembled: AssembledBroker) -> None:
    log = RpcLog()
    client = connect(assembled, Hooks(rpc=[log]))
    fields = {
        "topic": "T",
        "key": "k",
        "maxNum": "1",
        "beginTimestamp": "0",
        "endTimestamp": "1",
    }

    assert client.exchange(RemotingCommand(RequestCode.QUERY_MESSAGE, ext_fields=fields)) == []
    await until(lambda: len(log.seen) == 2)

    assert log.seen[1][3] == ResponseCode.QUERY_NOT_FOUND


async def test_a_pull_that_waits_has_no_answer_yet(assembled: AssembledBroker) -> None:
    assembled.put(b"first")
    log = RpcLog()
    client = connect(assembled, Hooks(rpc=[log]))

    assert client.exchange(pull_request(queueOffset="1", sysFlag="6")) == []

    assert log.seen[-1][3] is None
    assembled.put(b"second")
    await until(lambda: client.transport.written)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (RequestError(ResponseCode.NO_PERMISSION, "no"), ResponseCode.NO_PERMISSION),
        (ZeroDivisionError("no"), ResponseCode.SYSTEM_ERROR),
    ],
)
@pytest.mark.parametrize("request_", [send_request(), pull_request()], ids=["send", "pull"])
async def test_whatever_a_guard_raises_refuses(
    assembled: AssembledBroker, refusal: Exception, code: ResponseCode, request_: RemotingCommand
) -> None:
    log = RpcLog()
    log.refusal = refusal
    client = connect(assembled, Hooks(rpc=[log]))

    answer = client.ask(request_)

    assert answer.code == code
    assert "no" in (answer.remark or "")
    assert log.seen[-1][3] == code
    assert assembled.records() == []


async def test_a_refused_oneway_request_is_not_answered(assembled: AssembledBroker) -> None:
    log = RpcLog()
    log.refusal = RequestError(ResponseCode.NO_PERMISSION, "no")
    client = connect(assembled, Hooks(rpc=[log]))

    assert client.exchange(pull_request(oneway=True), send_request(oneway=True)) == []


async def test_what_a_consumer_gets_is_seen(assembled: AssembledBroker) -> None:
    log = ConsumeLog()
    client = connect(assembled, Hooks(consume=[log]))
    assembled.put(b"a", b"b", b"c")

    client.ask(pull_request())
    client.ask(pull_request(queueOffset="3"))  # finds nothing

    ((when, context),) = log.seen
    assert when == "before"
    assert (context.consumer_group, context.topic, context.queue_id) == ("consumers", "T", 0)
    assert (context.message_count, context.next_offset) == (3, 3)
    assert context.body_length > 0


async def test_what_a_consumer_sends_back_is_seen() -> None:
    log = ConsumeLog()
    handled: list[RemotingCommand] = []

    def send_back(_: Connection, request: RemotingCommand) -> Awaitable[None] | None:
        handled.append(request)
        return None

    code = RequestCode.CONSUMER_SEND_MSG_BACK
    routes = with_hooks(Routes(Route(code, access.ADMIN, send_back)), Hooks(consume=[log]))
    client = Client(served(Service(routes.plain)), ("127.0.0.1", 40404))
    fields = {
        "offset": "1",
        "group": "G",
        "delayLevel": "0",
        "originMsgId": "ID",
        "originTopic": "T",
    }

    client.exchange(RemotingCommand(code, ext_fields=fields))
    client.exchange(RemotingCommand(code, ext_fields={}))  # the handler says what is wrong

    ((when, context),) = log.seen
    assert when == "after"
    assert (context.consumer_group, context.topic, context.message_id, context.client_host) == (
        "G",
        "T",
        "ID",
        "127.0.0.1:40404",
    )
    assert len(handled) == 2
