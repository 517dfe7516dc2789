"""A SYNC_MASTER answers SEND_OK only if a replica has the message, also while it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.services.registration import Registration
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import BrokerRole
from tests.support.brokers import local_broker, small_store
from tests.support.crash import send_command
from tests.support.patience import DEADLINE


async def test_nothing_is_acknowledged_while_a_sync_master_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first registration may take seconds, and clients know its address from before."""
    broker = Broker(local_broker(), small_store(tmp_path, broker_role=BrokerRole.SYNC_MASTER))
    client, register = RemotingClient(), Registration.start
    codes = []

    async def send_and_start(registration: Registration) -> None:
        address = f"127.0.0.1:{broker.port}"
        answer = await client.request(address, send_command([12]), DEADLINE)
        codes.append(answer.code)
        await register(registration)

    monkeypatch.setattr(Registration, "start", send_and_start)
    await broker.start()
    assert codes == [ResponseCode.SLAVE_NOT_AVAILABLE]
    await client.close()
    await broker.stop()
