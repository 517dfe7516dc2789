from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from pyromq.base.atomic_file import read_file, write_file
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.handlers import VERSION_3_0_11, VERSION_4_9_4, NameServerHandlers
from pyromq.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from pyromq.nameserver.route_table import BROKER_EXPIRY, RouteTable
from pyromq.protocol.java.properties import parse_properties
from pyromq.protocol.wire.bodies import (
    BodyError,
    ClusterInfo,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand, RequestError
from pyromq.protocol.wire.header_codec import Header, HeaderError
from pyromq.protocol.wire.headers import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from pyromq.protocol.wire.headers_admin import (
    AddWritePermOfBrokerRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)


class FakeConnection:
    remote_address = "127.0.0.1:40404"
    closed = False


class NameServerInMemory:
    """Handlers and table without sockets; `ask` is what a peer does."""

    def __init__(self, directory: Path) -> None:
        self.config = NamesrvConfig(
            kv_config_path=str(directory / "kvConfig.json"),
            config_store_path=str(directory / "namesrv.properties"),
        )
        self.now = 1000.0
        self.routes: RouteTable[Any] = RouteTable()
        self.kv_config = KVConfig(Path(self.config.kv_config_path))
        self.handlers = NameServerHandlers(
            self.config, self.routes, self.kv_config, clock=lambda: self.now
        )
        self.connection: Any = FakeConnection()

    async def ask(
        self, code: RequestCode, header: Header | None = None, body: bytes = b"", **fields: Any
    ) -> RemotingCommand:
        request = RemotingCommand(
            code,
            opaque=77,
            ext_fields={} if header is None else header.encode(),
            body=body,
            encoding=Encoding.ROCKETMQ,
            **fields,
        )
        answer = self.handlers.table()[code](self.connection, request)
        if inspect.isawaitable(answer):
            answer = await answer
        assert answer is not None
        assert (answer.opaque, answer.encoding, answer.is_response) == (77, Encoding.ROCKETMQ, True)
        assert answer.code == ResponseCode.SUCCESS
        return answer

    async def register(
        self,
        body: RegisterBrokerBody | None = None,
        *,
        broker_id: int = 0,
        address: str = "a:1",
        compressed: bool = False,
        crc: int | None = None,
    ) -> RemotingCommand:
        content = (body or registration("t")).encode(compress=compressed)
        header = RegisterBrokerRequestHeader(
            broker_name="broker-a",
            broker_addr=address,
            cluster_name="c",
            ha_server_addr="ha-" + address,
            broker_id=broker_id,
            compressed=compressed,
            body_crc32=zlib.crc32(content) & 0x7FFFFFFF if crc is None else crc,
        )
        return await self.ask(RequestCode.REGISTER_BROKER, header, content)

    async def route(self, topic: str = "t", **fields: Any) -> bytes:
        header = GetRouteInfoRequestHeader(topic)
        return (await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, **fields)).body


def registration(*names: str, counter: int = 1) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(
            {name: TopicConfig(name) for name in names}, DataVersion(5, counter)
        )
    )


@pytest.fixture
def server(tmp_path: Path) -> NameServerInMemory:
    return NameServerInMemory(tmp_path)


def test_every_code_of_a_name_server_is_handled(server: NameServerInMemory) -> None:
    assert set(server.handlers.table()) == {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
    }


@pytest.mark.parametrize("compressed", [False, True])
async def test_register_and_find_the_route(server: NameServerInMemory, compressed: bool) -> None:
    answer = await server.register(compressed=compressed)
    assert RegisterBrokerResponseHeader.decode(answer.ext_fields) == RegisterBrokerResponseHeader()
    assert answer.body == b""
    route = TopicRouteData.decode(await server.route())
    assert route.queue_datas[0].write_queue_nums == 16
    assert route.broker_datas[0].broker_addrs == {0: "a:1"}


