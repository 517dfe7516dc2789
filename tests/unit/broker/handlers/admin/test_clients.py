from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.state.connections import Client
from pyromq.protocol.message.message_id import encode_message_id
from pyromq.protocol.message.record import decode_record
from pyromq.protocol.wire.bodies_admin import (
    ConsumerConnection,
    GetConsumerStatusBody,
    GroupList,
    ProducerConnection,
    ProducerTableInfo,
)
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.remoting.errors import RemotingClosedError, RemotingTimeoutError
from tests.unit.broker.fakes import FakeConnection
from tests.unit.broker.handlers.admin.administered import ADMIN, Administered, asking, queue


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Administered]:
    broker = Administered(tmp_path)
    yield broker
    await broker.close()


async def test_members_of_a_consumer_group(broker: Administered) -> None:
    broker.join("one", language=LanguageCode.CPP, version=300)
    broker.join("second")
    answer = await broker.clients.consumer_connections(ADMIN, asking(consumerGroup="g"))
    body = ConsumerConnection.decode(answer.body)
    assert [(each.client_id, each.language, each.version) for each in body.connection_set] == [
        ("one", LanguageCode.CPP, 300),
        ("second", LanguageCode.JAVA, 407),
    ]
    assert body.connection_set[0].client_addr == "127.0.0.1:40003"
    assert body.subscription_table["T"].sub_string == "*"
    with pytest.raises(RequestError, match=r"the consumer group\[x\] not online") as refused:
        await broker.clients.consumer_connections(ADMIN, asking(consumerGroup="x"))
    assert refused.value.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_members_of_producer_groups(broker: Administered) -> None:
    broker.producers.register(
        "p", Client(FakeConnection("127.0.0.1:7"), "id", LanguageCode.GO, 317)
    )
    answer = await broker.clients.producer_connections(ADMIN, asking(producerGroup="p"))
    (member,) = ProducerConnection.decode(answer.body).connection_set
    assert (member.client_id, member.client_addr, member.language) == (
        "id",
        "127.0.0.1:7",
        LanguageCode.GO,
    )
    everybody = await broker.clients.all_producers(ADMIN, asking())
    (info,) = ProducerTableInfo.decode(everybody.body).data["p"]
    assert info.remote_ip == "/127.0.0.1:7"
    assert 0 <= time.time() * 1000 - info.last_update_timestamp < 60_000
    with pytest.raises(RequestError, match=r"the producer group\[x\] not exist"):
        await broker.clients.producer_connections(ADMIN, asking(producerGroup="x"))


async def test_who_consumes_a_topic(broker: Administered) -> None:
    broker.join("one", "T", "U")
    broker.offsets.commit("gone", "T", 0, 5)
    answer = broker.clients.consumed_by_who(ADMIN, asking(topic="T"))
    assert GroupList.decode(answer.body).group_list == {"g", "gone"}


async def test_running_info_comes_from_the_client(broker: Administered) -> None:
    client = broker.join("one")
    client.client = lambda request: request.answer(
        ResponseCode.SUCCESS, "fine", {"a": "b"}, b"running"
    )
    request = asking(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        consumerGroup="g",
        clientId="one",
        jstackEnable="true",
    )
    answer = await broker.clients.running_info(ADMIN, request)
    (asked,) = client.sent
    assert asked.code == RequestCode.GET_CONSUMER_RUNNING_INFO
    assert asked.ext_fields["jstackEnable"] == "true"
    assert (answer.opaque, answer.remark, answer.body) == (5, "fine", b"running")
    assert answer.ext_fields == {"a": "b"}


async def test_a_client_that_does_not_answer(broker: Administered) -> None:
    client = broker.join("one")
    request = asking(consumerGroup="g", clientId="one")
    for error, code in (
        (RemotingTimeoutError("c", "too late"), ResponseCode.CONSUME_MSG_TIMEOUT),
        (RemotingClosedError("c", "gone"), ResponseCode.SYSTEM_ERROR),
    ):

        def refuse(_: RemotingCommand, error: Exception = error) -> RemotingCommand:
            raise error

        client.client = refuse
        with pytest.raises(RequestError, match="<g> <one>") as refused:
            await broker.clients.running_info(ADMIN, request)
        assert refused.value.code == code


