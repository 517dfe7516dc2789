"""What a NameServer answers: one method per request, and the table of codes.

Every method has the `Handler` signature of `remoting.server`. What cannot be answered is a
`RequestError` (code and remark as RocketMQ gives them), a `HeaderError` or a `BodyError`;
the server turns each into an error answer.

Runs on the loop. Only changes of the KV configuration and of the settings wait for the disk,
so only they are coroutines.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pyromq.nameserver import files
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from pyromq.nameserver.production import ProductionRoutes, was_forwarded
from pyromq.nameserver.route_table import BrokerIdentity, RouteTable
from pyromq.protocol.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    TopicList,
)
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.crc import CRC_MASK, crc32
from pyromq.protocol.fastjson import parse_json
from pyromq.protocol.frame import RemotingCommand, RequestError
from pyromq.protocol.headers import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from pyromq.protocol.headers_admin import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from pyromq.protocol.java_properties import PropertiesError, format_properties, parse_properties
from pyromq.protocol.settings import ConfigError
from pyromq.remoting.server import Connection, Handler

logger = logging.getLogger(__name__)

#: Ordinals in RocketMQ's list of versions, as frames carry them.
VERSION_3_0_11 = 37
VERSION_4_9_4 = 401

_NO_ROUTE_HELP = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

#: Whoever may change settings must not be able to make the server write files anywhere.
_FIXED_KEYS = ("kvConfigPath", "configStorePath")


#: A registration of this size is worth a look whether it is the same as the last one.
_LARGE_BODY = 16 * 1024
_MAX_LAST_BODIES = 10_000


class _LastBody(NamedTuple):
    """What is kept of a registration."""

    digest: bytes
    version: DataVersion
    filter_servers: list[str]


class NameServerHandlers:
    """The requests of brokers, clients and administrators."""

    def __init__(
        self,
        config: NamesrvConfig,
        routes: RouteTable[Connection],
        kv_config: KVConfig,
        clock: Callable[[], float] = time.monotonic,
        production: ProductionRoutes | None = None,
    ) -> None:
        """`production` is asked for unknown topics while `clusterTest` is set."""
        self.config = config
        self._production = production
        self._routes = routes
        self._kv_config = kv_config
        self._clock = clock
        self._saving = asyncio.Lock()
        #: What brokers with many topics registered last, by their addresses.
        self._last_bodies: dict[str, _LastBody] = {}

    def table(self) -> Mapping[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route_by_topic,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_subscribed_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_subscribed_common_topics,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_permission,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.PUT_KV_CONFIG: self.put_kv_config,
            RequestCode.GET_KV_CONFIG: self.get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_list_by_namespace,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    # Brokers

    def register_broker(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """A broker says that it lives and what it has."""
        header = RegisterBrokerRequestHeader.decode(request.ext_fields)
        if header.body_crc32 not in (0, crc32(request.body) & CRC_MASK):
            logger.warning("registration from %s: CRC does not match", connection.remote_address)
            raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        identity = _identity(header)
        topics, filter_servers = self._registered_before(request, identity) or self._registered(
            request, identity, header.compressed
        )
        result = self._routes.register(
            identity,
            header.ha_server_addr,
            topics,
            filter_servers,
            connection,
            self._clock(),
        )
        answer_header = RegisterBrokerResponseHeader(result.ha_server_addr, result.master_addr)
        order_config = self._kv_config.namespace(ORDER_TOPIC_CONFIG)
        return request.answer(
            ext_fields=answer_header.encode(),
            body=b"" if order_config is None else KVTable(order_config).encode(),
        )

    def _registered_before(
        self, request: RemotingCommand, identity: BrokerIdentity
    ) -> tuple[TopicConfigSerializeWrapper, list[str] | None] | None:
        """What a live broker said last, without its topics, if it says the same again.

        It does so every 30 seconds: then nothing needs to be read.
        """
        if len(request.body) < _LARGE_BODY:
            return None
        last = self._last_bodies.get(identity.broker_addr)
        if (
            last is None
            or not self._routes.is_known(identity)
            or last.version != self._routes.data_version(identity.broker_addr)
            or last.digest != _digest(request.body)
        ):
            return None
        return TopicConfigSerializeWrapper(data_version=last.version), last.filter_servers

    def _registered(
        self, request: RemotingCommand, identity: BrokerIdentity, compressed: bool
    ) -> tuple[TopicConfigSerializeWrapper, list[str] | None]:
        """The topics and filter servers of a registration; None where it says nothing of them.

        A broker sends all its topics each time: those that are known as they are, are left out.
        """
        if request.version < VERSION_3_0_11:
            topics = TopicConfigSerializeWrapper()
            if request.body:
                topics = TopicConfigSerializeWrapper.decode(request.body)
            return topics, None
        if not request.body:
            return TopicConfigSerializeWrapper(), []
        if compressed:
            body = RegisterBrokerBody.decode(request.body, compressed=True)
        else:
            value = parse_json(request.body, standard_json=True)
            try:
                wrapper = value["topicConfigSerializeWrapper"]
                wrapper["topicConfigTable"] = self._routes.unknown_topics(
                    identity.broker_name, wrapper["topicConfigTable"]
                )
            except (KeyError, TypeError, AttributeError):
                pass  # said, where it is wrong, by the next step
            body = RegisterBrokerBody.from_value(value)
        if len(request.body) >= _LARGE_BODY:
            if len(self._last_bodies) >= _MAX_LAST_BODIES:
                self._last_bodies.clear()
            self._last_bodies[identity.broker_addr] = _LastBody(
                _digest(request.body),
                body.topic_config_serialize_wrapper.data_version,
                body.filter_server_list,
            )
        return body.topic_config_serialize_wrapper, body.filter_server_list

    def unregister_broker(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """A broker says goodbye."""
        header = UnRegisterBrokerRequestHeader.decode(request.ext_fields)
        self._routes.unregister(_identity(header))
        return request.answer()

    def query_data_version(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """A broker asks whether it must register its topics again; if not, it is alive."""
        header = QueryDataVersionRequestHeader.decode(request.ext_fields)
        changed = self._routes.is_changed(header.broker_addr, DataVersion.decode(request.body))
        if not changed:
            self._routes.touch(header.broker_addr, self._clock())
        known = self._routes.data_version(header.broker_addr)
        return request.answer(
            ext_fields=QueryDataVersionResponseHeader(changed).encode(),
            body=b"" if known is None else known.encode(),
        )

    # Routes

    def route_by_topic(
        self, _: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """A client asks where a topic lives."""
        header = GetRouteInfoRequestHeader.decode(request.ext_fields)
        route = self._routes.route(header.topic)
        if route is None:
            if self.config.cluster_test and self._production and not was_forwarded(request):
                return self._production_route(request, header.topic, self._production)
            raise _no_route(header.topic)
        if self.config.order_message_enable or self.config.cluster_test:
            route.order_topic_conf = self._kv_config.get(ORDER_TOPIC_CONFIG, header.topic)
        standard_json = request.version >= VERSION_4_9_4 or header.accept_standard_json_only is True
        return request.answer(body=route.encode(standard_json=standard_json))

    async def _production_route(
        self, request: RemotingCommand, topic: str, production: ProductionRoutes
    ) -> RemotingCommand:
        route = await production.route(topic)
        if route is None:
            raise _no_route(topic)
        return request.answer(body=route)

    def cluster_info(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """All brokers and clusters."""
        return request.answer(body=self._routes.cluster_info().encode())

    def all_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """All topics."""
        return _topic_list(request, self._routes.all_topics())

    def topics_by_cluster(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The topics of one cluster."""
        header = GetTopicsByClusterRequestHeader.decode(request.ext_fields)
        return _topic_list(request, self._routes.topics_of_cluster(header.cluster))

    def system_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Topics named after clusters and brokers."""
        return _topic_list(request, self._routes.system_topics())

    def unit_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Topics of a unit."""
        return _topic_list(request, self._routes.unit_topics())

    def unit_subscribed_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Topics that a unit subscribes to."""
        return _topic_list(request, self._routes.unit_subscribed_topics())

    def unit_subscribed_common_topics(
        self, _: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Topics that a unit subscribes to and that are no unit's own."""
        return _topic_list(request, self._routes.unit_subscribed_common_topics())

    # Administration of routes

    def wipe_write_permission(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Take a broker out of the producers' choice."""
        header = WipeWritePermOfBrokerRequestHeader.decode(request.ext_fields)
        count = self._routes.wipe_write_permission(header.broker_name)
        logger.info(
            "write permission of broker %s wiped by %s: %d topics",
            header.broker_name,
            connection.remote_address,
            count,
        )
        return request.answer(ext_fields=WipeWritePermOfBrokerResponseHeader(count).encode())

    def add_write_permission(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Put a broker back into the producers' choice."""
        header = AddWritePermOfBrokerRequestHeader.decode(request.ext_fields)
        count = self._routes.add_write_permission(header.broker_name)
        logger.info(
            "write permission of broker %s given by %s: %d topics",
            header.broker_name,
            connection.remote_address,
            count,
        )
        return request.answer(ext_fields=AddWritePermOfBrokerResponseHeader(count).encode())

    def delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Forget a topic, everywhere or in one cluster."""
        header = DeleteTopicFromNamesrvRequestHeader.decode(request.ext_fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        logger.info("topic %s deleted by %s", header.topic, connection.remote_address)
        return request.answer()

    # KV configuration

    async def put_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Set a key."""
        header = PutKVConfigRequestHeader.decode(request.ext_fields)
        try:
            await self._kv_config.put(header.namespace, header.key, header.value)
        except OSError as error:
            raise _not_saved(self.config.kv_config_path, error) from error
        return request.answer()

    def get_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The value of a key."""
        header = GetKVConfigRequestHeader.decode(request.ext_fields)
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return request.answer(ext_fields=GetKVConfigResponseHeader(value).encode())

    async def delete_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Remove a key."""
        header = DeleteKVConfigRequestHeader.decode(request.ext_fields)
        try:
            await self._kv_config.delete(header.namespace, header.key)
        except OSError as error:
            raise _not_saved(self.config.kv_config_path, error) from error
        return request.answer()

    def kv_list_by_namespace(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """All keys of a namespace."""
        header = GetKVListByNamespaceRequestHeader.decode(request.ext_fields)
        table = self._kv_config.namespace(header.namespace)
        if table is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return request.answer(body=KVTable(table).encode())

    # Settings

    async def update_config(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Change settings and save them; keys that this server does not have are ignored."""
        try:
            properties = parse_properties(request.body)
        except PropertiesError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if any(key in properties for key in _FIXED_KEYS):
            raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config path")
        try:
            self.config = self.config.changed(properties)
        except ConfigError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        logger.info("settings changed by %s: %s", connection.remote_address, ", ".join(properties))
        path = Path(self.config.config_store_path)
        try:
            async with self._saving:
                await asyncio.to_thread(_save_settings, path, self.config.to_properties())
        except OSError as error:
            raise _not_saved(str(path), error) from error
        return request.answer()

    def get_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """All settings."""
        return request.answer(body=format_properties(self.config.to_properties()).encode())


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _save_settings(path: Path, settings: dict[str, str]) -> None:
    """Write the settings, and keep what else is in the file: other programs' keys."""
    content = files.load(path)
    try:
        before = {} if content is None else parse_properties(content)
    except PropertiesError as error:
        logger.warning("%s is replaced, it cannot be read: %s", path, error)
        before = {}
    files.save(path, format_properties({**before, **settings}).encode())


def _no_route(topic: str) -> RequestError:
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST,
        f"No topic route info in name server for the topic: {topic}{_NO_ROUTE_HELP}",
    )


def _identity(
    header: RegisterBrokerRequestHeader | UnRegisterBrokerRequestHeader,
) -> BrokerIdentity:
    return BrokerIdentity(
        cluster_name=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        broker_addr=header.broker_addr,
    )


def _topic_list(request: RemotingCommand, topics: TopicList) -> RemotingCommand:
    return request.answer(body=topics.encode())


def _not_saved(path: str, error: OSError) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"the change is in effect but will be lost at a restart: cannot write {path}: {error}",
    )
