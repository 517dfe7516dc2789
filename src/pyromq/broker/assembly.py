"""Assembles a broker from its parts: services, request families, and the server's `Service`.

The only place where they meet. `assemble` runs once at the start, after the store; tests run it
on parts of their own. To add a family, add a line to `_families`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.broker.handlers.admin.access import AccessHandlers
from pyromq.broker.handlers.admin.clients import ClientAdminHandlers
from pyromq.broker.handlers.admin.config import ConfigAdminHandlers
from pyromq.broker.handlers.admin.consume_stats import ConsumeStatsHandlers
from pyromq.broker.handlers.admin.maintenance import MaintenanceHandlers
from pyromq.broker.handlers.admin.offsets import OffsetAdminHandlers
from pyromq.broker.handlers.admin.queue_entries import QueueEntryHandlers
from pyromq.broker.handlers.admin.queue_offsets import QueueOffsetHandlers
from pyromq.broker.handlers.admin.raft import RaftAdminHandlers
from pyromq.broker.handlers.admin.replication import ReplicationAdminHandlers
from pyromq.broker.handlers.admin.roles import RoleAdminHandlers
from pyromq.broker.handlers.admin.stats import StatsAdminHandlers
from pyromq.broker.handlers.admin.tables import TableHandlers
from pyromq.broker.handlers.admin.topic import TopicAdminHandlers
from pyromq.broker.handlers.heartbeat import HeartbeatHandlers
from pyromq.broker.handlers.locks import LockHandlers
from pyromq.broker.handlers.offsets import OffsetHandlers
from pyromq.broker.handlers.pull import PullHandlers
from pyromq.broker.handlers.query import QueryHandlers
from pyromq.broker.handlers.reply import ReplyHandlers
from pyromq.broker.handlers.send import SendHandlers
from pyromq.broker.handlers.send_back import SendBackHandlers
from pyromq.broker.handlers.send_responses import answers_after_wait
from pyromq.broker.handlers.transaction import TransactionHandlers
from pyromq.broker.hooks import with_hooks
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Family, Routes, build_routes, chained, with_body_limits
from pyromq.broker.services.delay import DelayService
from pyromq.broker.services.flow_control import FastFailure, refuse_sends, reject_sends_while
from pyromq.broker.services.topic_deletion import TopicDeletion
from pyromq.broker.services.transaction_check import TransactionCheck
from pyromq.remoting.connection import Connection
from pyromq.remoting.service import Service


@dataclass(frozen=True, slots=True)
class Assembly:
    """A broker that is ready to serve."""

    parts: BrokerParts
    routes: Routes
    service: Service[Connection]
    #: Serves the last requests while the broker stops.
    draining_service: Service[Connection]
    heartbeat: HeartbeatHandlers
    #: Both run on masters only (`broker.role_switch`).
    delay: DelayService
    transaction_check: TransactionCheck


def assemble(parts: BrokerParts) -> Assembly:
    """Build the services and request families of a broker, and the service of its servers."""
    delay = DelayService(parts.store, parts.writer, parts.tables.delay_offsets)
    check = TransactionCheck(parts)
    heartbeat, send, pull = HeartbeatHandlers(parts), SendHandlers(parts), PullHandlers(parts)
    routes = build_routes([heartbeat, send, pull, *_families(parts, send, check)])
    fast_failure = FastFailure(parts.config, parts.store.config, routes.pools, parts.store.growth)

    def role_changed() -> None:
        # Forget what the hot paths and the compiled kernel know: the next requests are checked.
        send.settings_changed()
        pull.settings_changed()

    def settings_changed(_: list[str]) -> None:
        parts.tables.topics.settings_changed()
        role_changed()
        parts.lanes.set_limits(parts.config)
        fast_failure.set_limits(parts.config)

    parts.live_config.listeners.append(settings_changed)
    parts.role.listeners.append(role_changed)
    return Assembly(
        parts=parts,
        routes=routes,
        service=build_service(parts, routes, fast_failure, heartbeat),
        draining_service=build_service(parts, routes, fast_failure, heartbeat, is_draining=True),
        heartbeat=heartbeat,
        delay=delay,
        transaction_check=check,
    )


def build_service(
    parts: BrokerParts,
    routes: Routes,
    fast_failure: FastFailure,
    heartbeat: HeartbeatHandlers,
    *,
    is_draining: bool = False,
) -> Service[Connection]:
    """Chain server, flow control and store, from the outside in.

    1. Before a chunk's frames run, the server asks `fast_failure` to refuse the late ones.
    2. Plain requests are served from the bytes of the chunk (`take_frames`), unless a hook or a
       guard must see them. Each other frame goes to its route: first the guard against a store
       without buffers, then access control, then the hooks, then the limit on its body, then the
       handler of the family.
    3. After the last frame the server ends the chunk: `fast_failure` times the store's `end_chunk`,
       which writes the gathered records to the log. Only then do the responses leave.
    4. With SYNC_FLUSH or SYNC_MASTER, and in a raft group, `end_chunk` returns a future. The
       responses wait for it, and `answers_after_wait` tells clients if the fsync, the replica or
       the group took too long.

    While the broker is draining, sends are refused before anything else.
    """
    store = parts.store
    routes = with_body_limits(routes, parts.config)
    routes = with_hooks(routes, parts.hooks)
    if parts.access_control is not None:
        # Around everything that parses a request, except the check of its size.
        routes = parts.access_control.guard(routes, store, parts.lanes.heartbeat)
        routes = with_body_limits(routes, parts.config)
    if store.config.refuses_without_buffer:
        routes = reject_sends_while(routes, lambda: store.free_buffers == 0)
    if is_draining:
        routes = refuse_sends(routes)
    timing = parts.instruments
    end_chunk = store.end_chunk if timing is None else timing.timed_end(store.end_chunk)
    return Service(
        handlers=routes.plain if timing is None else timing.timed_handlers(routes.plain),
        take_frames=chained(routes.takers),
        hot_handlers=routes.hot if timing is None else timing.timed_runs(routes.hot),
        max_runs=routes.max_runs,
        queries=routes.queries,
        late_requests=fast_failure,
        on_chunk_end=fast_failure.timed(end_chunk),
        late_answers=answers_after_wait,
        on_disconnect=heartbeat.disconnected,
    )


def _families(parts: BrokerParts, send: SendHandlers, check: TransactionCheck) -> list[Family]:
    """Build the request families that only the routes refer to."""
    store, tables, lanes = parts.store, parts.tables, parts.lanes
    deletion = TopicDeletion(tables.topics, tables.offsets, tables.deleted_topics, store)
    return [
        SendBackHandlers(parts),
        ReplyHandlers(parts, send.check),
        TransactionHandlers(parts),
        LockHandlers(parts.config, tables.queue_locks, lanes.heartbeat),
        OffsetHandlers(tables.offsets, store, tables.topics, tables.groups),
        QueryHandlers(store, lanes.query),
        TopicAdminHandlers(parts, deletion),
        TableHandlers(parts),
        StatsAdminHandlers(parts, halves_without_producer=lambda: check.without_producer),
        ConfigAdminHandlers(parts.live_config),
        AccessHandlers(parts),
        ReplicationAdminHandlers(parts),
        MaintenanceHandlers(store, tables.topics, deletion, parts.role),
        QueueOffsetHandlers(store, lanes.admin),
        ClientAdminHandlers(parts),
        OffsetAdminHandlers(parts),
        ConsumeStatsHandlers(parts),
        QueueEntryHandlers(store, tables.consumers, tables.filters, lanes.admin),
        *([] if parts.promotion is None else [RoleAdminHandlers(parts.promotion)]),
        *([] if parts.transfer is None else [RaftAdminHandlers(parts.transfer)]),
    ]
