from __future__ import annotations

import asyncio

import pytest

from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.errors import RemotingClosedError, RemotingTimeoutError
from pyromq.remoting.outgoing import OutgoingRequests
from tests.support.patience import DEADLINE


async def test_each_request_gets_its_own_answer() -> None:
    outgoing = OutgoingRequests()
    sent: list[RemotingCommand] = []
    asked = [
        asyncio.ensure_future(outgoing.ask(RemotingCommand(1), DEADLINE, sent.append, "peer"))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    assert len({command.opaque for command in sent}) == 2

    for command in reversed(sent):
        assert outgoing.take(command.answer(remark=str(command.opaque)))

    assert [(await each).remark for each in asked] == [str(each.opaque) for each in sent]
    assert not outgoing.take(sent[0].answer()), "answered already"


async def test_a_silent_client_times_out() -> None:
    outgoing = OutgoingRequests()
    with pytest.raises(RemotingTimeoutError, match=r"peer gave no response within 0.01 s"):
        await outgoing.ask(RemotingCommand(1), 0.01, lambda _: None, "peer")


async def test_a_lost_connection_fails_what_waits() -> None:
    outgoing = OutgoingRequests()
    asked = asyncio.ensure_future(
        outgoing.ask(RemotingCommand(1), DEADLINE, lambda _: None, "peer")
    )
    await asyncio.sleep(0)
    outgoing.fail("peer")

    with pytest.raises(RemotingClosedError, match="the connection was lost"):
        await asked
