"""The NameServer: assembles the route table, the handlers and the server.

Everything runs on the loop that calls `start`. A periodic task removes dead brokers, `FIRST_SCAN`
seconds after the start and then every `SCAN_INTERVAL`, as in RocketMQ.

Used by the command line and, in-process, by tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyromq.acl.reload import INTERVAL_SECONDS
from pyromq.base.log_levels import apply_levels
from pyromq.base.periodic import PeriodicTasks
from pyromq.metrics.settings import is_on
from pyromq.nameserver.access_control import NameServerAccess
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.handlers import NameServerHandlers
from pyromq.nameserver.kv_config import KVConfig, KVLimits
from pyromq.nameserver.production import ProductionRoutes
from pyromq.nameserver.route_table import RouteLimits, RouteTable
from pyromq.remoting.connection import Connection
from pyromq.remoting.limits import PeerLimits
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service
from pyromq.tls.server import ServerTls

if TYPE_CHECKING:  # loaded if metrics are on: a start is quick
    from pyromq.nameserver.metrics import NameServerMetrics

FIRST_SCAN = 5.0
SCAN_INTERVAL = 10.0


class NameServer:
    """One NameServer. NameServers share nothing with each other."""

    def __init__(self, config: NamesrvConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.routes: RouteTable[Connection] = RouteTable(
            RouteLimits(
                brokers=config.max_brokers,
                brokers_per_connection=config.max_brokers_per_connection,
                topics_per_broker=config.max_topics_per_broker,
                topics=config.max_topics,
            )
        )
        self._clock = clock
        self._kv_config = KVConfig(
            Path(config.kv_config_path),
            KVLimits(
                name=config.max_kv_name_size,
                value=config.max_kv_value_size,
                table=config.max_kv_config_size,
            ),
        )
        #: TLS of its port; its own connections and those of `pyromq standalone` use `tls.client`.
        self.tls = ServerTls(config)
        self._production = ProductionRoutes(tls=self.tls.client)
        self._handlers = NameServerHandlers(
            config, self.routes, self._kv_config, clock, self._production
        )
        self._server = RemotingServer(
            host=config.bind_address,
            port=config.listen_port,
            idle_seconds=config.server_channel_max_idle_time_seconds,
            limits=PeerLimits.of(config),
            tls=self.tls,
        )
        self._access = NameServerAccess(config) if config.acl_enable else None
        self._metrics: NameServerMetrics | None = None
        if is_on(config):
            from pyromq.nameserver.metrics import NameServerMetrics

            self._metrics = NameServerMetrics(
                lambda: self._handlers.config,
                self.routes,
                clock,
                dict if self._access is None else self._access.refusals,
                lambda: self.tls.expiry,
            )
        self._periodic = PeriodicTasks()

    @property
    def port(self) -> int:
        """Return the port it listens on, also if the configuration says 0."""
        return self._server.port

    @property
    def metrics_port(self) -> int | None:
        """Return the port for metrics and health; None without one."""
        return None if self._metrics is None else self._metrics.endpoint.port

    async def start(self) -> None:
        """Read the KV configuration and listen.

        Raises `KVConfigFileError`, `AclFileError`, `TlsError`, or `OSError` if the port is not
        available.
        """
        self.tls.load()
        log_level = self._handlers.config.log_level
        if log_level:
            apply_levels(log_level)
        handlers = self._handlers.table()
        if self._access is not None:
            self._access.rules.load()
            handlers = self._access.guard(handlers)
            self._periodic.start(INTERVAL_SECONDS, self._access.rules.poll, name="access control")
        self._kv_config.load()
        if self._metrics is not None:
            handlers = self._metrics.counted(handlers)
            self._metrics.endpoint.bind()
            await self._metrics.endpoint.start()
        await self._server.start(Service(handlers, on_disconnect=self.routes.remove_connection))
        self.tls.start()
        self._periodic.start(SCAN_INTERVAL, self.remove_dead_brokers, first=FIRST_SCAN)

    async def stop(self) -> None:
        """Stop listening and close all connections. Idempotent."""
        if self._metrics is not None:
            self._metrics.is_stopping = True
        await self._periodic.stop()
        await self._server.stop()
        await self.tls.stop()
        await self._kv_config.close()
        await self._production.close()
        if self._metrics is not None:
            await self._metrics.endpoint.stop()
        if self._access is not None:
            self._access.close()

    def remove_dead_brokers(self) -> None:
        """Remove brokers that were silent for too long and close their connections."""
        for connection in self.routes.remove_expired(self._clock()):
            connection.close()
