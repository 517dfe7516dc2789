"""A NameServer on a real socket, and peers that register, put and ask for too much."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.handlers import MAX_SMALL_BODY
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import MAX_FRAME, FrameReader, RemotingCommand
from pyromq.protocol.wire.header_codec import Header
from pyromq.protocol.wire.headers import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from pyromq.protocol.wire.headers_admin import (
    DeleteKVConfigRequestHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
)
from pyromq.remoting.client import RemotingClient
from tests.support.patience import DEADLINE, until

MIB = 1024 * 1024


class Peer:
    """One connection to a NameServer."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.client = RemotingClient()

    async def ask(
        self, code: RequestCode, header: Header | None = None, body: bytes = b""
    ) -> RemotingCommand:
        command = RemotingCommand(code, ext_fields=header.encode() if header else {}, body=body)
        return await self.client.request(f"127.0.0.1:{self.server.port}", command, DEADLINE)

    async def register(
        self,
        name: str = "a",
        *topics: str,
        body: bytes | None = None,
        counter: int = 1,
        compressed: bool = False,
        **changes: Any,
    ) -> RemotingCommand:
        header = RegisterBrokerRequestHeader(name, f"{name}:1", "c", f"{name}:2", 0)
        if body is None:
            body = registration(*topics, counter=counter).encode(compress=compressed)
        header = dataclasses.replace(header, compressed=compressed, **changes)
        return await self.ask(RequestCode.REGISTER_BROKER, header, body)

    async def put(self, key: str, value: str, namespace: str = "ORDER_TOPIC_CONFIG") -> str:
        """What is wrong with a put; nothing when it is in effect."""
        answer = await self.ask(
            RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace, key, value)
        )
        return "" if answer.code == ResponseCode.SUCCESS else answer.remark or ""

    async def has_route(self, topic: str) -> bool:
        header = GetRouteInfoRequestHeader(topic)
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        return answer.code == ResponseCode.SUCCESS


def registration(*topics: str, counter: int = 1) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(
            {name: TopicConfig(name) for name in topics}, DataVersion(1, counter)
        )
    )


@contextlib.asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Peer]:
    """A NameServer and a well-behaved peer of it."""
    server = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(directory / "kvConfig.json"),
            config_store_path=str(directory / "namesrv.properties"),
            **settings,
        )
    )
    await server.start()
    peer = Peer(server)
    try:
        yield peer
    finally:
        await peer.client.close()
        await server.stop()


# KV configuration


