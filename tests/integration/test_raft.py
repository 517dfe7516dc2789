"""Brokers in a raft group: sends, delays, transactions and tables before and after a fail-over."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from pyromq.broker.broker import Broker
from pyromq.client import Message, RocketMQError
from pyromq.protocol.message.record import decode_records, encode_inner_message
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.protocol.wire.leadership import TransferLeadershipRequestHeader
from pyromq.raft.member import Role
from pyromq.store.config import BrokerRole
from tests.support.certificates import Certificates
from tests.support.patience import until
from tests.support.raft_brokers import RaftBrokers
from tests.support.requests import pull_request, send_request


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[RaftBrokers]:
    group = RaftBrokers(tmp_path)
    await group.start()
    yield group
    await group.stop()


def stored(group: RaftBrokers, node: str, topic: str = "T") -> list[bytes]:
    """All bodies of a topic on one broker, by queue and offset."""
    store = group.brokers[node].store
    assert store is not None
    bodies: list[bytes] = []
    for queue in sorted(store.queues(), key=lambda queue: queue.queue_id):
        offset = queue.min_offset
        while queue.topic == topic and offset < queue.next_offset:
            result = store.get(topic, queue.queue_id, offset, 32)
            bodies += [record.body for record in decode_records(b"".join(result.pieces))]
            offset = result.next_offset
    return bodies


def data_files(group: RaftBrokers, node: str) -> list[tuple[int, bytes]]:
    log = group.log(node)
    return [(file.base, file.read(0, file.size)) for file in log.files.files]


async def test_every_message_is_on_every_node(group: RaftBrokers) -> None:
    async with group.producer() as producer:
        await group.sent(producer, Message("T", b"first"))
        bodies = [b"message %d" % number for number in range(500)]
        await asyncio.gather(*(group.sent(producer, Message("T", body)) for body in bodies))
        await producer.send_batch([Message("T", b"batch %d" % number) for number in range(100)])
    await group.settled()
    expected = {b"first", *bodies, *(b"batch %d" % number for number in range(100))}
    leader = await group.leader()
    order = stored(group, leader)
    assert sorted(order) == sorted(expected)
    for node in group.ids:
        assert stored(group, node) == order
        assert data_files(group, node) == data_files(group, leader)


async def test_clients_follow_a_new_leader(group: RaftBrokers) -> None:
    async with group.producer() as producer:
        acknowledged = []
        for number in range(50):
            await group.sent(producer, Message("T", b"before %d" % number))
            acknowledged.append(b"before %d" % number)
        old = await group.leader()
        cut = await group.cut(old)
        for number in range(50):
            await group.sent(producer, Message("T", b"after %d" % number))
            acknowledged.append(b"after %d" % number)
        new = await group.leader()
        assert new != old
        assert group.brokers[new].role.broker_id == 0
        await cut.stop()
        await group.start_broker(old)
        await group.settled()
    for node in group.ids:
        bodies = stored(group, node)
        assert set(acknowledged) <= set(bodies)
        assert bodies == stored(group, new)
    followers = await group.followers()
    assert {group.brokers[node].role.broker_id for node in followers} == {
        int(node[1:]) + 1 for node in followers
    }


async def test_without_a_quorum_nothing_is_acknowledged_or_seen(group: RaftBrokers) -> None:
    async with group.producer() as producer:
        await group.sent(producer, Message("T", b"committed"))
    await group.settled()
    leader = await group.leader()
    followers = await group.followers()
    cut = [await group.cut(node) for node in followers]
    store = group.brokers[leader].store
    assert store is not None
    answers = await asyncio.gather(
        *(
            group.ask(leader, send_request(body=b"lost", encoding=encoding, opaque=number))
            for number, encoding in enumerate((Encoding.JSON, Encoding.ROCKETMQ), 1)
        )
    )
    for answer in answers:
        # Timed out, not the leader any more, or a replica already.
        assert answer.code in (
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ResponseCode.SLAVE_NOT_AVAILABLE,
        )
        assert answer.remark
    assert stored(group, leader) == [b"committed"]
    await until(lambda: group.brokers[leader].role.is_replica)
    for broker in cut:
        await broker.stop()
    # The others elect a leader that never saw the lost messages, and they leave this log, too.
    alone = await group.cut(leader)
    await alone.stop()
    for node in followers:
        await group.start_broker(node)
    async with group.producer() as producer:
        await group.sent(producer, Message("T", b"next"))
    await group.start_broker(leader)
    await group.settled()
    for node in group.ids:
        assert sorted(stored(group, node)) == [b"committed", b"next"]


async def test_a_follower_refuses_sends_and_serves_pulls(group: RaftBrokers) -> None:
    leader = await group.leader()
    assert (await group.ask(leader, send_request(body=b"one"))).code == ResponseCode.SUCCESS
    await group.settled()
    follower = (await group.followers())[0]
    answer = await group.ask(follower, send_request(body=b"two"))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    await until(lambda: "T" in group.brokers[follower].topics)
    pulled = await group.ask(follower, pull_request(queueId="1"))
    assert pulled.code == ResponseCode.SUCCESS
    assert [record.body for record in decode_records(pulled.body)] == [b"one"]


async def test_waiting_messages_cannot_be_declined(group: RaftBrokers) -> None:
    """WAIT=false lets a sender skip a replica, but not the quorum."""
    leader = await group.leader()
    for node in await group.followers():
        await (await group.cut(node)).stop()
    answer = await group.ask(leader, send_request(body=b"x", properties="WAIT\x01false\x02"))
    assert answer.code != ResponseCode.SUCCESS
    batch = encode_inner_message(b"y", b"")
    answer = await group.ask(
        leader, send_request(RequestCode.SEND_BATCH_MESSAGE, batch, properties="WAIT\x01false\x02")
    )
    assert answer.code != ResponseCode.SUCCESS


async def test_delayed_messages_are_delivered_by_the_next_leader(group: RaftBrokers) -> None:
    async with group.producer() as producer:
        await group.sent(producer, Message("T", b"soon", delay_level=1))
        await until(lambda: any(stored(group, node) for node in group.brokers))
        for number in range(20):
            await group.sent(producer, Message("T", b"later %d" % number, delay_level=2))
        old = await group.cut(await group.leader())
        leader = await group.leader()
        expected = {b"soon", *(b"later %d" % number for number in range(20))}
        await until(lambda: set(stored(group, leader)) == expected)
        await old.stop()


async def test_leadership_moves_on_request(group: RaftBrokers) -> None:
    leader = await group.leader()
    target = (await group.followers())[0]

    async def transfer(to: str, node: str) -> RemotingCommand:
        header = TransferLeadershipRequestHeader(node_id=node)
        return await group.ask(
            to, RemotingCommand(RequestCode.TRANSFER_LEADERSHIP, ext_fields=header.encode())
        )

    answer = await transfer(leader, "n9")
    assert "n9 is not a node of the group" in (answer.remark or "")
    answer = await transfer(target, leader)
    assert f"{leader} does" in (answer.remark or "")
    for _ in range(50):
        # A third node may win the election that the transfer begins.
        if (now := await group.leader()) == target:
            break
        answer = await transfer(now, target)
        if answer.code == ResponseCode.SUCCESS:
            await until(lambda: not group.brokers[target].role.is_replica)
    await until(lambda: group.brokers[leader].role.is_replica)
    async with group.producer() as producer:
        await group.sent(producer, Message("T", b"one"))
    assert await group.leader() == target


async def test_a_leader_that_stops_hands_over(group: RaftBrokers) -> None:
    leader = await group.leader()
    followers = await group.followers()
    await group.brokers.pop(leader).stop()
    # At once: nobody has waited for a heartbeat.
    assert any(
        (
            (raft := group.brokers[node].raft) is not None
            and "hands leadership over" in raft.figures()["raft"]["reason"]
        )
        or (raft is not None and raft.node.role is Role.LEADER)
        for node in followers
    )


async def test_the_state_of_the_group_can_be_asked_for(group: RaftBrokers) -> None:
    leader = await group.leader()
    answer = await group.ask(leader, RemotingCommand(RequestCode.GET_REPLICATION_STATUS))
    raft = orjson.loads(answer.body)["raft"]
    assert (raft["group"], raft["selfId"], raft["leader"]) == ("group", leader, leader)
    assert {peer["id"] for peer in raft["peers"]} == set(group.ids) - {leader}
    info = await group.ask(leader, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = orjson.loads(info.body)["table"]
    assert (table["raftRole"], table["brokerRole"]) == ("LEADER", "SYNC_MASTER")


async def test_tables_are_copied_to_followers(group: RaftBrokers) -> None:
    async with group.producer() as producer:
        await group.sent(producer, Message("Orders", b"one"))
    leader = await group.leader()
    group.brokers[leader].offsets.commit("G", "Orders", 0, 1, remote_address="test")
    for node in await group.followers():
        await until(partial(has_tables, group.brokers[node]))


def has_tables(broker: Broker) -> bool:
    return "Orders" in broker.topics and broker.offsets.query("G", "Orders", 0) == 1


async def test_one_node_is_a_group(tmp_path: Path) -> None:
    group = await RaftBrokers(tmp_path, count=1).start()
    async with group.producer() as producer:
        for number in range(20):
            await group.sent(producer, Message("T", b"%d" % number))
    await group.brokers.pop("n0").stop()
    await group.start_broker("n0")
    await group.leader()
    assert len(stored(group, "n0")) == 20
    assert group.brokers["n0"].role.current is BrokerRole.SYNC_MASTER
    await group.stop()


async def test_a_role_cannot_be_changed_by_hand(group: RaftBrokers) -> None:
    leader = await group.leader()
    with pytest.raises(Exception, match="the raft group decides"):
        await group.brokers[leader].become_replica(1)
    with pytest.raises(RocketMQError):
        async with group.producer() as producer:
            await producer.send(Message("T", os.urandom(4 << 20)))


async def test_nodes_copy_over_mutual_tls(tmp_path: Path) -> None:
    group = await RaftBrokers(tmp_path, certificates=Certificates(tmp_path / "certs")).start()
    async with group.producer() as producer:
        for number in range(50):
            await group.sent(producer, Message("T", b"%d" % number * 100))
    await group.settled()
    for node in group.ids:
        assert len(stored(group, node)) == 50
    raft = group.brokers[await group.leader()].raft
    assert raft is not None
    reader, writer = await asyncio.open_connection(*raft.node.address)
    writer.write(b"\0\0\0\x08 plain frame")
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b"", "closed"
    writer.close()
    await group.stop()


async def test_the_raft_port_serves_listed_peers_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = RaftBrokers(tmp_path, count=1, dLegerAllowedPeers="10.0.0.7,10.1.0.0/16")
    await group.start()  # alone, it needs no connection
    raft = group.brokers["n0"].raft
    assert raft is not None
    reader, writer = await asyncio.open_connection(*raft.node.address)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b"", "closed"
    writer.close()
    assert "its address is not in the list (dLegerAllowedPeers)" in caplog.text
    await group.stop()
