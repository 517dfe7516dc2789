from __future__ import annotations

import asyncio
import gc
import os
import weakref
from functools import partial

import pytest

from pyromq.client import LitePullConsumer, Producer, PullConsumer, PushConsumer
from pyromq.client.errors import BrokerError, ClientStateError
from pyromq.client.options import Settings
from pyromq.client.session import away
from pyromq.client.session.session import Client, Session, SessionState
from pyromq.protocol.wire.acl import signature_of
from pyromq.protocol.wire.bodies import ConsumerData, HeartbeatData, ProducerData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeBroker, running_cluster, running_pair

TOPICS = {"t": {"b0": 1, "b1": 1}}


def _heartbeats(broker: FakeBroker, least: int) -> bool:
    return len(broker.seen(RequestCode.HEART_BEAT)) >= least


def describe(client_id: str) -> HeartbeatData:
    return HeartbeatData(client_id, producer_data_set=[ProducerData("g")])


async def test_heartbeats_go_to_every_known_master_periodically() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        settings = Settings.of(cluster.namesrv, {"heartbeat_interval": 0.01})
        session = Session(settings, describe)
        await session.routes.get("t")
        session.start()
        for broker in cluster.brokers:
            await until(partial(_heartbeats, broker, 2))
            heartbeat = HeartbeatData.decode(broker.seen(RequestCode.HEART_BEAT)[0].body)
            assert heartbeat == describe(session.client_id)
        await session.close()


async def test_only_greeted_brokers_get_an_unregister_request() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        session = Session(Settings.of(cluster.namesrv, {}), describe)
        ill: list[tuple[int, str]] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        cluster.brokers[1].refusals[RequestCode.HEART_BEAT] = ill * 2
        session.start()
        await session.routes.get("t")
        await session.beat()
        await session.close(producer_group="g")
        await session.close(producer_group="g")
        (farewell,) = cluster.brokers[0].seen(RequestCode.UNREGISTER_CLIENT)
        assert farewell.ext_fields == {"clientID": session.client_id, "producerGroup": "g"}
        assert cluster.brokers[1].seen(RequestCode.UNREGISTER_CLIENT) == []


async def test_a_session_closes_although_a_broker_is_gone() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        session = Session(Settings.of(cluster.namesrv, {}), describe)
        session.start()
        await session.routes.get("t")
        await session.beat()
        await cluster.brokers[1].stop()
        await session.close(producer_group="g")
        assert len(cluster.brokers[0].seen(RequestCode.UNREGISTER_CLIENT)) == 1


async def test_a_new_broker_is_greeted_at_once() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        session = Session(Settings.of(cluster.namesrv, {}), describe)
        session.start()
        await session.routes.get("t")
        for broker in cluster.brokers:
            await until(partial(_heartbeats, broker, 1))
        await session.routes.refresh("t")
        await session.close()
        assert [len(b.seen(RequestCode.HEART_BEAT)) for b in cluster.brokers] == [1, 1]


async def test_a_reconnected_broker_is_greeted_at_once() -> None:
    async with running_cluster({"t": {"b1": 1}}, brokers=2) as cluster:
        session = Session(Settings.of(cluster.namesrv, {}), describe)
        session.start()
        await session.routes.get("t")
        broker = cluster.brokers[1]
        await until(lambda: _heartbeats(broker, 1))
        connection = session.remoting.ready(broker.address)
        assert connection is not None
        for writer in broker.writers:
            writer.transport.abort()
        await until(lambda: connection.is_lost)
        # Any request that reconnects.
        await session.remoting.connect(broker.address)
        await until(lambda: _heartbeats(broker, 2))
        await session.close()


async def test_heartbeats_survive_an_exception(caplog: pytest.LogCaptureFixture) -> None:
    mistakes = [RuntimeError("a mistake")]

    def describe_after_mistakes(client_id: str) -> HeartbeatData:
        if mistakes:
            raise mistakes.pop()
        return describe(client_id)

    async with running_cluster(TOPICS, brokers=2) as cluster:
        settings = Settings.of(cluster.namesrv, {"heartbeat_interval": 0.01})
        session = Session(settings, describe_after_mistakes)
        await session.routes.get("t")
        session.start()
        await until(partial(_heartbeats, cluster.brokers[1], 2))
        assert "a mistake" in caplog.text
        await session.close()


