from __future__ import annotations

import pytest

from pyromq.broker.handlers.admin.raft import RaftAdminHandlers
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.header_codec import HeaderError
from tests.unit.broker.fakes import FakeConnection


class FakeGroup:
    """Hands over, or tells why not."""

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem
        self.asked: list[str] = []

    async def transfer(self, node_id: str) -> str | None:
        self.asked.append(node_id)
        return self.problem


async def transfer(group: FakeGroup, **fields: str) -> RemotingCommand:
    handlers = RaftAdminHandlers(group.transfer)
    (route,) = handlers.routes()
    assert route.code == RequestCode.TRANSFER_LEADERSHIP
    request = RemotingCommand(RequestCode.TRANSFER_LEADERSHIP, ext_fields=fields)
    return await handlers.transfer(FakeConnection(), request)


async def test_the_answer_comes_when_the_other_node_leads() -> None:
    group = FakeGroup()
    answer = await transfer(group, nodeId="n1")
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert group.asked == ["n1"]


async def test_a_failure_has_the_reason() -> None:
    with pytest.raises(RequestError, match="not transferred: node n1 answered") as caught:
        await transfer(FakeGroup("node n1 answered FALL_BEHIND_TOO_MUCH"), nodeId="n1")
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


async def test_a_request_without_a_node_is_refused() -> None:
    group = FakeGroup()
    with pytest.raises(HeaderError, match="nodeId"):
        await transfer(group)
    assert group.asked == []
