"""A broker: starts its parts in order and stops them in reverse.

Start: bind the main port, the fast port two below it and the replication port above it, load the
tables, start the store (which recovers), assemble the request families (`broker.assembly`),
listen, register with the NameServers, start the periodic work. Stop: unregister, refuse sends while
requests in flight are answered, close the connections, close the store and the tables. The role may
change while the broker runs (`broker.role_switch`).

Requests, services and tables live in `handlers`, `services` and `state`. This module knows only
their order.

Used by the command line and, in-process, by `pyromq.testing` and tests. Runs on the loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyromq.acl.reload import INTERVAL_SECONDS, AclStore
from pyromq.acl.settings import audit_log_of, files_of
from pyromq.base.descriptors import descriptors_needed
from pyromq.base.log_levels import apply_levels
from pyromq.base.periodic import PeriodicTasks
from pyromq.broker.assembly import Assembly, assemble
from pyromq.broker.config import MASTER_ID, BrokerConfig
from pyromq.broker.extensions import ExtensionError, StoreFactory, load_hooks, load_store_factory
from pyromq.broker.hooks import Hooks
from pyromq.broker.instruments import BrokerInstruments
from pyromq.broker.parts import build_parts
from pyromq.broker.ports import HA_PORT_DISTANCE, bind_ports, resolve
from pyromq.broker.role import Role, RoleError
from pyromq.broker.role_switch import RoleSwitch
from pyromq.broker.services.access_control import AccessControl
from pyromq.broker.services.delay import DelayService
from pyromq.broker.services.flow_control import Lanes
from pyromq.broker.services.long_poll import LongPoll
from pyromq.broker.services.metadata_sync import MetadataSync
from pyromq.broker.services.name_server_lookup import NameServerLookup
from pyromq.broker.services.promotion import PromotedBroker, Promotion
from pyromq.broker.services.registration import Registration
from pyromq.broker.services.replication import BrokerReplication, remoting_master
from pyromq.broker.services.stats import SAMPLE_SECONDS
from pyromq.broker.services.transaction_check import TransactionCheck
from pyromq.broker.services.upkeep.upkeep import Upkeep
from pyromq.broker.state.tables import BrokerTables
from pyromq.metrics.settings import is_on
from pyromq.protocol.message.message_id import encode_host, format_address
from pyromq.protocol.wire import acl
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.server import RemotingServer
from pyromq.store.config import BrokerRole, MessageStoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.tls.server import ServerTls

if TYPE_CHECKING:  # loaded by brokers that use them: a start is quick
    from pyromq.broker.metrics.service import BrokerMetrics
    from pyromq.broker.services.raft import BrokerRaft

_EXPIRY_SECONDS: Final = 10.0
#: How long a stop waits for requests in flight.
_DRAIN_SECONDS: Final = 5.0


class Broker:
    """Stores messages and serves producers and consumers."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        *,
        hooks: Hooks | None = None,
        store_factory: StoreFactory | None = None,
        config_file: Path | None = None,
        role_file: Path | None = None,
        on_failure: Callable[[str], None] | None = None,
        raft_timing: dict[str, int] | None = None,
    ) -> None:
        """`store_factory` builds the store; other engines must pass tests/contract.

        Hooks and a store that the settings name are loaded at the start, unless they are given.
        `config_file` is the file that the settings were read from; changes are saved there. A
        change of the role goes to `role_file`, if given: brokers may share a `config_file`.
        `on_failure` gets the reason if the broker cannot do its job any more, and should stop it:
        a replica whose log is not its master's. Without it the broker leaves the network.
        `raft_timing` replaces intervals of `raft.member.Settings`, for tests.
        """
        self._raft_timing = raft_timing or {}
        self._config = config
        self._config_file = config_file
        self._role_file = role_file
        self._on_failure = on_failure
        #: Why the broker cannot do its job any more.
        self.failure: str | None = None
        self._hooks = hooks
        self._store_factory = store_factory
        self._store_config = store_config
        self.role = _first_role(config, store_config)
        self.tables = tables = BrokerTables.of(config, store_config)
        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        self.consumers, self.producers = tables.consumers, tables.producers
        self.filters, self.queue_locks = tables.filters, tables.queue_locks
        self.delay_offsets, self.transactions = tables.delay_offsets, tables.transactions
        self.long_poll = LongPoll(config)
        self.lanes = Lanes(config)
        #: Set while the store runs.
        self.store: MessageStore | None = None
        self._assembly: Assembly | None = None
        self._tls = ServerTls(config)
        self._sign = acl.signer(config.replication_access_key, config.replication_secret_key)
        self._client = RemotingClient(
            connect_timeout=config.connect_timeout_millis / 1000,
            tls=self._tls.client,
            before_request=self._sign,
        )
        self._registration: Registration | None = None
        self._role_switch: RoleSwitch | None = None
        #: Copies the log to replicas, or from a master; None before the start, and in a raft group.
        self.replication: BrokerReplication | None = None
        #: The member of a raft group; None before the start, and outside of a group.
        self.raft: BrokerRaft | None = None
        self._servers: list[RemotingServer] = []
        #: The bound replication port, from the start to the stop.
        self._ha_socket: socket.socket | None = None
        self._access_control: AccessControl | None = None
        self._metrics: BrokerMetrics | None = None
        self._instruments = BrokerInstruments() if is_on(config) else None
        self._is_stopping = False
        self._periodic = PeriodicTasks()
        self._upkeep: Upkeep | None = None
        #: Drops all connections after a failure.
        self._leaving: asyncio.Task[None] | None = None
        self._port = config.listen_port

    @property
    def port(self) -> int:
        """Return the port that clients connect to."""
        return self._port

    @property
    def address(self) -> str:
        """Return the address that clients connect to."""
        return format_address(self._config.broker_ip1, self._port)

    @property
    def metrics_port(self) -> int | None:
        """Return the port for metrics and health; None without one."""
        return None if self._metrics is None else self._metrics.endpoint.port

    @property
    def delay(self) -> DelayService | None:
        """Return the delivery of delayed messages, which masters run; None before the start."""
        return None if self._assembly is None else self._assembly.delay

    @property
    def transaction_check(self) -> TransactionCheck | None:
        """Return the check of open transactions, which masters run; None before the start."""
        return None if self._assembly is None else self._assembly.transaction_check

    async def start(self) -> None:
        """Serve.

        Raises OSError, StoreError, PersistenceError, TlsError, AclFileError or ExtensionError if
        that is not possible.
        """
        self._load_extensions()
        if self._config.log_level:
            apply_levels(self._config.log_level)
        self._tls.load()
        self._access_control = self._build_access_control()
        record_address = await resolve(self._config.broker_ip1)
        self._bind()
        store_host = encode_host(record_address, self._port)
        self.tables.load()
        store = self._start_store(store_host)
        await store.retention.check_disk()
        self._registration = registration = self._build_registration()
        tables = self._build_tables_copy(store, registration)
        if self._store_config.enable_dleger_commit_log:
            self.raft = self._build_raft(store, registration, tables, store_host)
        else:
            self.replication = await self._build_replication(store, registration, tables)
        assembly = self._assemble(store, store_host, registration)
        self._role_switch = RoleSwitch(
            assembly, registration, self.raft or self.replication, is_saved=self.raft is None
        )
        await self._start_metrics(assembly, registration)
        await self._role_switch.load()
        self.long_poll.start()
        for server in self._servers:
            await server.start(assembly.service)
        self._role_switch.start()
        await self._find_name_servers(registration)
        await registration.start()
        if self.replication is not None:
            await self.replication.start()
        if self.raft is not None:
            await self.raft.start(self._role_switch)
        self._start_periodic_work(store, assembly)

    async def stop(self) -> None:
        """Unregister, answer requests in flight, then close store and tables."""
        self._is_stopping = True
        await self._periodic.stop()
        if self._upkeep is not None:
            await asyncio.to_thread(self._upkeep.stop)
        if self._registration is not None:
            await self._registration.stop()
        assembly = self._assembly
        if self._role_switch is not None:
            await self._role_switch.stop()
        if assembly is not None:
            await asyncio.gather(
                *(
                    server.drain(_DRAIN_SECONDS, assembly.draining_service)
                    for server in self._servers
                )
            )
            self.long_poll.stop()
        if self.replication is not None:
            await self.replication.stop()
        if self.raft is not None:
            await self.raft.stop()
        await asyncio.gather(*(server.stop() for server in self._servers))
        self._close_ha_socket()
        if assembly is not None:
            await assembly.parts.notices.stop()
        await self._client.close()
        await self._tls.stop()
        await self.lanes.stop()
        if self._access_control is not None:
            self._access_control.auditor.log.close()
        if self._metrics is not None:
            await self._metrics.stop()
        store, self.store = self.store, None
        if store is not None:
            await self._close_store(store)

    async def cut_off(self) -> None:
        """Drop ports and connections immediately, as a killed process would.

        For tests of faults. Nobody is notified; `stop` closes the rest.
        """
        if self.replication is not None:
            self.replication.cut_off()
        if self.raft is not None:
            await self.raft.cut_off()
        for server in self._servers:
            for connection in list(server.connections):
                connection.abort()
        await asyncio.gather(*(server.stop() for server in self._servers))
        self._close_ha_socket()
        if self.replication is not None:
            await self.replication.stop()
        if self._registration is not None:
            await self._registration.stop(unregister=False)
            self._registration = None
        await self._client.close()

    # Role

    async def become_master(self, role: BrokerRole = BrokerRole.ASYNC_MASTER) -> None:
        """Turn this replica into a master, unconditionally: `Promotion` checks first.

        Raises RoleError, or OSError if the role cannot be saved; then it is still a replica.
        """
        self._refuse_in_group()
        await self._running_switch().become_master(role)

    async def become_replica(self, broker_id: int) -> None:
        """Turn this master into a replica. Raises RoleError, or OSError if that is not saved."""
        self._refuse_in_group()
        await self._running_switch().become_replica(broker_id)

    def _refuse_in_group(self) -> None:
        if self.raft is not None:
            raise RoleError(
                "the raft group decides on the role: `pyromq raft transfer` moves the leadership"
            )

    def _running_switch(self) -> RoleSwitch:
        if self._role_switch is None:
            raise RoleError("the broker does not run")
        return self._role_switch

    def _build_promotion(self, store: MessageStore, registration: Registration) -> Promotion:
        return Promotion(
            PromotedBroker(
                name=self._config.broker_name,
                address=self.address,
                role=self.role,
                refresh=registration.register_now,
                master_addresses=lambda: _known(
                    registration.master_address, registration.last_master_address
                ),
                replication_addresses=lambda: _known(
                    self._store_config.ha_master_address, registration.master_ha_address
                ),
                is_following=lambda: (
                    (member := self.raft or self.replication) is not None and member.is_following()
                ),
                become_master=self.become_master,
                log_end=lambda: store.max_physical_offset,
                tls=self._tls.client,
                sign=self._sign,
            )
        )

    # Start

    def _load_extensions(self) -> None:
        config = self._config
        if self._hooks is None and config.broker_hooks:
            self._hooks = load_hooks(config.broker_hooks)
        if self._store_factory is not None:
            return
        self._store_factory = MessageStore
        if config.message_store_plug_in:
            if self._store_config.enable_dleger_commit_log:
                raise ExtensionError(
                    f"messageStorePlugIn={config.message_store_plug_in}: expected no value with "
                    "enableDLegerCommitLog, because a raft group has a store of its own"
                )
            self._store_factory = load_store_factory(config.message_store_plug_in)

    def _bind(self) -> None:
        bound = bind_ports(
            self._config,
            descriptors_needed(self._store_config.max_mapped_files),
            self._tls,
            has_replicas=not self._store_config.enable_dleger_commit_log,
        )
        self._servers, self._ha_socket = bound.servers, bound.ha_socket
        self._port = self._servers[0].port
        self._store_config = dataclasses.replace(
            self._store_config, ha_listen_port=self._port + HA_PORT_DISTANCE
        )

    def _build_access_control(self) -> AccessControl | None:
        """Read the accounts. Raises AclFileError or OSError."""
        config = self._config
        if not config.acl_enable:
            return None
        strict = config.is_acl_strict
        rules = AclStore(files_of(config, strict=strict))
        rules.load()
        root = Path(self._store_config.store_path_root_dir)
        return AccessControl(
            rules,
            strict=strict,
            replay_window=config.acl_replay_window_millis,
            audit=audit_log_of(config, config.broker_name, root / "audit" / "audit.log"),
        )

    def _start_store(self, store_host: bytes) -> MessageStore:
        tables = self.tables
        bit_map_of = tables.filters.bit_map if self._config.enable_calc_filter_bit_map else None
        factory = self._store_factory
        if self._store_config.enable_dleger_commit_log:
            from pyromq.broker.raft_log import open_log

            factory = partial(MessageStore, open_entries=partial(open_log, self._store_config))
        assert factory is not None
        store = factory(self._store_config, store_host, self.long_poll.arrived, bit_map_of)
        store.start()
        # Only now: the store and tables of another running broker are not ours to close.
        self.store = store
        tables.delay_offsets.begin(store.max_physical_offset)
        tables.deleted_topics.begin(store)
        tables.topics.adopt(store.queue_counts())
        tables.offsets.forget_other_topics(tables.topics)
        return store

    def _build_tables_copy(self, store: MessageStore, registration: Registration) -> MetadataSync:
        return MetadataSync(
            self._config,
            self.tables,
            store,
            self._client,
            master_address=partial(remoting_master, store.config, registration),
            own_address=self.address,
        )

    async def _build_replication(
        self, store: MessageStore, registration: Registration, tables: MetadataSync
    ) -> BrokerReplication:
        replication = BrokerReplication(
            store,
            self.role,
            registration,
            self._client,
            tables,
            broker_name=self._config.broker_name,
            on_stop=self._replication_stopped,
            tls=self._tls,
        )
        assert self._ha_socket is not None
        bound, self._ha_socket = self._ha_socket, None
        await replication.listen(bound)
        return replication

    def _build_raft(
        self,
        store: MessageStore,
        registration: Registration,
        tables: MetadataSync,
        store_host: bytes,
    ) -> BrokerRaft:
        from pyromq.broker.raft_log import node_settings
        from pyromq.broker.services.raft import BrokerRaft

        return BrokerRaft(
            store,
            node_settings(
                self._store_config, self._raft_timing, self._config.bind_address, self._tls
            ),
            self.role,
            registration,
            tables,
            store_host=store_host,
            on_stop=self._replication_stopped,
        )

    def _replication_figures(self) -> dict[str, Any]:
        member = self.raft or self.replication
        return {} if member is None else member.figures()

    def _replication_stopped(self, reason: str) -> None:
        """Stop: what this replica serves is not, or no longer, what its master or group has."""
        self.failure = reason
        if self._on_failure is not None:
            self._on_failure(reason)
        else:
            self._leaving = asyncio.get_running_loop().create_task(self.cut_off())

    async def _find_name_servers(self, registration: Registration) -> None:
        config = self._config
        if config.fetch_namesrv_addr_by_address_server and not config.name_servers:
            lookup = NameServerLookup(config, registration)
            await lookup.ask()
            self._periodic.start(lookup.interval, lookup.ask, name="address server")

    def _build_registration(self) -> Registration:
        return Registration(
            self._config,
            self.topics,
            self._client,
            broker_address=self.address,
            ha_address=format_address(self._config.broker_ip2, self._store_config.ha_listen_port),
            role=self.role,
        )

    def _assemble(
        self, store: MessageStore, store_host: bytes, registration: Registration
    ) -> Assembly:
        async def announce() -> None:
            await asyncio.gather(registration.register_now(), self.topics.file.saved())

        def settings_changed(keys: list[str]) -> None:
            if "logLevel" in keys:
                apply_levels(self._config.log_level)
            if "brokerPermission" in keys:
                self.topics.new_version()
                registration.register_soon()
            if "brokerRole" in keys and self.raft is None:  # from one kind of master to the other
                self.role.change(store.config.broker_role, MASTER_ID)

        parts = build_parts(
            self._config,
            store,
            self.tables,
            lanes=self.lanes,
            long_poll=self.long_poll,
            store_host=store_host,
            address=self.address,
            announce=announce,
            role=self.role,
            promotion=self._build_promotion(store, registration),
            access_control=self._access_control,
            replication_figures=self._replication_figures,
            instruments=self._instruments,
            transfer=None if self.raft is None else self.raft.transfer,
            hooks=self._hooks,
            config_file=self._config_file,
            role_file=self._role_file,
        )
        self._assembly = assembly = assemble(parts)
        parts.live_config.listeners.append(settings_changed)
        return assembly

    async def _start_metrics(self, assembly: Assembly, registration: Registration) -> None:
        if self._instruments is not None:
            from pyromq.broker.metrics.service import BrokerMetrics

            self._metrics = BrokerMetrics(
                assembly, self._instruments, registration, self._tls, self._fault
            )
            await self._metrics.start()

    def _fault(self) -> str | None:
        return "the broker is stopping" if self._is_stopping else self.failure

    def _start_periodic_work(self, store: MessageStore, assembly: Assembly) -> None:
        self._tls.start()
        self._upkeep = Upkeep(assembly.parts)
        self._upkeep.start(self._periodic)
        start = self._periodic.start
        start(SAMPLE_SECONDS, assembly.parts.stats.sample)
        if self._access_control is not None:
            start(INTERVAL_SECONDS, self._access_control.rules.poll, name="access control")
        start(_EXPIRY_SECONDS, assembly.heartbeat.expire)
        start(_EXPIRY_SECONDS, self.queue_locks.expire)
        start(_EXPIRY_SECONDS, self.filters.clean)
        saving = self._config.flush_consumer_offset_interval / 1000
        start(saving, self.offsets.save_if_changed)
        start(saving, self.tables.retry_failed_saves)
        start(saving, assembly.transaction_check.note_progress)
        cleaning = self._store_config.clean_resource_interval / 1000
        start(cleaning, store.retention.check_disk)
        start(cleaning, store.retention.clean)

    # Stop

    def _close_ha_socket(self) -> None:
        if self._ha_socket is not None:
            self._ha_socket.close()
            self._ha_socket = None

    async def _close_store(self, store: MessageStore) -> None:
        try:
            store.stop()
        finally:
            # Even if the store could not be flushed: the tables are no worse than before.
            self.delay_offsets.settle(store.flushed_offset)
            if self.transaction_check is not None:
                self.transaction_check.settle_all(store.flushed_offset)
            await self.tables.close()


def _first_role(config: BrokerConfig, store_config: MessageStoreConfig) -> Role:
    if store_config.enable_dleger_commit_log:
        return Role(BrokerRole.SLAVE, store_config.raft_broker_id)
    return Role(store_config.broker_role, config.broker_id)


def _known(*addresses: str | None) -> list[str]:
    return [address for address in addresses if address]
