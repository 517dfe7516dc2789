"""Brokers that NameServers know and that do not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pyromq.protocol.wire.bodies import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import RegisterBrokerRequestHeader
from pyromq.remoting.client import RemotingClient
from tests.support.patience import DEADLINE

#: Nothing listens here.
ADDRESS = "127.0.0.1:1"


@asynccontextmanager
async def dead_broker(
    namesrv: str, name: str, *, broker_id: int = 0, topics: tuple[str, ...] = ()
) -> AsyncIterator[str]:
    """Register a broker at `ADDRESS` for as long as the block runs."""
    header = RegisterBrokerRequestHeader(name, ADDRESS, "DefaultCluster", "127.0.0.1:2", broker_id)
    table = {topic: TopicConfig(topic) for topic in topics}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table))
    client = RemotingClient()
    try:
        answer = await client.request(
            namesrv,
            RemotingCommand(
                RequestCode.REGISTER_BROKER, ext_fields=header.encode(), body=body.encode()
            ),
            DEADLINE,
        )
        assert answer.code == ResponseCode.SUCCESS, answer
        yield ADDRESS
    finally:
        await client.close()
