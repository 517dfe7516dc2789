from __future__ import annotations

import pytest

from pyromq.client import LitePullConsumer, Producer, PullConsumer, PushConsumer
from pyromq.client.client import Client
from pyromq.client.options import Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import HeartbeatData


class Counting(Client):
    def __init__(self) -> None:
        self._session = Session(Settings.of("127.0.0.1:1", {}), HeartbeatData)
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")


async def test_a_block_starts_and_closes_it_however_it_ends() -> None:
    client = Counting()
    async with client as entered:
        assert entered is client
        assert client.calls == ["start"]
    with pytest.raises(LookupError):
        async with client:
            raise LookupError
    assert client.calls == ["start", "close"] * 2


async def test_its_id_is_the_session_s() -> None:
    assert Counting().client_id.count("@") == 1


@pytest.mark.parametrize("kind", [LitePullConsumer, Producer, PullConsumer, PushConsumer])
def test_every_client_is_one(kind: type) -> None:
    assert issubclass(kind, Client)
