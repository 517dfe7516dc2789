from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.base.atomic_file import write_file
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.persistence import PersistenceError
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.bodies import SubscriptionGroupConfig, TopicConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetResult, StoreError
from tests.support.brokers import local_broker, small_store
from tests.support.descriptors import inodes
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request


def make_broker(root: Path, *, store: dict[str, Any] | None = None, **settings: Any) -> Broker:
    config = local_broker(
        **{
            "broker_name": "a",
            **settings,
        }
    )
    return Broker(config, small_store(root, **(store or {})))


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    remoting = RemotingClient()
    yield remoting
    await remoting.close()


async def ask(client: RemotingClient, broker: Broker, request: RemotingCommand) -> RemotingCommand:
    return await client.request(f"127.0.0.1:{broker.port}", request, timeout=DEADLINE)


async def test_a_restart_keeps_topics_groups_offsets_and_messages(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    for number in range(3):
        request = send_request(body=b"%d" % number, queueId="0", properties="TAGS\x01red")
        assert (await ask(client, broker, request)).code == ResponseCode.SUCCESS
    broker.topics.update(TopicConfig("wide", 9, 9))
    broker.groups.update(SubscriptionGroupConfig("consumers", retry_max_times=3))
    broker.offsets.commit("consumers", "T", 0, 2)
    await broker.stop()

    again = make_broker(tmp_path)
    await again.start()

    wide, group = again.topics.get("wide"), again.groups.get("consumers")
    assert wide is not None
    assert wide.write_queue_nums == 9
    assert group is not None
    assert group.retry_max_times == 3
    assert again.offsets.query("consumers", "T", 0) == 2
    answer = await ask(client, again, pull_request(subscription="red"))
    assert [record.body for record in decode_records(answer.body)] == [b"0", b"1", b"2"]
    following = await ask(client, again, send_request(queueId="0"))
    assert following.ext_fields["queueOffset"] == "3"
    await again.stop()


async def test_topics_that_only_the_store_knows_are_adopted(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    await ask(client, broker, send_request(queueId="2"))
    await broker.stop()
    for path in (tmp_path / "config").glob("topics.json*"):
        path.unlink()

    again = make_broker(tmp_path)
    await again.start()

    topic = again.topics.get("T")
    assert topic is not None
    assert topic.write_queue_nums == BrokerConfig().default_topic_queue_nums
    await again.stop()


async def test_tables_are_saved_though_the_store_cannot_be_flushed(
    tmp_path: Path, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    await ask(client, broker, send_request(queueId="0"))
    broker.offsets.commit("consumers", "T", 0, 1)
    stop = MessageStore.stop

    def fail(store: MessageStore) -> None:
        stop(store)
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(MessageStore, "stop", fail)
    with pytest.raises(OSError, match="broken disk"):
        await broker.stop()
    monkeypatch.undo()

    again = make_broker(tmp_path)
    await again.start()
    assert again.offsets.query("consumers", "T", 0) == 1
    await again.stop()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_deleted_topic_stays_deleted(
    tmp_path: Path, client: RemotingClient, killed: bool
) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    for topic in ("Gone", "Anew"):
        for queue_id in ("0", "1"):
            await ask(client, broker, send_request(topic=topic, queueId=queue_id))
    for topic in ("Gone", "Anew"):
        request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": topic})
        assert (await ask(client, broker, request)).code == ResponseCode.SUCCESS
    await ask(client, broker, send_request(topic="Anew", queueId="1", body=b"new"))
    await broker.stop()
    if killed:  # the log is dispatched from its beginning
        (tmp_path / "abort").touch()
        (tmp_path / "checkpoint").unlink()
        shutil.rmtree(tmp_path / "consumequeue")

    again = make_broker(tmp_path)
    await again.start()

    assert "Gone" not in again.topics
    assert again.store is not None
    assert again.store.max_offset("Gone", 0) == 0
    assert [again.store.max_offset("Anew", queue_id) for queue_id in (0, 1)] == [0, 1]
    following = await ask(client, again, send_request(topic="Gone", queueId="0"))
    assert following.ext_fields["queueOffset"] == "0"
    await again.stop()


async def test_the_first_message_of_a_topic_is_answered_when_the_topic_is_on_the_disk(
    tmp_path: Path, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    await broker.topics.file.saved()
    gate = threading.Event()

    def slow(path: Path, content: bytes, *, backup: bool) -> None:
        assert gate.wait(20)
        write_file(path, content, backup=backup)

    monkeypatch.setattr("pyromq.broker.state.persistence.write_file", slow)
    sending = asyncio.create_task(ask(client, broker, send_request(topic="New", queueId="0")))
    store = broker.store
    assert store is not None
    await until(lambda: store.max_offset("New", 0) == 1)
    done, _ = await asyncio.wait([sending], timeout=0.2)
    assert not done
    gate.set()
    assert (await sending).code == 0
    assert b'"New"' in (tmp_path / "config" / "topics.json").read_bytes()
    await broker.stop()


async def test_the_fast_port_serves_the_same(tmp_path: Path, client: RemotingClient) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    await ask(client, broker, send_request(body=b"main", queueId="0"))

    fast = f"127.0.0.1:{broker.port - 2}"
    sent = await client.request(fast, send_request(body=b"fast", queueId="0"))
    pulled = await client.request(fast, pull_request())

    assert sent.ext_fields["queueOffset"] == "1"
    assert [record.body for record in decode_records(pulled.body)] == [b"main", b"fast"]
    await broker.stop()


async def test_the_replication_port_is_bound_and_registered(tmp_path: Path) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    address = ("127.0.0.1", broker.port + 1)
    _, writer = await asyncio.open_connection(*address)
    assert broker.store is not None
    assert broker.store.config.ha_listen_port == broker.port + 1
    await broker.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    writer.close()


@pytest.mark.parametrize("distance", [0, -2, 1])
async def test_a_port_that_is_taken_is_named(tmp_path: Path, distance: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        taken = holder.getsockname()[1]
        second = make_broker(tmp_path / "second", listen_port=taken - distance)
        with pytest.raises(OSError, match="in use") as caught:
            await second.start()
        assert caught.value.errno == errno.EADDRINUSE
        await second.stop()
        assert not (tmp_path / "second").exists()
        # A port beside it may be taken by some other program.
        named = int(str(caught.value.filename).removeprefix("127.0.0.1:"))
        assert named - (taken - distance) in (-2, 0, 1)
        # What it had taken already is free again.
        assert taken - distance not in ports_of_this_process()


def ports_of_this_process() -> set[int]:
    """The ports that this process listens on."""
    own = inodes()
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and int(row[9]) in own}


async def test_a_store_in_use_stops_the_start_and_keeps_its_files(
    tmp_path: Path, client: RemotingClient
) -> None:
    first = make_broker(tmp_path)
    await first.start()
    await ask(client, first, send_request(queueId="0"))
    second = make_broker(tmp_path)

    with pytest.raises(StoreError, match="in use by another broker"):
        await second.start()
    await second.stop()

    assert (tmp_path / "abort").exists()
    assert (await ask(client, first, send_request(queueId="0"))).code == ResponseCode.SUCCESS
    await first.stop()
    assert not (tmp_path / "abort").exists()


async def test_a_broken_table_stops_the_start_and_is_left_alone(tmp_path: Path) -> None:
    broken = tmp_path / "config" / "topics.json"
    broken.parent.mkdir()
    broken.write_text("{no json")
    broker = make_broker(tmp_path)

    with pytest.raises(PersistenceError, match=r"topics\.json"):
        await broker.start()
    port = broker.port
    await broker.stop()

    assert broken.read_text() == "{no json"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


async def test_a_stop_without_a_start_and_a_second_stop_do_nothing(tmp_path: Path) -> None:
    broker = make_broker(tmp_path)
    await broker.stop()
    assert not (tmp_path / "config").exists()

    broker = make_broker(tmp_path)
    await broker.start()
    await broker.stop()
    await broker.stop()


async def test_a_stop_refuses_those_that_wait(tmp_path: Path, client: RemotingClient) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    broker.topics.update(TopicConfig("T", 4, 4))
    waiting = asyncio.create_task(
        client.request(f"127.0.0.1:{broker.port}", pull_request(sysFlag="6"), DEADLINE)
    )
    await until(lambda: len(broker.long_poll))

    await broker.stop()

    assert (await waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_table_that_cannot_be_saved_does_not_keep_the_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    broker.offsets.commit("consumers", "T", 0, 7)

    def fail(*_: object) -> None:
        raise PersistenceError("cannot write topics.json: disk full")

    monkeypatch.setattr(broker.topics.file, "_write", fail)
    with pytest.raises(PersistenceError, match="disk full"):
        await broker.stop()

    assert b'"T@consumers"' in (tmp_path / "config" / "consumerOffset.json").read_bytes()
    assert not (tmp_path / "abort").exists()


async def test_offsets_are_saved_while_the_broker_runs(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, flush_consumer_offset_interval=10)
    await broker.start()
    broker.offsets.commit("consumers", "T", 0, 7)
    path = tmp_path / "config" / "consumerOffset.json"

    await until(path.exists)

    assert b"consumers" in path.read_bytes()
    await broker.stop()


async def test_expired_segments_go_while_the_broker_runs(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(
        tmp_path,
        store={
            "mapped_file_size_commit_log": 4096,
            "clean_resource_interval": 5,
            "file_reserved_time": 0,
            "delete_when": ";".join(map(str, range(24))),
            "delete_commit_log_files_interval": 0,
            "flush_interval_commit_log": 1,
        },
    )
    await broker.start()
    store = broker.store
    assert store is not None
    for number in range(20):
        request = send_request(body=b"%d" % number * 1000, queueId="0")
        assert (await ask(client, broker, request)).code == ResponseCode.SUCCESS
    await until(lambda: store.min_physical_offset > 0)
    await until(lambda: (store.min_offset("T", 0) or 0) > 0)
    assert store.max_offset("T", 0) == 20
    await broker.stop()


async def test_a_table_that_could_not_be_saved_is_saved_later(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path, flush_consumer_offset_interval=10)
    await broker.start()
    blocked = tmp_path / "config" / "topics.json.tmp"
    blocked.mkdir(parents=True)
    assert (await ask(client, broker, send_request(queueId="0"))).code == ResponseCode.SUCCESS
    await until(lambda: broker.topics.file._failed)
    blocked.rmdir()
    path = tmp_path / "config" / "topics.json"
    await until(lambda: path.exists() and b'"T"' in path.read_bytes())
    await broker.stop()


async def test_a_host_name_is_announced_and_resolved_for_records(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path, broker_ip1="localhost")
    await broker.start()

    answer = await ask(client, broker, send_request(queueId="0"))

    assert broker.address == f"localhost:{broker.port}"
    host, port, _ = decode_message_id(answer.ext_fields["msgId"])
    assert (host, port) == ("127.0.0.1", broker.port)
    await broker.stop()


async def test_a_host_name_that_cannot_be_resolved_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    broker = make_broker(tmp_path, broker_ip1="nowhere.invalid")

    with pytest.raises(OSError, match=r"brokerIP1=nowhere\.invalid cannot be resolved: Name or"):
        await broker.start()
    await broker.stop()


async def test_an_ipv6_broker_marks_its_records(tmp_path: Path, client: RemotingClient) -> None:
    broker = make_broker(tmp_path, broker_ip1="2001:db8::5")
    await broker.start()

    answer = await ask(client, broker, send_request(body=b"x", queueId="0"))
    pulled = await ask(client, broker, pull_request())

    (record,) = decode_records(pulled.body)
    assert record.store_host == ("2001:db8::5", broker.port)
    assert record.message_id == answer.ext_fields["msgId"]
    assert broker.address == f"[2001:db8::5]:{broker.port}"
    await broker.stop()


@pytest.mark.parametrize("code", [9999, RequestCode.REGISTER_FILTER_SERVER])
async def test_a_code_that_nobody_serves_is_answered(
    tmp_path: Path, client: RemotingClient, code: int
) -> None:
    """RocketMQ 4.9.7 has no filter servers either, and answers the same."""
    broker = make_broker(tmp_path)
    await broker.start()

    answer = await ask(client, broker, RemotingCommand(code))

    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {int(code)} not supported"
    await broker.stop()


async def test_another_store_is_built_by_its_factory(
    tmp_path: Path, client: RemotingClient
) -> None:
    class CountingStore(MessageStore):
        gets = 0

        def get(self, *arguments: Any, **options: Any) -> GetResult:
            CountingStore.gets += 1
            return super().get(*arguments, **options)

    plain = make_broker(tmp_path)
    broker = Broker(plain._config, plain._store_config, store_factory=CountingStore)
    await broker.start()
    try:
        await ask(client, broker, send_request(queueId="0"))
        answer = await ask(client, broker, pull_request())
        assert answer.code == ResponseCode.SUCCESS
        assert isinstance(broker.store, CountingStore)
        assert CountingStore.gets > 0
    finally:
        await broker.stop()