async def test_no_value_makes_registrations_unreadable(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        for number in range(2):
            await peer.put(str(number), "x" * 10 * MIB)
        answer = await peer.register("a", "t")
        assert answer.code == ResponseCode.SUCCESS
        assert await peer.has_route("t")


async def test_kv_limits_name_the_value_the_limit_and_the_setting(tmp_path: Path) -> None:
    limits = {"max_kv_name_size": 12, "max_kv_value_size": 102, "max_kv_config_size": 1000}
    async with running(tmp_path, **limits) as peer:
        assert await peer.put("k", "v" * 100, "n") == ""
        long = await peer.put("k", "v" * 101, "n")
        assert long.endswith("has 103 bytes, limit 102 (maxKvValueSize)")
        # As JSON: what answers and the file take.
        assert "has 104 bytes" in await peer.put("k", "\x00" * 17, "n")
        assert "limit 12 (maxKvNameSize)" in await peer.put("k" * 11, "v", "n")
        assert "limit 12 (maxKvNameSize)" in await peer.put("k", "v", "n" * 11)
        refused = [await peer.put(str(number), "v" * 100, "n") for number in range(100)]
        assert refused[0] == ""
        assert "limit 1000 (maxKvConfigSize)" in refused[-1]
        # A smaller value and a deletion always work, and make room.
        assert await peer.put("0", "", "n") == ""
        assert await peer.put("new", "v", "n") == ""


async def test_namespaces_that_are_empty_take_no_room_from_others(tmp_path: Path) -> None:
    async with running(tmp_path, max_kv_config_size=1000) as peer:
        for number in range(200):
            assert await peer.put("k", "v", f"namespace-{number}") == ""
            header = DeleteKVConfigRequestHeader(f"namespace-{number}", "k")
            await peer.ask(RequestCode.DELETE_KV_CONFIG, header)
        assert await peer.put("k", "v" * 900, "n") == ""


async def test_a_file_that_is_too_large_loads_and_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = {"small": "1", **{f"large-{number}": "x" * 5 * MIB for number in range(4)}}
    (tmp_path / "kvConfig.json").write_bytes(
        orjson.dumps({"configTable": {"ORDER_TOPIC_CONFIG": table}})
    )
    async with running(tmp_path) as peer:
        assert "limit 4194304 (maxKvConfigSize): only deletions are accepted" in caplog.text
        caplog.clear()
        for _ in range(3):
            answer = await peer.register("a", "t")
            assert KVTable.decode(answer.body).table.keys() == {
                "small",
                "large-0",
                "large-1",
                "large-2",
            }
        assert caplog.text.count("left out 1 of 5 keys") == 1
        answer = await peer.ask(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            GetKVListByNamespaceRequestHeader("ORDER_TOPIC_CONFIG"),
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(MAX_FRAME) in (answer.remark or "")
        assert "maxKvConfigSize" in await peer.put("other", "1")
        for number in range(4):
            header = DeleteKVConfigRequestHeader("ORDER_TOPIC_CONFIG", f"large-{number}")
            await peer.ask(RequestCode.DELETE_KV_CONFIG, header)
        assert await peer.put("other", "1") == ""


async def test_logs_name_keys_only_and_no_line_is_forged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as peer:
        with caplog.at_level(logging.DEBUG):
            assert await peer.put("key", "a secret value") == ""
            assert await peer.put("line\nbreak", "v") == ""
            await peer.put("k" * 100_000, "v")
            await peer.register("line\nbreak")
            await peer.register("a", "line\nbreak", "t" * 100_000)
            await peer.has_route("line\nbreak")
    own = [record.getMessage() for record in caplog.records if "pyromq" in record.name]
    assert any("key" in line for line in own)
    assert not any("secret" in line or "\n" in line or len(line) > 1000 for line in own)


# Brokers


async def test_brokers_of_one_connection_and_in_total_are_bounded(tmp_path: Path) -> None:
    async with (
        running(tmp_path, max_brokers_per_connection=3, max_brokers=5) as peer,
        contextlib.AsyncExitStack() as stack,
    ):
        others = [Peer(peer.server) for _ in range(3)]
        for other in others:
            stack.push_async_callback(other.client.close)
        codes = [(await others[0].register(f"a{number}")).code for number in range(4)]
        assert codes == [ResponseCode.SUCCESS] * 3 + [ResponseCode.SYSTEM_ERROR]
        refused = await others[0].register("b")
        assert (refused.remark or "").endswith(
            "3 brokers are registered over this connection, limit 3 (maxBrokersPerConnection)"
        )
        # Those who are registered go on; names, addresses and ids are all counted.
        assert (await others[0].register("a0")).code == ResponseCode.SUCCESS
        assert (await others[0].register("b", broker_addr="b:1")).code != 0
        assert (await others[0].register("a0", broker_addr="b:1", broker_id=1)).code != 0
        assert (await others[1].register("c0")).code == ResponseCode.SUCCESS
        assert (await others[1].register("c1")).code == ResponseCode.SUCCESS
        full = await others[2].register("d")
        assert (full.remark or "").endswith("5 brokers are registered, limit 5 (maxBrokers)")
        await others[0].client.close()
        await until(lambda: not peer.server.routes.data_version("a0:1"))
        assert (await others[2].register("d")).code == ResponseCode.SUCCESS


async def test_names_at_one_address_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, max_brokers_per_connection=3) as peer:
        for number in range(10):
            answer = await peer.register(f"a{number}", broker_addr="a:1")
            assert (answer.code == ResponseCode.SUCCESS) == (number < 3)
        assert "3 brokers are registered at this address, limit 3" in (answer.remark or "")
        # One name that moves from address to address leaves nothing behind.
        for number in range(10):
            await peer.register("a0", broker_addr=f"b{number}:1")
        assert len(peer.server.routes._live) == 2


async def test_a_broker_cannot_be_in_many_clusters(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        codes = [
            (await peer.register("a", cluster_name=f"c{number}")).code for number in range(100)
        ]
        assert codes[0] == ResponseCode.SUCCESS
        assert len(peer.server.routes.cluster_info().cluster_addr_table) == 16
        assert (await peer.register("a", cluster_name="c0")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("field", ["broker_name", "cluster_name", "broker_addr", "ha_server_addr"])
async def test_names_of_brokers_are_bounded(tmp_path: Path, field: str) -> None:
    async with running(tmp_path) as peer:
        for name in ("x" * 513, "a\nb", "\x00", "\x1b[2J"):
            named: dict[str, Any] = {field: name}
            answer = await peer.register("a", **named)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "expected 1 to 512" in (answer.remark or "")
            assert len(answer.remark or "") < 300
        assert not peer.server.routes.cluster_info().broker_addr_table


async def test_memory_of_departed_brokers_is_free(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:

        async def come_and_go(number: int) -> None:
            body = orjson.dumps(
                {
                    "topicConfigSerializeWrapper": {
                        "topicConfigTable": {},
                        "dataVersion": {"counter": 1, "timestamp": number},
                    },
                    "filterServerList": [f"filter-{n}-{number}" for n in range(100_000)],
                }
            )
            other = Peer(peer.server)
            await other.register(f"a{number}", body=body)
            await other.client.close()
            await until(lambda: not peer.server._server.connections)

        await come_and_go(0)
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(1, 5):
                await come_and_go(number)
            gc.collect()
            current, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert current < MIB


async def test_filter_servers_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        for servers in (["f:1"] * 65, ["f" * 513]):
            body = dataclasses.replace(registration("t"), filter_server_list=servers).encode()
            answer = await peer.register("a", body=body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "limit" in (answer.remark or "")


# Topics


async def test_topics_of_one_broker_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, max_topics_per_broker=10) as peer:
        names = [f"t{number}" for number in range(11)]
        for compressed in (False, True):
            answer = await peer.register("a", *names, compressed=compressed)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "11 topics, limit 10" in (answer.remark or "")
            assert "maxTopicsPerBroker 10" in (answer.remark or "")
        assert (await peer.register("a", *names[:10])).code == ResponseCode.SUCCESS
        # RocketMQ keeps topics that a broker no longer names: they count.
        answer = await peer.register("a", "other", counter=2)
        assert answer.code == ResponseCode.SUCCESS
        assert await peer.has_route("t0")
        assert not await peer.has_route("other")


async def test_a_topic_without_room_comes_in_when_there_is_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, max_topics=3) as peer:
        hostile = Peer(peer.server)
        await hostile.register("h", "x1", "x2")
        assert (await peer.register("a", "t1", "t2")).code == ResponseCode.SUCCESS
        assert await peer.has_route("t1")
        assert not await peer.has_route("t2")
        assert "1 topics left out: 't2'" in caplog.text
        await hostile.client.close()
        await until(lambda: peer.server.routes.route("x1") is None)
        # Its version counts as unknown, so it is asked for its topics again.
        answer = await peer.ask(
            RequestCode.QUERY_DATA_VERSION,
            QueryDataVersionRequestHeader("a", "a:1", "c", 0),
            DataVersion(1, 1).encode(),
        )
        assert answer.ext_fields["changed"] == "true"
        await peer.register("a", "t1", "t2")
        assert await peer.has_route("t2")


async def test_a_topic_with_a_hostile_name_is_left_out_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        answer = await peer.register("a", "good", "line\nbreak", "x" * 513, "\x00")
        assert answer.code == ResponseCode.SUCCESS
        assert peer.server.routes.all_topics().topic_list == {"good"}
        # It will never come in: there is no reason to read the same again and again.
        assert peer.server.routes.data_version("a:1") == DataVersion(1, 1)


async def test_an_unknown_name_is_not_sent_back_whole(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        for code, fields in (
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "x" * MIB}),
            (RequestCode.GET_KV_CONFIG, {"namespace": "x" * MIB, "key": "x" * MIB}),
            (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "x" * MIB}),
        ):
            command = RemotingCommand(code, ext_fields=fields)
            answer = await peer.client.request(f"127.0.0.1:{peer.server.port}", command, DEADLINE)
            assert len(answer.encode()) < 1000


async def test_a_list_of_topics_above_a_frame_is_an_error(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        for broker in ("a", "b"):
            names = [f"{broker}{number}" + "x" * 500 for number in range(20_000)]
            answer = await peer.register(broker, *names, compressed=True)
            assert answer.code == ResponseCode.SUCCESS
            answer = await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            if broker == "a":
                assert TopicList.decode(answer.body).topic_list == set(names)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(MAX_FRAME) in (answer.remark or "")


# Bodies


async def test_a_zip_bomb_takes_neither_memory_nor_time(tmp_path: Path) -> None:
    async with running(tmp_path, max_registration_size=4 * MIB) as peer:
        bomb = zlib.compress(bytes(64 * MIB), 9)
        assert len(bomb) < 100_000
        tracemalloc.start()
        try:
            answer = await peer.register("a", body=bomb, compressed=True)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "more than 4194304 bytes" in (answer.remark or "")
        assert "maxRegistrationSize" in (answer.remark or "")
        assert peak < 16 * MIB


async def test_a_body_of_tiny_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    async with running(tmp_path, max_topics_per_broker=1000) as peer:
        for body in (b"[" + b"[]," * MIB + b"[]]", b'{"a":[' + b"{}," * MIB + b"{}]}"):
            tracemalloc.start()
            try:
                answer = await peer.register("a", body=body)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "values, limit 13000" in (answer.remark or "")
            assert peak < 32 * MIB


async def test_bodies_of_small_requests_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        body = b'{"counter":1,"junk":"' + b"x" * MAX_SMALL_BODY + b'"}'
        header = QueryDataVersionRequestHeader("a", "a:1", "c", 0)
        for answer in (
            await peer.ask(RequestCode.QUERY_DATA_VERSION, header, body),
            await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"a=1\n" * MAX_SMALL_BODY),
        ):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert f"limit {MAX_SMALL_BODY}" in (answer.remark or "")


# Large registrations have no others wait


@pytest.mark.parametrize("compressed", [False, True])
async def test_others_get_their_turn_while_a_large_registration_is_read(
    tmp_path: Path, compressed: bool
) -> None:
    async with running(tmp_path) as peer:
        other = Peer(peer.server)
        await other.register("b", "t")
        answers = 0
        handlers = peer.server._handlers

        async def ask_on() -> None:
            nonlocal answers
            while True:
                assert await other.has_route("t")
                answers += bool(handlers._in_turn)

        asking = asyncio.ensure_future(ask_on())
        names = [f"topic-{number}" for number in range(30_000)]
        answer = await peer.register("a", *names, compressed=compressed)
        assert answer.code == ResponseCode.SUCCESS
        assert answers > 5
        asking.cancel()
        assert await other.has_route("topic-29999")
        await other.client.close()


async def test_a_broker_s_requests_are_handled_in_their_order(tmp_path: Path) -> None:

    async with running(tmp_path) as peer:
        names = [f"topic-{number}" for number in range(5_000)]
        register = RegisterBrokerRequestHeader("a", "a:1", "c", "a:2", 0).encode()
        requests = [
            RemotingCommand(
                RequestCode.REGISTER_BROKER, 1, register, registration(*names).encode()
            ),
            RemotingCommand(
                RequestCode.UNREGISTER_BROKER,
                2,
                UnRegisterBrokerRequestHeader("a", "a:1", "c", 0).encode(),
            ),
            RemotingCommand(
                RequestCode.REGISTER_BROKER, 3, register, registration("last").encode()
            ),
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
        writer.write(b"".join(request.encode() for request in requests))
        frames = FrameReader()
        answers: list[RemotingCommand] = []
        while len(answers) < 3:
            answers += frames.feed(await asyncio.wait_for(reader.read(1 << 16), DEADLINE))
        assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (2, 0), (3, 0)]
        assert peer.server.routes.all_topics().topic_list == {"last"}
        writer.close()


async def test_a_broker_that_leaves_while_it_is_read_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        gone = Peer(peer.server)
        names = [f"topic-{number}" for number in range(20_000)]

        registering = asyncio.ensure_future(gone.register("a", *names))
        handlers = peer.server._handlers
        await until(lambda: handlers._in_turn)
        await gone.client.close()
        await asyncio.gather(registering, return_exceptions=True)
        await until(lambda: not handlers._in_turn)
        assert not peer.server.routes.cluster_info().broker_addr_table


# What anybody may change


async def test_only_live_settings_are_changed_over_the_wire(tmp_path: Path) -> None:
    async with running(tmp_path) as peer:
        for change in (
            b"bindAddress=nowhere",
            b"listenPort=1",
            b"maxKvConfigSize=2147483647",
            b"serverChannelMaxIdleTimeSeconds=1",
            b"rocketmqHome=/elsewhere",
        ):
            answer = await peer.ask(
                RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n" + change
            )
            assert answer.code == ResponseCode.NO_PERMISSION
            assert change.partition(b"=")[0].decode() in (answer.remark or "")
        answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"rocketmqHome=\x00")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert not (tmp_path / "namesrv.properties").exists()
        # A tool that sends everything back changes nothing.
        settings = (await peer.ask(RequestCode.GET_NAMESRV_CONFIG)).body
        changeable = b"\n".join(
            line for line in settings.splitlines() if b"Path" not in line
        ).replace(b"clusterTest=false", b"clusterTest=true")
        answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=changeable)
        assert answer.code == ResponseCode.SUCCESS
        assert b"clusterTest=true" in (tmp_path / "namesrv.properties").read_bytes()