async def test_a_replica_is_told_its_master(server: NameServerInMemory) -> None:
    await server.register()
    answer = await server.register(broker_id=1, address="b:1")
    assert RegisterBrokerResponseHeader.decode(answer.ext_fields) == RegisterBrokerResponseHeader(
        ha_server_addr="ha-a:1", master_addr="a:1"
    )


async def test_a_wrong_crc_is_refused_and_changes_nothing(server: NameServerInMemory) -> None:
    with pytest.raises(RequestError, match="crc32 not match") as raised:
        await server.register(crc=12345)
    assert raised.value.code is ResponseCode.SYSTEM_ERROR
    assert server.routes.all_topics().topic_list == set()


async def test_crc_zero_means_unchecked(server: NameServerInMemory) -> None:
    await server.register(crc=0)
    assert server.routes.all_topics().topic_list == {"t"}


async def test_a_registration_with_one_new_topic_changes_only_that(
    server: NameServerInMemory,
) -> None:
    await server.register(registration("t", "u"))
    kept = server.routes.route("t")
    await server.ask(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePermOfBrokerRequestHeader("broker-a")
    )
    later = registration("t", "u", "v")
    later.topic_config_serialize_wrapper.data_version = DataVersion(0, 99)
    await server.register(later)
    assert server.routes.route("t") == kept  # what was wiped is given back, as in RocketMQ
    assert server.routes.route("v") is not None


async def test_a_large_registration_that_is_the_same_again_is_not_read_again(
    server: NameServerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = registration(*(f"topic-{number}" for number in range(500)))
    await server.register(large)
    server.now += BROKER_EXPIRY - 1
    with monkeypatch.context() as patch:
        patch.setattr("pyromq.nameserver.registration.parse_json", None)
        await server.register(large)
    server.now += BROKER_EXPIRY - 1
    server.routes.remove_expired(server.now)  # it was heard of meanwhile
    assert server.routes.route("topic-499") is not None

    # After another address was master, with another version, or when it was gone: read as ever.
    other = registration(*(f"topic-{number}" for number in range(500)), counter=9)
    for topic in other.topic_config_serialize_wrapper.topic_config_table.values():
        topic.read_queue_nums = 1
    await server.register(other, address="b:1")
    await server.register(large)
    route = server.routes.route("topic-499")
    assert route is not None
    assert [queues.read_queue_nums for queues in route.queue_datas] == [16]
    changed = registration(*(f"topic-{number}" for number in range(501)), counter=2)
    await server.register(changed)
    assert server.routes.route("topic-500") is not None
    server.now += 2 * BROKER_EXPIRY
    server.routes.remove_expired(server.now)
    assert server.routes.route("topic-500") is None
    await server.register(changed)
    assert server.routes.route("topic-500") is not None


async def test_a_broken_body_changes_nothing(server: NameServerInMemory) -> None:
    header = RegisterBrokerRequestHeader("b", "a:1", "c", "ha", 0, compressed=True)
    with pytest.raises(BodyError):
        await server.ask(RequestCode.REGISTER_BROKER, header, b"not zlib")
    with pytest.raises(BodyError):
        await server.ask(
            RequestCode.REGISTER_BROKER, RegisterBrokerRequestHeader("b", "a:1", "c", "h", 0), b"[]"
        )
    with pytest.raises(HeaderError, match="brokerName is missing"):
        await server.ask(RequestCode.REGISTER_BROKER)
    assert server.routes.cluster_info() == ClusterInfo()


async def test_a_registration_without_body_is_a_sign_of_life(server: NameServerInMemory) -> None:
    header = RegisterBrokerRequestHeader("broker-a", "a:1", "c", "ha", 0)
    await server.ask(RequestCode.REGISTER_BROKER, header)
    assert server.routes.data_version("a:1") == DataVersion(0, 0)
    await server.ask(RequestCode.REGISTER_BROKER, header, version=VERSION_3_0_11 - 1)
    assert set(server.routes.cluster_info().broker_addr_table) == {"broker-a"}


async def test_a_very_old_broker_sends_its_topics_bare(server: NameServerInMemory) -> None:
    header = RegisterBrokerRequestHeader("broker-a", "a:1", "c", "ha", 0)
    body = registration("t").topic_config_serialize_wrapper.encode()
    await server.ask(RequestCode.REGISTER_BROKER, header, body, version=VERSION_3_0_11 - 1)
    assert server.routes.all_topics().topic_list == {"t"}


async def test_registration_carries_the_order_configuration(server: NameServerInMemory) -> None:
    await server.kv_config.put(ORDER_TOPIC_CONFIG, "t", "broker-a:4")
    answer = await server.register()
    assert KVTable.decode(answer.body) == KVTable({"t": "broker-a:4"})


async def test_unregister(server: NameServerInMemory) -> None:
    await server.register()
    await server.ask(
        RequestCode.UNREGISTER_BROKER, UnRegisterBrokerRequestHeader("broker-a", "a:1", "c", 0)
    )
    with pytest.raises(RequestError) as raised:
        await server.route()
    assert raised.value.code is ResponseCode.TOPIC_NOT_EXIST


async def test_an_unknown_topic(server: NameServerInMemory) -> None:
    with pytest.raises(RequestError) as raised:
        await server.route("nowhere")
    assert raised.value.code is ResponseCode.TOPIC_NOT_EXIST
    assert raised.value.remark.startswith(
        "No topic route info in name server for the topic: nowhere\nSee "
    )


async def test_who_gets_standard_json(server: NameServerInMemory) -> None:
    await server.register()
    unquoted, quoted = b'"brokerAddrs":{0:"a:1"}', b'"brokerAddrs":{"0":"a:1"}'
    assert unquoted in await server.route(version=VERSION_4_9_4 - 1)
    assert quoted in await server.route(version=VERSION_4_9_4)
    for accept, expected in ((True, quoted), (False, unquoted)):
        answer = await server.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            GetRouteInfoRequestHeader("t", accept),
            version=VERSION_4_9_4 - 1,
        )
        assert expected in answer.body


