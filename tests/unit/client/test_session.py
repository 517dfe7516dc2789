from __future__ import annotations

import asyncio

import pytest

from pyromq.client import session as session_module
from pyromq.client.errors import BrokerError
from pyromq.client.session import Session
from pyromq.protocol.bodies import HeartbeatData, ProducerData
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import RemotingCommand
from tests.unit.client.fake_cluster import running_cluster, until

TOPICS = {"t": {"b0": 1, "b1": 1}}


def describe(client_id: str) -> HeartbeatData:
    return HeartbeatData(client_id, producer_data_set=[ProducerData("g")])


async def test_heartbeats_go_to_every_known_master_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "HEARTBEAT_SECONDS", 0.01)
    async with running_cluster(TOPICS, brokers=2) as cluster:
        session = Session(cluster.namesrv, describe)
        await session.routes.get("t")
        session.start()
        for broker in cluster.brokers:
            await until(lambda broker=broker: len(broker.seen(RequestCode.HEART_BEAT)) >= 2)
            heartbeat = HeartbeatData.decode(broker.seen(RequestCode.HEART_BEAT)[0].body)
            assert heartbeat == describe(session.client_id)
        await session.close()


async def test_only_greeted_brokers_are_told_of_the_end() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        session = Session(cluster.namesrv, describe)
        session.start()
        await session.routes.get("t")
        cluster.brokers[1].refusals[RequestCode.HEART_BEAT] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        await session.beat()
        await session.close(producer_group="g")
        await session.close(producer_group="g")
        (farewell,) = cluster.brokers[0].seen(RequestCode.UNREGISTER_CLIENT)
        assert farewell.ext_fields == {"clientID": session.client_id, "producerGroup": "g"}
        assert cluster.brokers[1].seen(RequestCode.UNREGISTER_CLIENT) == []


async def test_a_broker_that_is_gone_does_not_keep_anyone_from_leaving() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        session = Session(cluster.namesrv, describe)
        session.start()
        await session.routes.get("t")
        await session.beat()
        await cluster.brokers[1].stop()
        await session.close(producer_group="g")
        assert len(cluster.brokers[0].seen(RequestCode.UNREGISTER_CLIENT)) == 1


async def test_error_answers_are_raised() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        session = Session(cluster.namesrv, describe)
        cluster.brokers[0].refusals[RequestCode.HEART_BEAT] = [(ResponseCode.SYSTEM_BUSY, "busy")]
        with pytest.raises(BrokerError, match="SYSTEM_BUSY"):
            await session.ask(cluster.namesrv, RemotingCommand(RequestCode.HEART_BEAT))
        await session.close()


async def test_client_ids_differ() -> None:
    sessions = [Session("127.0.0.1:1", describe) for _ in range(2)]
    assert sessions[0].client_id != sessions[1].client_id
    await asyncio.gather(*(session.close() for session in sessions))
