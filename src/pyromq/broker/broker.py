"""A broker: builds its parts, starts them, stops them. No logic of its own.

Order of start: tables, store, long poll, listening (main port and the fast port two
below it), registration, periodic work. Stop is the reverse: first the NameServers
forget the broker, then sends are refused while what is under way is answered, then no
connection is left, then store and tables are closed.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from pyromq.base.descriptors import descriptors_needed
from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.admin.clients import ClientAdminHandlers
from pyromq.broker.handlers.admin.config import ConfigAdminHandlers
from pyromq.broker.handlers.admin.consume_stats import ConsumeStatsHandlers
from pyromq.broker.handlers.admin.delay import DelayAdminHandlers
from pyromq.broker.handlers.admin.maintenance import MaintenanceHandlers
from pyromq.broker.handlers.admin.offsets import OffsetAdminHandlers
from pyromq.broker.handlers.admin.queue_entries import QueueEntryHandlers
from pyromq.broker.handlers.admin.queue_offsets import QueueOffsetHandlers
from pyromq.broker.handlers.admin.stats import StatsAdminHandlers
from pyromq.broker.handlers.admin.topic import TopicAdminHandlers
from pyromq.broker.handlers.heartbeat import HeartbeatHandlers
from pyromq.broker.handlers.locks import LockHandlers
from pyromq.broker.handlers.offsets import OffsetHandlers
from pyromq.broker.handlers.pull import PullHandlers
from pyromq.broker.handlers.query import QueryHandlers
from pyromq.broker.handlers.reply import ReplyHandlers
from pyromq.broker.handlers.send import SendHandlers, answers_after_flush
from pyromq.broker.handlers.send_back import SendBackHandlers
from pyromq.broker.handlers.transaction import TransactionHandlers
from pyromq.broker.hooks import Hooks, with_hooks
from pyromq.broker.inner_messages import MessageWriter
from pyromq.broker.routes import QUERIES, Handlers, Routes, build_routes, with_body_limits
from pyromq.broker.services.delay import DelayService
from pyromq.broker.services.flow_control import (
    FastFailure,
    Lanes,
    refuse_sends,
    reject_sends_while,
)
from pyromq.broker.services.live_config import LiveConfig
from pyromq.broker.services.long_poll import LongPoll
from pyromq.broker.services.notices import GroupNotices
from pyromq.broker.services.registration import Registration
from pyromq.broker.services.stats import SAMPLE_SECONDS, BrokerStats
from pyromq.broker.services.topic_deletion import TopicDeletion
from pyromq.broker.services.transaction_check import TransactionCheck
from pyromq.broker.state.connections import ConsumerTable, ProducerTable
from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.broker.state.deleted_topics import DeletedTopicTable
from pyromq.broker.state.filters import ConsumerFilterTable
from pyromq.broker.state.groups import GroupTable
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.broker.state.persistence import TableFile
from pyromq.broker.state.queue_locks import QueueLockTable
from pyromq.broker.state.topics import TopicTable
from pyromq.broker.state.transactions import TransactionTable
from pyromq.protocol.message.message_id import encode_host, format_address
from pyromq.protocol.wire.codes import RequestCode
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.limits import PeerLimits
from pyromq.remoting.server import RemotingServer
from pyromq.store.config import BrokerRole, MessageStoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.extension import BitMapOf

logger = logging.getLogger(__name__)

#: The fast port, where consumers' answers never wait behind sends, is this far below.
_FAST_PORT_DISTANCE: Final = 2
#: So many pulls, each with up to 256 KiB to answer, are handled before a client that does
#: not read is noticed.
_MAX_RUNS: Final[dict[int, int]] = {
    RequestCode.PULL_MESSAGE: 8,
    RequestCode.LITE_PULL_MESSAGE: 8,
}
_EXPIRY_SECONDS: Final = 10.0
#: How long a stop waits for requests that are under way.
_DRAIN_SECONDS: Final = 5.0
#: How often another port is tried when any will do and the fast port beside it is taken.
_PORT_ATTEMPTS: Final = 50


StoreFactory = Callable[
    [MessageStoreConfig, bytes, Callable[[ConsumeQueue], None], BitMapOf | None], MessageStore
]


class Broker:
    """Stores messages and serves producers and consumers."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        *,
        hooks: Hooks | None = None,
        store_factory: StoreFactory = MessageStore,
        config_file: Path | None = None,
    ) -> None:
        """`store_factory` builds the store; another engine must do what tests/contract asks.

        `config_file` is where changes of settings are saved: the file they were read from.
        """
        self._config = config
        self._config_file = config_file
        self._hooks = hooks or Hooks()
        self._store_factory = store_factory
        self._store_config = store_config
        directory = store_config.config_directory
        self.topics = TopicTable(config, directory)
        self.deleted_topics = DeletedTopicTable(directory)
        self.groups = GroupTable(config, directory)
        self.offsets = ConsumerOffsetTable(directory, max_pairs=lambda: config.max_consumer_offsets)
        self.delay_offsets = DelayOffsetTable(directory, store_config.root / "abort")
        self.filters = ConsumerFilterTable(config, directory)
        self.consumers = ConsumerTable()
        self.consumers.on_subscribed = self.filters.register
        self.consumers.on_gone = self.filters.unregister
        self.producers = ProducerTable()
        self._notices = GroupNotices(self.consumers)
        self.queue_locks = QueueLockTable(max_locks=lambda: config.max_queue_locks)
        self.long_poll = LongPoll(config)
        self.lanes = Lanes(config)
        self.store: MessageStore | None = None
        self.delay: DelayService | None = None
        self.transactions = TransactionTable()
        self.transaction_check: TransactionCheck | None = None
        self._client = RemotingClient(connect_timeout=config.connect_timeout_millis / 1000)
        self._registration: Registration | None = None
        self._servers: list[RemotingServer] = []
        self._periodic: list[asyncio.Task[None]] = []
        self._port = config.listen_port
        self._tables = (
            self.topics,
            self.deleted_topics,
            self.groups,
            self.offsets,
            self.filters,
            self.delay_offsets,
        )

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self._port

    @property
    def address(self) -> str:
        """Where clients reach the broker."""
        return format_address(self._config.broker_ip1, self._port)

    async def start(self) -> None:
        """Serve; raises OSError, StoreError or PersistenceError when that is not possible."""
        record_address = await _resolve(self._config.broker_ip1)
        self._servers = _bind_servers(
            self._config, descriptors_needed(self._store_config.max_mapped_files)
        )
        self._port = self._servers[0].port
        for table in self._tables:
            table.load()
        store_host = encode_host(record_address, self._port)
        bit_map_of = self.filters.bit_map if self._config.enable_calc_filter_bit_map else None
        store = self._store_factory(
            self._store_config, store_host, self.long_poll.arrived, bit_map_of
        )
        store.start()
        # Only now: a store that another broker holds, and its tables, are not ours to close.
        self.store = store
        self.delay_offsets.begin(store.max_physical_offset)
        self.deleted_topics.begin(store)
        self.topics.adopt(store.queue_counts())
        self.offsets.forget_other_topics(self.topics)
        await store.retention.check_disk()
        self._registration = Registration(
            self._config,
            self.topics,
            self._client,
            broker_address=self.address,
            ha_address=format_address(self._config.broker_ip2, self._store_config.ha_listen_port),
        )
        heartbeat = HeartbeatHandlers(
            self._config,
            self.topics,
            self.groups,
            self.consumers,
            self.producers,
            self.lanes.heartbeat,
            self._notices,
        )
        stats = BrokerStats(store.growth, self._config.broker_cluster_name)
        fast_failure = FastFailure(self._config, self._store_config)
        routes = self._routes(store, heartbeat, self._registration, stats, fast_failure, store_host)
        if self.transaction_check is not None:
            await self.transaction_check.load()
        self.long_poll.start()
        for server in self._servers:
            server.handlers = routes.plain
            server.hot_handlers = routes.hot
            server.on_chunk_end = fast_failure.timed(store.end_chunk)
            server.lateness.limit = fast_failure.shortest_limit
            server.refuse_late = fast_failure.refuse
            server.late_answers = answers_after_flush
            if self._store_config.refuses_without_buffer:
                reject_sends_while(lambda: store.free_buffers == 0, server)
            server.on_disconnect = heartbeat.disconnected
            await server.start()
        if self.delay is not None:
            self.delay.start()
        if self.transaction_check is not None:
            self.transaction_check.start()
        await self._registration.start()
        interval = self._config.flush_consumer_offset_interval / 1000
        cleaning = self._store_config.clean_resource_interval / 1000
        self._periodic = [
            asyncio.create_task(_every(SAMPLE_SECONDS, stats.sample)),
            asyncio.create_task(_every(_EXPIRY_SECONDS, heartbeat.expire)),
            asyncio.create_task(_every(_EXPIRY_SECONDS, self.queue_locks.expire)),
            asyncio.create_task(_every(_EXPIRY_SECONDS, self.filters.clean)),
            asyncio.create_task(_every(interval, self.offsets.save_if_changed)),
            asyncio.create_task(_every(interval, self._note_transactions)),
            asyncio.create_task(_every(interval, self._save_again)),
            asyncio.create_task(_every(cleaning, store.retention.check_disk)),
            asyncio.create_task(_every(cleaning, store.retention.clean)),
        ]

    async def stop(self) -> None:
        """Take leave of NameServers and clients, then close store and tables."""
        for task in self._periodic:
            task.cancel()
        await asyncio.gather(*self._periodic, return_exceptions=True)
        if self._registration is not None:
            await self._registration.stop()
        if self.delay is not None:
            await self.delay.stop()
        if self.transaction_check is not None:
            await self.transaction_check.stop()
        if self.store is not None:
            for server in self._servers:
                refuse_sends(server)
            await asyncio.gather(*(server.drain(_DRAIN_SECONDS) for server in self._servers))
            self.long_poll.stop()
        await asyncio.gather(*(server.stop() for server in self._servers))
        await self._notices.stop()
        await self._client.close()
        await self.lanes.stop()
        store, self.store = self.store, None
        if store is not None:
            try:
                store.stop()
            finally:
                # Also of a store that could not be flushed: the tables are as good as before.
                self.delay_offsets.settle(store.flushed_offset)
                if self.transaction_check is not None:
                    self.transaction_check.settle_all(store.flushed_offset)
                await _close_tables(
                    self.topics.file,
                    self.deleted_topics.file,
                    self.groups.file,
                    self.offsets.file,
                    self.filters.file,
                    self.delay_offsets,
                )

    async def cut_off(self) -> None:
        """Let go of ports and connections at once, as the end of the process would.

        For tests of faults: nobody is told. `stop` closes what is left.
        """
        for server in self._servers:
            for connection in list(server.connections):
                connection.abort()
        await asyncio.gather(*(server.stop() for server in self._servers))
        if self._registration is not None:
            await self._registration.stop(unregister=False)
            self._registration = None
        await self._client.close()

    def _note_transactions(self) -> None:
        if self.transaction_check is not None:
            self.transaction_check.note_progress()

    def _save_again(self) -> None:
        for table in self._tables:
            table.file.save_if_failed()

    def _routes(
        self,
        store: MessageStore,
        heartbeat: HeartbeatHandlers,
        registration: Registration,
        stats: BrokerStats,
        fast_failure: FastFailure,
        store_host: bytes,
    ) -> Routes:
        pull = PullHandlers(
            self._config,
            store,
            self.topics,
            self.groups,
            self.consumers,
            self.offsets,
            self.long_poll,
            self.lanes.pull,
            stats,
            self.filters,
        )
        if self._hooks.consume:
            pull.on_found = self._hooks.found

        async def announce() -> None:
            """Topics as they are now: known to the NameServers, and on the disk."""
            await asyncio.gather(registration.register_now(), self.topics.file.saved())

        writer = MessageWriter(store)
        if self._store_config.broker_role is not BrokerRole.SLAVE:
            self.delay = DelayService(store, writer, self.delay_offsets)
            self.transaction_check = TransactionCheck(
                self._config,
                store,
                writer,
                self.transactions,
                self.topics,
                self.offsets,
                self.producers,
                self.lanes.end_transaction,
                store_host,
            )
        live_config = LiveConfig(self._config, self._store_config, self._config_file)

        def settings_changed(keys: list[str]) -> None:
            self.topics.settings_changed()
            send.settings_changed()
            pull.settings_changed()
            self.lanes.set_limits(self._config)
            fast_failure.set_limits(self._config)
            for server in self._servers:
                server.lateness.limit = fast_failure.shortest_limit
            if "brokerPermission" in keys:
                self.topics.new_version()
                registration.register_soon()

        live_config.listeners.append(settings_changed)
        send = SendHandlers(
            self._config,
            store,
            writer,
            self.topics,
            self.groups,
            store_host,
            register=announce,
        )
        deletion = TopicDeletion(self.topics, self.offsets, self.deleted_topics, store)
        routes = build_routes(
            Handlers(
                send=send,
                send_back=SendBackHandlers(
                    self._config,
                    store,
                    writer,
                    self.topics,
                    self.groups,
                    self.lanes.send,
                    register=announce,
                    on_sent_back=stats.sent_back,
                ),
                reply=ReplyHandlers(self._config, writer, self.producers, store_host, send.check),
                transaction=TransactionHandlers(
                    store,
                    writer,
                    self.transactions,
                    self.lanes.end_transaction,
                    store_host,
                    is_replica=self._store_config.broker_role is BrokerRole.SLAVE,
                ),
                pull=pull,
                heartbeat=heartbeat,
                locks=LockHandlers(self._config, self.queue_locks, self.lanes.heartbeat),
                offsets=OffsetHandlers(self.offsets, store, self.topics, self.groups),
                query=QueryHandlers(store, self.lanes.query),
                topic_admin=TopicAdminHandlers(
                    self.topics,
                    self.groups,
                    self.offsets,
                    deletion,
                    self.lanes.admin,
                    stats,
                    self._config,
                    register=announce,
                    is_replica=self._store_config.broker_role is BrokerRole.SLAVE,
                ),
                stats_admin=StatsAdminHandlers(
                    self._config,
                    store,
                    stats,
                    self.lanes,
                    self.delay_offsets,
                    halves_without_producer=lambda: (
                        0
                        if self.transaction_check is None
                        else self.transaction_check.without_producer
                    ),
                ),
                config_admin=ConfigAdminHandlers(live_config),
                maintenance=MaintenanceHandlers(store, self.topics, deletion),
                queue_offsets=QueueOffsetHandlers(store, self.lanes.admin),
                client_admin=ClientAdminHandlers(
                    self._config,
                    store,
                    self.consumers,
                    self.producers,
                    self.offsets,
                    self.lanes.admin,
                ),
                offset_admin=OffsetAdminHandlers(
                    self._config,
                    store,
                    self.topics,
                    self.consumers,
                    self.offsets,
                    self.lanes.admin,
                    self.groups,
                ),
                consume_stats=ConsumeStatsHandlers(
                    self._config,
                    store,
                    self.topics,
                    self.groups,
                    self.consumers,
                    self.offsets,
                    stats,
                    self.lanes.admin,
                    self.address,
                ),
                queue_entries=QueueEntryHandlers(
                    store, self.consumers, self.filters, self.lanes.admin
                ),
                delay_admin=DelayAdminHandlers(self.delay_offsets),
            )
        )
        return with_hooks(with_body_limits(routes, self._config), self._hooks)


