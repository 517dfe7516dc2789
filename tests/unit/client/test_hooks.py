from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pyromq.client.errors import OptionError
from pyromq.client.hooks import (
    Consuming,
    EndingTransaction,
    Hooks,
    Publishing,
    PublishOperation,
    Receiving,
    Sending,
    install,
    uninstall,
)
from pyromq.client.message import Message
from pyromq.client.producer.producer import Producer
from pyromq.client.results import TransactionState
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingError
from tests.support.patience import until
from tests.unit.client.fake_cluster import running_cluster

QUEUE = MessageQueue("t", "b0", 0)


class Both:
    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def before_send(self, sending: Sending) -> None:
        self.told.append(("before_send", sending))

    def after_send(self, sending: Sending) -> None:
        self.told.append(("after_send", sending))

    def before_consume(self, consuming: Consuming) -> None:
        self.told.append(("before_consume", consuming))

    def after_consume(self, consuming: Consuming) -> None:
        self.told.append(("after_consume", consuming))


class Broken:
    def before_send(self, sending: Sending) -> None:
        raise RuntimeError(f"no {sending.group}")

    def after_send(self, sending: Sending) -> None:
        raise RuntimeError


def test_each_hook_gets_the_calls_it_has_methods_for(caplog: pytest.LogCaptureFixture) -> None:
    hook = Both()
    hooks = Hooks([Broken(), hook])
    sending = Sending("g", "", [Message("t", b"x")], ["K"], QUEUE, "a:1")
    consuming = Consuming("g", "", [], QUEUE)
    hooks.before_send(sending)
    hooks.after_send(sending)
    hooks.before_consume(consuming)
    hooks.after_consume(consuming)
    assert hook.told == [
        ("before_send", sending),
        ("after_send", sending),
        ("before_consume", consuming),
        ("after_consume", consuming),
    ]
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 2


def test_a_hook_may_be_for_transactions_only() -> None:
    told: list[EndingTransaction] = []

    class Ends:
        def end_transaction(self, ending: EndingTransaction) -> None:
            told.append(ending)

    hooks = Hooks([Ends()])
    assert not hooks.send
    message = Message("t", b"x")
    ending = EndingTransaction("g", "", message, "K", "K", TransactionState.COMMIT, "a:1")
    hooks.end_transaction(ending)
    assert told == [ending]


def test_the_last_publish_hook_ends_first() -> None:
    told: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def before_publish(self, publishing: Publishing) -> None:
            told.append(f"{self.name} before")

        def after_publish(self, publishing: Publishing) -> None:
            told.append(f"{self.name} after")

    hooks = Hooks([Named("a"), Named("b")])
    publishing = Publishing(PublishOperation.SEND, "g", "", [Message("t", b"x")])
    hooks.before_publish(publishing)
    hooks.after_publish(publishing)
    assert told == ["a before", "b before", "b after", "a after"]


def test_an_installed_hook_is_in_every_client_from_then_on() -> None:
    told: list[Receiving] = []

    class Receives:
        def after_receive(self, receiving: Receiving) -> None:
            told.append(receiving)

    before, hook = Hooks(), Receives()
    install(hook)
    try:
        receiving = Receiving("g", "", [], QUEUE, 0.0)
        Hooks().after_receive(receiving)
        assert told == [receiving]
        assert before.receive == []
    finally:
        uninstall(hook)
    assert Hooks().receive == []
    with pytest.raises(OptionError, match="is not a hook"):
        install(object())  # type: ignore[arg-type]
    assert Hooks().receive == []


def test_objects_without_hook_methods_are_refused() -> None:
    with pytest.raises(OptionError, match="is not a hook"):
        Hooks([object()])  # type: ignore[list-item]


async def test_a_producers_hooks_see_every_attempt() -> None:
    hook = Both()
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, group="g", hooks=[hook]) as producer,
    ):
        cluster.brokers[0].refusals[RequestCode.SEND_MESSAGE_V2] = [
            (ResponseCode.SYSTEM_BUSY, "busy")
        ]
        message = Message("t", b"x")
        result = await producer.send(message)
        await producer.send_oneway(message)
    sendings = [what for how, what in hook.told if how == "after_send"]
    assert [how for how, _ in hook.told] == ["before_send", "after_send"] * 3
    refused, stored, oneway = (one for one in sendings if isinstance(one, Sending))
    assert (refused.result, "busy" in str(refused.error)) == (None, True)
    assert (stored.result, stored.error, stored.msg_ids) == (result, None, [result.msg_id])
    assert (stored.messages, stored.queue, stored.group) == ((message,), result.queue, "g")
    assert oneway.is_oneway
    assert oneway.result is None


async def test_a_producers_hooks_see_every_outcome() -> None:
    hook = Both()
    async with (
        running_cluster({"t": {"b1": 1}}, brokers=2) as cluster,
        Producer(cluster.namesrv, hooks=[hook], retries=0) as producer,
    ):
        await producer.queues("t")
        broker = cluster.brokers[1]
        is_asked, never = asyncio.Event(), asyncio.Event()

        async def hang(request: RemotingCommand, _writer: object) -> RemotingCommand:
            is_asked.set()
            await never.wait()
            return request.answer()

        broker._send_message_v2 = hang  # type: ignore[assignment, method-assign]
        send = asyncio.create_task(producer.send(Message("t", b"x")))
        await is_asked.wait()
        send.cancel()
        await asyncio.gather(send, return_exceptions=True)
        never.set()
        await broker.stop()
        await until(lambda: producer._session.remoting.ready(broker.address) is None)
        with pytest.raises(RemotingError):
            await producer.send_oneway(Message("t", b"x"))
        assert [name for name, _ in hook.told] == ["before_send", "after_send"] * 2
        errors = [told.error for _, told in hook.told]
        assert isinstance(errors[1], asyncio.CancelledError)
        assert isinstance(errors[3], RemotingError)