async def test_order_configuration_in_routes_is_a_setting(server: NameServerInMemory) -> None:
    await server.register()
    await server.kv_config.put(ORDER_TOPIC_CONFIG, "t", "broker-a:4")
    assert TopicRouteData.decode(await server.route()).order_topic_conf is None
    await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
    assert TopicRouteData.decode(await server.route()).order_topic_conf == "broker-a:4"


async def test_query_data_version(server: NameServerInMemory) -> None:
    header = QueryDataVersionRequestHeader("broker-a", "a:1", "c", 0)

    async def query(version: DataVersion) -> tuple[str, bytes]:
        answer = await server.ask(RequestCode.QUERY_DATA_VERSION, header, version.encode())
        return answer.ext_fields["changed"], answer.body

    assert await query(DataVersion(5, 1)) == ("true", b"")
    await server.register()
    server.now += BROKER_EXPIRY - 1
    assert await query(DataVersion(5, 2)) == ("true", DataVersion(5, 1).encode())
    assert await query(DataVersion(5, 1)) == ("false", DataVersion(5, 1).encode())
    # Only the version that has nothing new counted as a sign of life.
    assert server.routes.remove_expired(server.now + 2) == []


async def test_a_changed_version_is_no_sign_of_life(server: NameServerInMemory) -> None:
    await server.register()
    server.now += BROKER_EXPIRY - 1
    await server.ask(
        RequestCode.QUERY_DATA_VERSION,
        QueryDataVersionRequestHeader("broker-a", "a:1", "c", 0),
        DataVersion(5, 2).encode(),
    )
    assert server.routes.remove_expired(server.now + 2) == [server.connection]