async def test_heartbeats_do_not_wait_for_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NameServer that does not answer must not make brokers forget us."""
    async with running_cluster(TOPICS, brokers=2) as cluster:
        settings = Settings.of(cluster.namesrv, {"heartbeat_interval": 0.01})
        session = Session(settings, describe)
        await session.routes.get("t")

        async def never(_topic: str) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(session.routes, "get", never)
        session.start()
        await until(partial(_heartbeats, cluster.brokers[1], 3))
        await session.close()


def test_a_session_that_was_never_closed_can_be_freed() -> None:
    async def main() -> weakref.ref[Session]:
        session = Session(Settings.of("127.0.0.1:1", {}), describe)
        session.start()
        await asyncio.sleep(0)
        return weakref.ref(session)

    gone = asyncio.run(main())
    gc.collect()
    assert gone() is None


async def test_names_are_wrapped_and_unwrapped() -> None:
    session = Session(Settings.of("127.0.0.1:1", {"namespace": "shop"}), describe)
    assert session.wrap("orders") == "shop%orders"
    assert session.unwrap("shop%orders") == "orders"
    await session.close()


async def test_requests_are_signed() -> None:
    async with running_cluster(TOPICS, brokers=1) as cluster:
        settings = Settings.of(
            cluster.namesrv,
            {"access_key": "me", "secret_key": "12345678", "security_token": "token"},
        )
        session = Session(settings, describe)
        body = describe("me").encode()
        request = RemotingCommand(
            RequestCode.HEART_BEAT, ext_fields={"b": "2", "a": "1"}, body=body
        )
        await session.ask(cluster.brokers[0].address, request)
        (seen,) = cluster.brokers[0].seen(RequestCode.HEART_BEAT)
        fields = seen.ext_fields
        assert (fields["AccessKey"], fields["SecurityToken"]) == ("me", "token")
        assert fields["Signature"] == signature_of(fields, body, "12345678")
        await session.close()


def test_a_forked_child_cannot_use_the_parents_client() -> None:
    async def main() -> str:
        session = Session(Settings.of("127.0.0.1:1", {}), describe)
        session.start()
        session.check_running()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                session.check_running()
                os.write(writing, b"no exception")
            except ClientStateError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
        os.close(writing)
        with open(reading) as said:  # noqa: ASYNC230 - there already
            told = said.read()
        session.check_running()
        await session.close()
        return told

    assert "create a new client here" in asyncio.run(main())


async def test_error_responses_are_raised() -> None:
    async with running_cluster(TOPICS, brokers=2) as cluster:
        session = Session(Settings.of(cluster.namesrv, {}), describe)
        cluster.brokers[0].refusals[RequestCode.HEART_BEAT] = [(ResponseCode.SYSTEM_BUSY, "busy")]
        with pytest.raises(BrokerError, match="SYSTEM_BUSY"):
            await session.ask(cluster.namesrv, RemotingCommand(RequestCode.HEART_BEAT))
        await session.close()


async def test_client_ids_differ() -> None:
    sessions = [Session(Settings.of("127.0.0.1:1", {}), describe) for _ in range(2)]
    assert sessions[0].client_id != sessions[1].client_id
    await asyncio.gather(*(session.close() for session in sessions))


class Counting(Client):
    def __init__(self) -> None:
        self._session = Session(Settings.of("127.0.0.1:1", {}), HeartbeatData)
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")


async def test_a_block_starts_and_closes_a_client_even_if_it_raises() -> None:
    client = Counting()
    async with client as entered:
        assert entered is client
        assert client.calls == ["start"]
    with pytest.raises(LookupError):
        async with client:
            raise LookupError
    assert client.calls == ["start", "close"] * 2


async def test_a_client_has_the_id_of_its_session() -> None:
    assert Counting().client_id.count("@") == 1


@pytest.mark.parametrize("kind", [LitePullConsumer, Producer, PullConsumer, PushConsumer])
def test_every_public_client_is_a_client(kind: type) -> None:
    assert issubclass(kind, Client)


async def test_a_session_lives_once() -> None:
    session = Session(Settings.of("127.0.0.1:1", {}), describe)
    assert (session.state, session.running) == (SessionState.NEW, False)
    session.start()
    session.start()
    assert (session.state, session.running) == (SessionState.RUNNING, True)
    await session.close()
    await session.close()
    assert (session.state, session.running) == (SessionState.CLOSED, False)
    with pytest.raises(ClientStateError, match="is closed"):
        session.start()
    with pytest.raises(AssertionError, match="CLOSED to RUNNING"):
        session._enter(SessionState.RUNNING)


async def test_consumers_send_heartbeats_to_replicas_and_producers_do_not() -> None:
    def describe_consumer(client_id: str) -> HeartbeatData:
        return HeartbeatData(client_id, consumer_data_set=[ConsumerData("g")])

    for description, is_greeted in ((describe, False), (describe_consumer, True)):
        async with running_pair({"t": {"b1": 1}}) as (cluster, master, replica):
            session = Session(Settings.of(cluster.namesrv, {}), description)
            session.start()
            await session.routes.get("t")
            await until(partial(_heartbeats, master, 1))
            if is_greeted:
                await until(partial(_heartbeats, replica, 1))
            await session.beat()
            await session.close(consumer_group="g")
            assert _heartbeats(master, 2)
            assert _heartbeats(replica, 1) == is_greeted
            assert bool(replica.seen(RequestCode.UNREGISTER_CLIENT)) == is_greeted


async def test_a_broker_that_is_away_is_greeted_until_it_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(away, "FIRST_PAUSE_SECONDS", 0.01)
    async with running_pair({"t": {"b1": 1}}) as (cluster, master, _):
        session = Session(Settings.of(cluster.namesrv, {}), describe)
        session.start()
        await session.routes.get("t")
        await until(lambda: session.is_known_to(master.address))
        ill: list[tuple[int, str]] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        master.refusals[RequestCode.HEART_BEAT] = ill
        session.away.add(master.address, RuntimeError("lost"))
        await until(lambda: not session.away)
        assert _heartbeats(master, 3)
        assert "heartbeat failed" not in caplog.text
        # It ends with the session, or when the NameServers drop the broker.
        master.silent.add(RequestCode.HEART_BEAT)
        session.away.add(master.address, RuntimeError("lost"))
        await session.close()
        assert not session.away
