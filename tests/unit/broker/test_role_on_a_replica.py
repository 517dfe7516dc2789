"""What a replica refuses, serves and leaves alone, on every path of a request."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.send_slow import MAX_BATCH_AT_ONCE
from pyromq.broker.state.connections import Client as Requester
from pyromq.protocol.message.message_id import encode_message_id
from pyromq.protocol.message.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from pyromq.protocol.wire.bodies import ConsumerData, HeartbeatData, SubscriptionGroupConfig
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.store.config import BrokerRole
from tests.support.patience import until
from tests.support.requests import pull_request, send_request
from tests.unit.broker.assembled import AssembledBroker, Client
from tests.unit.broker.handlers.pulls import WAITING, bodies, offsets_of

SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
COMMITTING = str(PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET)


def batch(count: int = 1) -> bytes:
    """Return the body of a batch with this many messages without a body."""
    return struct.pack(">iiiii", 22, 0, 0, 0, 0).ljust(22, b"\0") * count


def request_of(code: RequestCode, encoding: Encoding = Encoding.JSON) -> RemotingCommand:
    body = batch() if code is RequestCode.SEND_BATCH_MESSAGE else b"body"
    return send_request(code, body, queueId="0", encoding=encoding)


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    """A broker with three messages that was a master a moment ago."""
    broker = AssembledBroker(tmp_path)
    broker.put(b"0", b"1", b"2")
    broker.parts.role.change(BrokerRole.SLAVE, 1)
    yield broker
    await broker.close()


def clients(broker: AssembledBroker) -> tuple[Client, ...]:
    return (broker.fast, broker.hot, broker.slow)


async def response(client: Client) -> RemotingCommand:
    await until(lambda: client.transport.written)
    (answer,) = client.received()
    return answer


# Sends


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("code", SENDS)
async def test_sends_are_refused_from_one_chunk_to_the_next(
    tmp_path: Path, code: RequestCode, encoding: Encoding
) -> None:
    broker = AssembledBroker(tmp_path)
    for client in clients(broker):
        for _ in range(2):  # the second one takes the hot path
            assert client.ask(request_of(code, encoding)).code == ResponseCode.SUCCESS
    end = broker.store.max_physical_offset

    broker.parts.role.change(BrokerRole.SLAVE, 1)
    for client in clients(broker):
        for answer in client.exchange(request_of(code, encoding), request_of(code, encoding)):
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.remark is not None
            assert answer.remark.startswith("service not available now")
    assert broker.store.max_physical_offset == end

    broker.parts.role.change(BrokerRole.ASYNC_MASTER, 0)
    for client in clients(broker):
        assert client.ask(request_of(code, encoding)).code == ResponseCode.SUCCESS
    await broker.close()


async def test_a_send_creates_no_topic(replica: AssembledBroker) -> None:
    for topic in ("New", "%RETRY%consumers"):
        answer = replica.fast.ask(send_request(topic=topic))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert topic not in replica.topics


async def test_a_large_batch_that_is_being_encoded_is_refused(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path, mapped_file_size_commit_log=16 << 20)
    body = batch(MAX_BATCH_AT_ONCE + 1)
    request = send_request(RequestCode.SEND_BATCH_MESSAGE, body, queueId="0")
    assert broker.fast.exchange(request) == []
    await asyncio.sleep(0)

    broker.parts.role.change(BrokerRole.SLAVE, 1)

    assert (await response(broker.fast)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.store.max_physical_offset == 0
    await broker.close()


async def test_messages_are_not_sent_back(replica: AssembledBroker) -> None:
    end = replica.store.max_physical_offset
    fields = {"offset": "0", "group": "g", "delayLevel": "0", "originMsgId": "m"}
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=fields)

    answer = replica.fast.ask(request)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.startswith("SERVICE_NOT_AVAILABLE")
    assert replica.store.max_physical_offset == end
    assert "g" not in replica.groups
    assert "%RETRY%g" not in replica.topics


async def test_a_cold_message_is_not_sent_back_after_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = AssembledBroker(tmp_path)
    broker.put(b"cold")
    end = broker.store.max_physical_offset
    monkeypatch.setattr(broker.store, "is_cold", lambda _: True)
    fields = {"offset": "0", "group": "g", "delayLevel": "0"}
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=fields)
    assert broker.fast.exchange(request) == []

    broker.parts.role.change(BrokerRole.SLAVE, 1)

    assert (await response(broker.fast)).code == ResponseCode.SYSTEM_ERROR
    assert broker.store.max_physical_offset == end
    await broker.close()


async def test_replies_are_refused_and_none_is_stored_after_the_change(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path)
    requester = broker.connect(("127.0.0.2", 50505))
    member = Requester(requester.connection, "asker", LanguageCode.JAVA, 407)
    broker.producers.register("askers", member)
    request = send_request(
        topic="DefaultCluster_REPLY_TOPIC", queueId="0", properties="REPLY_TO_CLIENT\x01asker"
    )
    request.code = RequestCode.SEND_REPLY_MESSAGE_V2
    assert broker.fast.exchange(request) == []
    push = await response(requester)

    broker.parts.role.change(BrokerRole.SLAVE, 1)
    requester.exchange(push.answer())

    assert (await response(broker.fast)).code == ResponseCode.SUCCESS
    assert broker.store.max_physical_offset == 0
    broker.fast.exchange(request)
    assert (await response(broker.fast)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    await broker.close()


# Tables


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": "New",
                "defaultTopic": "TBW102",
                "readQueueNums": "4",
                "writeQueueNums": "4",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "order": "false",
            },
        ),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "known"}),
    ],
)
async def test_topics_and_groups_are_the_masters(
    replica: AssembledBroker, code: RequestCode, fields: dict[str, str]
) -> None:
    replica.groups.update(SubscriptionGroupConfig("known"))
    replica.fast.exchange(RemotingCommand(code, ext_fields=fields))

    answer = await response(replica.fast)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.startswith("Can't modify topic or subscription group from slave broker")
    assert "T" in replica.topics
    assert "New" not in replica.topics
    assert "known" in replica.groups


async def test_queues_without_a_topic_are_kept(replica: AssembledBroker) -> None:
    replica.topics.delete("T")  # as if its configuration were still on its way
    replica.fast.exchange(RemotingCommand(RequestCode.CLEAN_UNUSED_TOPIC))

    answer = await response(replica.fast)

    assert answer.code == ResponseCode.SUCCESS
    assert answer.remark == "nothing removed: this broker is a replica"
    assert replica.store.max_offset("T", 0) == 3


async def test_a_heartbeat_registers_and_creates_nothing(replica: AssembledBroker) -> None:
    versions = (replica.topics.data_version, replica.groups.data_version)
    heartbeat = HeartbeatData("client", consumer_data_set=[ConsumerData("g")])

    answer = replica.fast.ask(RemotingCommand(RequestCode.HEART_BEAT, body=heartbeat.encode()))

    assert answer.code == ResponseCode.SUCCESS
    assert replica.consumers.find("g") is not None
    assert (replica.topics.data_version, replica.groups.data_version) == versions


async def test_an_abandoned_half_is_not_resumed(replica: AssembledBroker) -> None:
    end = replica.store.max_physical_offset
    fields = {"msgId": encode_message_id(replica.host, 0)}
    replica.fast.exchange(RemotingCommand(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext_fields=fields))

    answer = await response(replica.fast)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.endswith("failed: this broker is a replica")
    assert replica.store.max_physical_offset == end


# Pulls


async def test_pulls_are_served_and_commit_nothing(replica: AssembledBroker) -> None:
    version = replica.groups.data_version
    for client in clients(replica):
        for _ in range(2):  # the second one meets the kernel
            answer = client.ask(pull_request(sysFlag=COMMITTING, commitOffset="2"))
            assert bodies(answer) == [b"0", b"1", b"2"]
    assert replica.offsets.query("consumers", "T", 0) is None
    assert replica.groups.data_version is version

    replica.parts.role.change(BrokerRole.ASYNC_MASTER, 0)
    for expected in (2, 3):
        replica.fast.ask(pull_request(sysFlag=COMMITTING, commitOffset=str(expected)))
        assert replica.offsets.query("consumers", "T", 0) == expected
    assert "consumers" in replica.groups


async def test_a_master_that_becomes_a_replica_commits_no_more(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path)
    broker.put(b"x")
    for _ in range(2):
        broker.fast.ask(pull_request(sysFlag=COMMITTING, commitOffset="1"))
    broker.parts.role.change(BrokerRole.SLAVE, 1)
    for _ in range(2):
        broker.fast.ask(pull_request(sysFlag=COMMITTING, commitOffset="7"))
    assert broker.offsets.query("consumers", "T", 0) == 1
    await broker.close()


@pytest.mark.parametrize("reads_from_replicas", [False, True])
@pytest.mark.parametrize(
    ("offset", "queue_id"), [("4", "0"), ("1", "3")], ids=["beyond the end", "empty queue"]
)
async def test_an_offset_that_the_replica_lacks_is_not_corrected(
    tmp_path: Path, reads_from_replicas: bool, offset: str, queue_id: str
) -> None:
    config = BrokerConfig(broker_ip1="127.0.0.1", slave_read_enable=reads_from_replicas)
    broker = AssembledBroker(tmp_path, config)
    broker.put(b"0", b"1", b"2")
    broker.groups.update(
        SubscriptionGroupConfig("consumers", broker_id=5, which_broker_when_consume_slowly=6)
    )
    broker.parts.role.change(BrokerRole.SLAVE, 1)

    answer = broker.fast.ask(pull_request(queueOffset=offset, queueId=queue_id, sysFlag=WAITING))

    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert offsets_of(answer)[0] == int(offset)
    assert answer.ext_fields["suggestWhichBrokerId"] == "5"
    await broker.close()


async def test_an_offset_is_corrected_if_that_is_wanted(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path, offset_check_in_slave=True)
    broker.put(b"0", b"1", b"2")
    broker.parts.role.change(BrokerRole.SLAVE, 1)

    answer = broker.fast.ask(pull_request(queueOffset="4"))

    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert offsets_of(answer)[0] == 3
    await broker.close()


async def test_a_replica_suggests_itself_only_to_slow_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(broker_ip1="127.0.0.1", slave_read_enable=True)
    broker = AssembledBroker(tmp_path, config)
    broker.put(b"0")
    broker.parts.role.change(BrokerRole.SLAVE, 1)
    result = broker.store.get("T", 0, 0, 32)
    for is_slow, suggested in ((False, "0"), (True, "1")):
        found = dataclasses.replace(result, suggest_replica=is_slow)
        monkeypatch.setattr(broker.store, "get", lambda *_, found=found, **__: found)
        answer = broker.hot.ask(pull_request())
        assert answer.ext_fields["suggestWhichBrokerId"] == suggested
    await broker.close()


async def test_a_waiting_pull_is_completed_when_messages_arrive(replica: AssembledBroker) -> None:
    request = pull_request(queueOffset="3", sysFlag=WAITING)
    assert replica.fast.exchange(request) == []
    # As the bytes of a master do: by way of the store, without a request.
    queue = replica.store.queue("T", 0)
    replica.store.put(queue, b"3", b"", 0, 0, 0, 0, bytes(8), 0)
    replica.store.seal()

    assert bodies(await response(replica.fast)) == [b"3"]