async def test_cluster_info(server: NameServerInMemory) -> None:
    await server.register()
    answer = await server.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert answer.body == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"a:1"},"brokerName":"broker-a",'
        b'"cluster":"c"}},"clusterAddrTable":{"c":["broker-a"]}}'
    )


async def test_lists_of_topics(server: NameServerInMemory) -> None:
    body = registration("plain", "unit", "sub")
    table = body.topic_config_serialize_wrapper.topic_config_table
    table["unit"].topic_sys_flag, table["sub"].topic_sys_flag = 1, 2
    await server.register(body)

    async def names(code: RequestCode, header: Header | None = None) -> set[str]:
        return TopicList.decode((await server.ask(code, header)).body).topic_list

    assert await names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"plain", "unit", "sub"}
    assert await names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {"c", "broker-a"}
    assert await names(RequestCode.GET_UNIT_TOPIC_LIST) == {"unit"}
    assert await names(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"sub"}
    assert await names(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"sub"}
    by_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
    assert len(await names(by_cluster, GetTopicsByClusterRequestHeader("c"))) == 3
    assert await names(by_cluster, GetTopicsByClusterRequestHeader("nowhere")) == set()


async def test_write_permission(server: NameServerInMemory) -> None:
    await server.register(registration("t", "u"))
    answer = await server.ask(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePermOfBrokerRequestHeader("broker-a")
    )
    assert answer.ext_fields == {"wipeTopicCount": "2"}
    assert TopicRouteData.decode(await server.route()).queue_datas[0].perm == 4
    answer = await server.ask(
        RequestCode.ADD_WRITE_PERM_OF_BROKER, AddWritePermOfBrokerRequestHeader("broker-a")
    )
    assert answer.ext_fields == {"addTopicCount": "2"}
    assert TopicRouteData.decode(await server.route()).queue_datas[0].perm == 6


@pytest.mark.parametrize("cluster", [None, "", "c"])
async def test_delete_topic(server: NameServerInMemory, cluster: str | None) -> None:
    await server.register(registration("t", "u"))
    await server.ask(
        RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader("t", cluster)
    )
    assert server.routes.all_topics().topic_list == {"u"}


async def test_kv_config(server: NameServerInMemory) -> None:
    get = GetKVConfigRequestHeader("n", "k")
    with pytest.raises(RequestError, match="No config item, Namespace: n Key: k") as raised:
        await server.ask(RequestCode.GET_KV_CONFIG, get)
    assert raised.value.code is ResponseCode.QUERY_NOT_FOUND
    with pytest.raises(RequestError, match="No config item, Namespace: n"):
        await server.ask(
            RequestCode.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader("n")
        )
    await server.ask(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader("n", "k", "v"))
    assert (await server.ask(RequestCode.GET_KV_CONFIG, get)).ext_fields == {"value": "v"}
    answer = await server.ask(
        RequestCode.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader("n")
    )
    assert KVTable.decode(answer.body).table == {"k": "v"}
    assert read_file(Path(server.config.kv_config_path)) is not None
    await server.ask(RequestCode.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader("n", "k"))
    with pytest.raises(RequestError):
        await server.ask(RequestCode.GET_KV_CONFIG, get)