async def test_clients_that_cannot_be_asked(broker: Administered) -> None:
    broker.join("old", version=61)
    for client_id, cause in (("old", "too low to finish"), ("nobody", "not online")):
        with pytest.raises(RequestError, match=cause):
            await broker.clients.running_info(ADMIN, asking(consumerGroup="g", clientId=client_id))
    with pytest.raises(RequestError, match="not online"):
        await broker.clients.running_info(ADMIN, asking(consumerGroup="x", clientId="old"))


async def test_a_message_is_consumed_directly(broker: Administered) -> None:
    client = broker.join("one")
    client.client = lambda request: request.answer(body=b'{"consumeResult":"CR_SUCCESS"}')
    broker.put(b"hello")
    message_id = encode_message_id(broker.host, 0)
    request = asking(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="g", clientId="one", msgId=message_id
    )
    answer = await broker.clients.consume_directly(ADMIN, request)
    assert answer.body == b'{"consumeResult":"CR_SUCCESS"}'
    (asked,) = client.sent
    assert decode_record(asked.body).body == b"hello"
    assert asked.ext_fields["brokerName"] == "broker-a"
    for wrong in (encode_message_id(broker.host, 5000), "nonsense"):
        request.ext_fields["msgId"] = wrong
        with pytest.raises(RequestError) as refused:
            await broker.clients.consume_directly(ADMIN, request)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR


async def test_all_members_are_asked_at_once_for_their_status(broker: Administered) -> None:
    both = asyncio.Barrier(2)
    table = GetConsumerStatusBody(message_queue_table={queue(0): 7})

    class Member(FakeConnection):
        async def request(
            self,
            command: RemotingCommand,
            timeout: float,  # noqa: ASYNC109 - the signature of connections
        ) -> RemotingCommand:
            await both.wait()  # one after the other they would wait for ever
            return await super().request(command, timeout)

    members = {}
    for client_id in ("one", "two"):
        connection = members[client_id] = Member()
        broker.join(client_id)
        group = broker.consumers.find("g")
        assert group is not None
        (known,) = [each for each in group.members.values() if each.client_id == client_id]
        known.connection = connection
    members["one"].client = lambda request: request.answer(body=table.encode())
    members["two"].client = lambda request: request.answer(ResponseCode.SYSTEM_ERROR)
    answer = await asyncio.wait_for(
        broker.clients.consumer_status(ADMIN, asking(topic="T", group="g")), 10
    )
    body = GetConsumerStatusBody.decode(answer.body)
    assert body.consumer_table == {"one": {queue(0): 7}}
    (asked,) = members["one"].sent
    assert asked.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    assert asked.ext_fields == {"topic": "T", "group": "g"}


async def test_a_status_that_is_too_large_is_not_parsed(
    broker: Administered, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = broker.join("one"), broker.join("other")
    small = GetConsumerStatusBody(message_queue_table={queue(0): 7}).encode()
    one.client = lambda request: request.answer(body=small[:-1] + b" " * 1024 * 1024 + b"}")
    other.client = lambda request: request.answer(body=small)
    answer = await broker.clients.consumer_status(ADMIN, asking(topic="T", group="g"))
    assert GetConsumerStatusBody.decode(answer.body).consumer_table == {"other": {queue(0): 7}}
    assert "no status of client one: response of" in caplog.text
    assert "limit 1048576 (maxRequestBodySize)" in caplog.text


async def test_the_status_of_one_member(broker: Administered) -> None:
    one, other = broker.join("one"), broker.join("other")
    one.client = lambda request: request.answer(body=b"{nonsense")
    answer = await broker.clients.consumer_status(
        ADMIN, asking(topic="T", group="g", clientAddr="one")
    )
    assert GetConsumerStatusBody.decode(answer.body).consumer_table == {}
    assert len(one.sent) == 1
    assert other.sent == []
    broker.join("old", version=27)
    with pytest.raises(RequestError, match="does not support this feature"):
        await broker.clients.consumer_status(ADMIN, asking(topic="T", group="g"))
    with pytest.raises(RequestError, match=r"No Any Consumer online in the consumer group: \[x\]"):
        await broker.clients.consumer_status(ADMIN, asking(topic="T", group="x"))