def _bind_servers(config: BrokerConfig, reserved: int) -> list[RemotingServer]:
    """The main server and the fast one, with their ports taken; handlers come later.

    `reserved` descriptors are left to the store.
    """
    limits = PeerLimits.of(config, reserved)
    for attempt in range(_PORT_ATTEMPTS):
        main = _server(config, config.listen_port, limits)
        main.bind()
        fast = _server(config, main.port - _FAST_PORT_DISTANCE, limits)
        try:
            fast.bind()
        except OSError:
            main.close_socket()
            if config.listen_port or attempt == _PORT_ATTEMPTS - 1:
                raise
        else:
            return [main, fast]
    raise AssertionError("the last attempt returns or raises")


def _server(config: BrokerConfig, port: int, limits: PeerLimits) -> RemotingServer:
    return RemotingServer(
        {},
        host=config.bind_address,
        port=port,
        idle_seconds=config.server_channel_max_idle_time_seconds,
        max_runs=_MAX_RUNS,
        queries=QUERIES,
        limits=limits,
    )


async def _resolve(host: str) -> str:
    """The IP address that records and message ids carry, where brokerIP1 is a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        loop = asyncio.get_running_loop()
    else:
        return host
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OSError(
            errno.EADDRNOTAVAIL, f"brokerIP1={host} cannot be resolved: {reason}"
        ) from error
    # IPv4 first: every client can read the records then.
    found.sort(key=lambda address: address[0] != socket.AF_INET)
    return str(found[0][4][0])


async def _close_tables(*tables: TableFile | DelayOffsetTable) -> None:
    """Save every table, also when one of them cannot be; raises the first PersistenceError."""
    faults = await asyncio.gather(*(table.close() for table in tables), return_exceptions=True)
    for fault in faults:
        if fault is not None:
            raise fault


async def _every(seconds: float, work: Callable[[], Awaitable[None] | None]) -> None:
    """Do some work again and again, whatever becomes of one time."""
    while True:
        await asyncio.sleep(seconds)
        try:
            begun = work()
            if begun is not None:
                await begun
        except Exception:
            logger.exception("%s failed, tried again in %g s", work.__qualname__, seconds)