async def test_a_change_that_cannot_be_saved_is_said(server: NameServerInMemory) -> None:
    for path in (server.config.kv_config_path, server.config.config_store_path):
        os.mkdir(path + ".tmp")
    for code, header, body in (
        (RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader("n", "k", "v"), b""),
        (RequestCode.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader("n", "k"), b""),
        (RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true"),
    ):
        with pytest.raises(RequestError, match="in effect but will be lost on restart") as raised:
            await server.ask(code, header, body)
        assert raised.value.code is ResponseCode.SYSTEM_ERROR
    assert server.handlers.config.order_message_enable is True


async def test_settings_can_be_read_changed_and_are_saved(server: NameServerInMemory) -> None:
    await server.ask(
        RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\nunknown=1\n"
    )
    answer = await server.ask(RequestCode.GET_NAMESRV_CONFIG)
    settings = parse_properties(answer.body)
    assert settings["orderMessageEnable"] == "true"
    assert settings["listenPort"] == "9876"
    assert "unknown" not in settings
    saved = read_file(Path(server.config.config_store_path))
    assert saved is not None
    assert parse_properties(saved) == settings


async def test_settings_without_effect_are_reported(server: NameServerInMemory) -> None:
    answer = await server.ask(
        RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\nserverWorkerThreads=16\n"
    )
    assert answer.remark == (
        "serverWorkerThreads=16 has no effect: requests run on one event loop; there are no thread "
        "pools to size"
    )


async def test_the_log_level_changes_at_once(server: NameServerInMemory) -> None:
    try:
        await server.ask(
            RequestCode.UPDATE_NAMESRV_CONFIG, body=b"logLevel=ERROR,pyromq.nameserver=DEBUG"
        )
        assert logging.getLogger("pyromq.broker").getEffectiveLevel() == logging.ERROR
        assert logging.getLogger("pyromq.nameserver.server").isEnabledFor(logging.DEBUG)
        with pytest.raises(RequestError, match="logLevel=LOUD: expected a level"):
            await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"logLevel=LOUD")
        assert logging.getLogger("pyromq.broker").getEffectiveLevel() == logging.ERROR
    finally:
        await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"logLevel=")
    assert logging.getLogger("pyromq").level == logging.NOTSET


async def test_secrets_are_neither_told_nor_made_readable(server: NameServerInMemory) -> None:
    path = Path(server.config.config_store_path)
    write_file(path, b"tls.server.keyPassword=hush\n", mode=0o600)
    server.handlers.config = dataclasses.replace(server.config, tls_server_key_password="hush")

    answer = await server.ask(RequestCode.GET_NAMESRV_CONFIG)
    assert b"hush" not in answer.body
    await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")

    assert b"tls.server.keyPassword=hush" in (read_file(path) or b"")
    assert os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(RequestError, match=r"tls\.server\.mode cannot be changed while"):
        await server.ask(
            RequestCode.UPDATE_NAMESRV_CONFIG,
            body=b"tls.server.mode=permissive\ntls.test.mode.enable=true",
        )


async def test_what_else_is_in_the_settings_file_is_kept(server: NameServerInMemory) -> None:
    path = Path(server.config.config_store_path)
    write_file(path, b"serverWorkerThreads=8\nlistenPort=1\n")

    await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")

    saved = parse_properties(read_file(path) or b"")
    assert saved["serverWorkerThreads"] == "8"
    assert saved["listenPort"] == "9876"
    assert saved["orderMessageEnable"] == "true"


async def test_a_settings_file_that_cannot_be_read_is_replaced(server: NameServerInMemory) -> None:
    path = Path(server.config.config_store_path)
    write_file(path, b"a=\\u12")

    await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")

    assert parse_properties(read_file(path) or b"")["orderMessageEnable"] == "true"


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"kvConfigPath=/etc/x", ResponseCode.NO_PERMISSION, "Can not update config path"),
        (b"configStorePath=/etc/x", ResponseCode.NO_PERMISSION, "Can not update config path"),
        (b"listenPort=x", ResponseCode.SYSTEM_ERROR, "listenPort=x: expected"),
        (b"a=\\u12", ResponseCode.SYSTEM_ERROR, "line 2"),
    ],
)
async def test_settings_that_must_not_change(
    server: NameServerInMemory, body: bytes, code: ResponseCode, remark: str
) -> None:
    with pytest.raises(RequestError) as raised:
        await server.ask(
            RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n" + body
        )
    assert raised.value.code is code
    assert raised.value.remark.startswith(remark)
    assert server.handlers.config == server.config
    assert read_file(Path(server.config.config_store_path)) is None
