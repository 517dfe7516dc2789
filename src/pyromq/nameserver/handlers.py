"""Handle the NameServer's requests: one method per request, and the table of codes.

Every method is a `Handler`. It raises `RequestError` (with RocketMQ's code and remark),
`HeaderError` or `BodyError` for a request that it cannot serve; the server turns each into an error
response.

Runs on the loop. Changes of the KV configuration and of settings wait for the disk, so they are
coroutines. A large registration is a coroutine too and is read in slices; later requests of the
same broker wait until it has been applied.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Final

from pyromq.base.atomic_file import read_file, write_file
from pyromq.base.log_levels import apply_levels
from pyromq.base.settings import ConfigError, settings_of
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig, KVLimitError
from pyromq.nameserver.production import ProductionRoutes, was_forwarded
from pyromq.nameserver.registration import Registration, RegistrationReader
from pyromq.nameserver.route_table import (
    MAX_NAME_LENGTH,
    BrokerIdentity,
    RouteLimitError,
    RouteTable,
    is_legal_name,
)
from pyromq.protocol.java.fastjson import dump_json
from pyromq.protocol.java.properties import PropertiesError, format_properties, parse_properties
from pyromq.protocol.java.wire_types import shorten
from pyromq.protocol.message.crc import CRC_MASK, crc32
from pyromq.protocol.wire.bodies import (
    DataVersion,
    KVTable,
    RegistrationTooLargeError,
    TopicConfigSerializeWrapper,
    TopicList,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import MAX_FRAME, RemotingCommand, RequestError
from pyromq.protocol.wire.headers import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from pyromq.protocol.wire.headers_admin import (
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
from pyromq.remoting.connection import Connection, Handler

logger = logging.getLogger(__name__)

#: Ordinals in RocketMQ's list of versions, as frames carry them.
VERSION_3_0_11 = 37
VERSION_4_9_4 = 401

_NO_ROUTE_HELP = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

#: A client that may change settings must not choose where the server writes files.
_FIXED_KEYS = ("kvConfigPath", "configStorePath")

#: Registrations of at least this many bytes are compared with the last one before parsing.
_LARGE_BODY: Final = 16 * 1024
#: Registrations of at least this many bytes are read in slices; compressed ones always are.
_SLICED_BODY: Final = 256 * 1024
#: Cap on the bytes of queued registrations; beyond it brokers get SYSTEM_BUSY and retry.
MAX_WAITING_SIZE: Final = 128 * 1024 * 1024
#: Cap on the body of a data version or a settings change; a few hundred bytes are common.
MAX_SMALL_BODY: Final = 64 * 1024
#: Bytes reserved for the header of a registration's response.
_HEADER_ROOM: Final = 64 * 1024


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
        """Ask `production` for unknown topics while `clusterTest` is set."""
        self.config = config
        self._production = production
        self._routes = routes
        self._kv_config = kv_config
        self._clock = clock
        self._saving = asyncio.Lock()
        self._reader = RegistrationReader(
            config.max_registration_size, config.max_topics_per_broker, routes.unknown_topics
        )
        #: Held while a registration is read in slices; waiters are served in FIFO order.
        self._turn = asyncio.Lock()
        #: Queued and running requests per broker address.
        self._in_turn: Counter[str] = Counter()
        self._waiting_size = 0

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
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

    def register_broker(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Register a broker and its topics; brokers repeat this every 30 seconds."""
        header = RegisterBrokerRequestHeader.decode(request.ext_fields)
        if header.body_crc32 not in (0, crc32(request.body) & CRC_MASK):
            logger.warning(
                "registration from %s refused: its CRC does not match", connection.remote_address
            )
            raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        _check_names(header)
        address = header.broker_addr
        steps = self._registration(connection, request, header)
        if address in self._in_turn or header.compressed or len(request.body) >= _SLICED_BODY:
            return self._take_turn(connection, address, len(request.body), steps)
        return _run(steps)

    def unregister_broker(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Remove a broker that shuts down."""
        header = UnRegisterBrokerRequestHeader.decode(request.ext_fields)
        steps = self._goodbye(request, header)
        if header.broker_addr in self._in_turn:
            return self._take_turn(connection, header.broker_addr, 0, steps)
        return _run(steps)

    def _registration(
        self, connection: Connection, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> Generator[None, None, RemotingCommand]:
        identity = _identity(header)
        digest = _digest(identity, request.body) if len(request.body) >= _LARGE_BODY else b""
        # Most registrations repeat the previous one: skip parsing those.
        version = self._routes.repeated(identity, digest) if digest else None
        if version is not None:
            read = Registration(TopicConfigSerializeWrapper(data_version=version), None)
        else:
            read = yield from self._read(request, header)
        try:
            result = self._routes.register(
                identity,
                header.ha_server_addr,
                read.topics,
                read.filter_servers,
                connection,
                self._clock(),
                digest,
            )
        except RouteLimitError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        answer_header = RegisterBrokerResponseHeader(result.ha_server_addr, result.master_addr)
        order_config = self._kv_config.encoded(ORDER_TOPIC_CONFIG, MAX_FRAME - _HEADER_ROOM)
        return request.answer(ext_fields=answer_header.encode(), body=order_config or b"")

    def _read(
        self, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> Generator[None, None, Registration]:
        topics_only = request.version < VERSION_3_0_11
        if not request.body:
            return Registration(TopicConfigSerializeWrapper(), None if topics_only else [])
        try:
            return (
                yield from self._reader.read(
                    header.broker_name,
                    request.body,
                    compressed=header.compressed,
                    topics_only=topics_only,
                )
            )
        except RegistrationTooLargeError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"registration of broker {shorten(header.broker_name)} is too large: {error}"
                f" (maxRegistrationSize {self._reader.max_size},"
                f" maxTopicsPerBroker {self._reader.max_topics})",
            ) from None

    def _goodbye(
        self, request: RemotingCommand, header: UnRegisterBrokerRequestHeader
    ) -> Generator[None, None, RemotingCommand]:
        yield from ()
        self._routes.unregister(_identity(header))
        return request.answer()

    def _take_turn(
        self,
        connection: Connection,
        address: str,
        size: int,
        steps: Generator[None, None, RemotingCommand],
    ) -> Awaitable[RemotingCommand | None]:
        """Run steps after all queued ones, yielding to other requests between steps."""
        if self._waiting_size + size > MAX_WAITING_SIZE and self._waiting_size:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{self._waiting_size} bytes of registrations are queued,"
                f" limit {MAX_WAITING_SIZE}: retry later",
            )
        # Count now: the broker's next request may arrive before the coroutine starts.
        self._in_turn[address] += 1
        self._waiting_size += size
        return self._steps_in_turn(connection, address, size, steps)

    async def _steps_in_turn(
        self,
        connection: Connection,
        address: str,
        size: int,
        steps: Generator[None, None, RemotingCommand],
    ) -> RemotingCommand | None:
        try:
            async with self._turn:
                while not connection.closed:
                    try:
                        next(steps)
                    except StopIteration as end:
                        answer: RemotingCommand = end.value
                        return answer
                    await asyncio.sleep(0)
        finally:
            self._waiting_size -= size
            self._in_turn[address] -= 1
            if not self._in_turn[address]:
                del self._in_turn[address]
        return None

    def query_data_version(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell a broker whether to register its topics again; if not, note that it is alive."""
        header = QueryDataVersionRequestHeader.decode(request.ext_fields)
        _check_small(request)
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
        """Return the route of a topic."""
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
        """Return all brokers and clusters."""
        return request.answer(body=self._routes.cluster_info().encode())

    def all_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return all topics."""
        return _topic_list(request, self._routes.all_topics())

    def topics_by_cluster(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the topics of one cluster."""
        header = GetTopicsByClusterRequestHeader.decode(request.ext_fields)
        return _topic_list(request, self._routes.topics_of_cluster(header.cluster))

    def system_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the topics named after clusters and brokers."""
        return _topic_list(request, self._routes.system_topics())

    def unit_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the topics of a unit."""
        return _topic_list(request, self._routes.unit_topics())

    def unit_subscribed_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the topics that a unit subscribes to."""
        return _topic_list(request, self._routes.unit_subscribed_topics())

    def unit_subscribed_common_topics(
        self, _: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return the topics that a unit subscribes to but does not own."""
        return _topic_list(request, self._routes.unit_subscribed_common_topics())

    # Administration of routes

    def wipe_write_permission(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Stop producers from choosing a broker."""
        header = WipeWritePermOfBrokerRequestHeader.decode(request.ext_fields)
        count = self._routes.wipe_write_permission(header.broker_name)
        logger.info(
            "write permission wiped: broker %s, %d topics, by %s",
            shorten(header.broker_name),
            count,
            connection.remote_address,
        )
        return request.answer(ext_fields=WipeWritePermOfBrokerResponseHeader(count).encode())

    def add_write_permission(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Let producers choose a broker again."""
        header = AddWritePermOfBrokerRequestHeader.decode(request.ext_fields)
        count = self._routes.add_write_permission(header.broker_name)
        logger.info(
            "write permission restored: broker %s, %d topics, by %s",
            shorten(header.broker_name),
            count,
            connection.remote_address,
        )
        return request.answer(ext_fields=AddWritePermOfBrokerResponseHeader(count).encode())

    def delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete a topic from all clusters or from one."""
        header = DeleteTopicFromNamesrvRequestHeader.decode(request.ext_fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        logger.info("topic %s deleted by %s", shorten(header.topic), connection.remote_address)
        return request.answer()

    # KV configuration

    async def put_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Set a key of the KV configuration."""
        header = PutKVConfigRequestHeader.decode(request.ext_fields)
        try:
            await self._kv_config.put(header.namespace, header.key, header.value)
        except KVLimitError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except OSError as error:
            raise _not_saved(self.config.kv_config_path, error) from error
        return request.answer()

    def get_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the value of a key."""
        header = GetKVConfigRequestHeader.decode(request.ext_fields)
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {_echoed(header.namespace)}"
                f" Key: {_echoed(header.key)}",
            )
        return request.answer(ext_fields=GetKVConfigResponseHeader(value).encode())

    async def delete_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete a key."""
        header = DeleteKVConfigRequestHeader.decode(request.ext_fields)
        try:
            await self._kv_config.delete(header.namespace, header.key)
        except OSError as error:
            raise _not_saved(self.config.kv_config_path, error) from error
        return request.answer()

    def kv_list_by_namespace(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return all keys of a namespace."""
        header = GetKVListByNamespaceRequestHeader.decode(request.ext_fields)
        table = self._kv_config.namespace(header.namespace)
        if table is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {_echoed(header.namespace)}",
            )
        return request.answer(body=KVTable(table).encode())

    # Settings

    async def update_config(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Change live settings and save them; the remark names settings without effect."""
        _check_small(request)
        try:
            properties = parse_properties(request.body)
        except PropertiesError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if any(key in properties for key in _FIXED_KEYS):
            raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config path")
        try:
            config = self.config.changed(properties)
        except ConfigError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        # Any client may send this, so it must not change a limit or break the next start.
        changed = [
            item
            for item in settings_of(NamesrvConfig)
            if getattr(config, item.attribute) != getattr(self.config, item.attribute)
        ]
        for item in changed:
            if not item.live:
                raise RequestError(
                    ResponseCode.NO_PERMISSION,
                    f"{item.key} cannot be changed while the NameServer runs:"
                    f" set it in {self.config.config_store_path} and restart",
                )
        before, self.config = self.config, config
        if config.log_level != before.log_level:
            apply_levels(config.log_level)
        logger.info(
            "settings changed by %s: %s",
            connection.remote_address,
            ", ".join(f"{item.key}={getattr(config, item.attribute)}" for item in changed),
        )
        path = Path(self.config.config_store_path)
        try:
            async with self._saving:
                await asyncio.to_thread(_save_settings, path, self.config.to_properties())
        except OSError as error:
            raise _not_saved(str(path), error) from error
        return request.answer(remark="; ".join(NamesrvConfig.ineffective(properties)) or None)

    def get_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return all settings."""
        return request.answer(body=format_properties(self.config.to_properties()).encode())


def _run(steps: Generator[None, None, RemotingCommand]) -> RemotingCommand:
    """Run all steps without yielding."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: RemotingCommand = end.value
            return answer


def _digest(identity: BrokerIdentity, body: bytes) -> bytes:
    digest = hashlib.blake2b(body, digest_size=16)
    digest.update(f"{identity.cluster_name}\n{identity.broker_name}".encode())
    return digest.digest()


def _check_names(header: RegisterBrokerRequestHeader) -> None:
    for key, name in (
        ("brokerName", header.broker_name),
        ("clusterName", header.cluster_name),
        ("brokerAddr", header.broker_addr),
        ("haServerAddr", header.ha_server_addr or "-"),
    ):
        if not is_legal_name(name):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{key} {shorten(name)} has {len(name)} characters: expected 1 to"
                f" {MAX_NAME_LENGTH}, none of them a control character",
            )


def _check_small(request: RemotingCommand) -> None:
    if len(request.body) > MAX_SMALL_BODY:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"body of {len(request.body)} bytes for request {request.code}, limit {MAX_SMALL_BODY}",
        )


def _echoed(name: str) -> str:
    """Return a name for a response, cut if it is longer than any real one."""
    return name if len(name) <= MAX_NAME_LENGTH else shorten(name)


def _save_settings(path: Path, settings: dict[str, str]) -> None:
    """Save the settings and keep other keys that the file has."""
    content = read_file(path)
    try:
        before = {} if content is None else parse_properties(content)
    except PropertiesError as error:
        logger.warning("replacing %s, which cannot be read: %s", path, error)
        before = {}
    # Other keys may be secrets, which nobody else could read so far.
    mode = None if content is None else path.stat().st_mode & 0o7777
    write_file(path, format_properties({**before, **settings}).encode(), mode=mode, backup=True)


def _no_route(topic: str) -> RequestError:
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST,
        f"No topic route info in name server for the topic: {_echoed(topic)}{_NO_ROUTE_HELP}",
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
    names = topics.topic_list
    size = sum(map(len, names))
    if size > MAX_FRAME:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the names of {len(names)} topics have {size} bytes, limit {MAX_FRAME} per frame",
        )
    # Unsorted: sorting hundreds of thousands of names would dominate the cost.
    value = {**TopicList(set(), topics.broker_addr).to_value(), "topicList": list(names)}
    return request.answer(body=dump_json(value))


def _not_saved(path: str, error: OSError) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"the change is in effect but will be lost on restart: cannot write {path}: {error}",
    )
