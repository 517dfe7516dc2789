"""`Admin`: the entry point of the admin API.

    async with Admin("127.0.0.1:9876") as admin:
        for name in await admin.topics.names():
            print(name)

Each area of administration is an attribute with its own class and module. Nothing is cached, and
nothing is connected before the first request. Runs on its owner's event loop; `Admin.sync(...)`
returns the same API for programs without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec, TypedDict, Unpack, cast

from pyromq.admin.access import AccessControl
from pyromq.admin.cluster import Clusters
from pyromq.admin.configuration import Configurations
from pyromq.admin.export import Exports
from pyromq.admin.groups.connections import Connections
from pyromq.admin.groups.groups import Groups
from pyromq.admin.groups.offsets import Offsets
from pyromq.admin.maintenance import Maintenance
from pyromq.admin.messages.dead_letters import DeadLetters
from pyromq.admin.messages.delayed import Delayed
from pyromq.admin.messages.half_messages import HalfMessages
from pyromq.admin.messages.messages import Messages
from pyromq.admin.raft import Raft
from pyromq.admin.session import AdminSession
from pyromq.admin.statistics import Statistics
from pyromq.admin.sync import SyncAdmin
from pyromq.admin.topics import Topics
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.session.session import Client
from pyromq.tls.client import Tls

_Arguments = ParamSpec("_Arguments")


class AdminOptions(TypedDict, total=False):
    """Keyword arguments of `Admin`."""

    #: Signs requests with this key, for servers with access control. It needs `secret_key`.
    access_key: str
    #: The secret that belongs to `access_key`.
    secret_key: str
    #: Accompanies each signed request, for temporary credentials.
    security_token: str
    #: Encrypts connections: True, or `Tls` with authorities and a client certificate.
    tls: bool | Tls


class Admin(Client):
    """Administers the cluster of the NameServers `namesrv` (`host:port[;host:port]`).

    `timeout` limits each request, in seconds. See `AdminOptions` for the options.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        timeout: float = 5.0,
        **options: Unpack[AdminOptions],
    ) -> None:
        given = cast(ClientOptions, {**options, "request_timeout": timeout})
        settings = Settings.of(namesrv, given, AdminOptions)
        session = AdminSession(settings, given)
        self._session = session.client
        #: Sends requests that have no method of their own.
        self.session = session
        #: Topics: list, examine, create, change and delete them.
        self.topics = Topics(session)
        #: Clusters, brokers, runtime info, replication, connected producers.
        self.cluster = Clusters(session)
        #: Settings of brokers and NameServers, key-value pairs, order, write permission.
        self.configuration = Configurations(session)
        #: Rates, counts and lags.
        self.statistics = Statistics(session)
        #: Accounts and white lists.
        self.access = AccessControl(session)
        #: Raft groups.
        self.raft = Raft(session)
        #: Clean-up of files and queues.
        self.maintenance = Maintenance(session)
        #: Settings, metadata and metrics as files.
        self.export = Exports(session)
        #: Consumer groups: settings, progress, members.
        self.groups = Groups(session)
        #: Connected consumers and producers.
        self.connections = Connections(session)
        #: Offsets of groups: read, set, reset by time, copied.
        self.offsets = Offsets(session)
        #: Messages: found, read, traced, sent.
        self.messages = Messages(session)
        #: Dead letters: listed and resent.
        self.dead_letters = DeadLetters(session)
        #: Open transactions.
        self.half_messages = HalfMessages(session)
        #: Messages that wait for their time.
        self.delayed = Delayed(session)

    @classmethod
    def sync(
        cls: Callable[_Arguments, Admin], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> SyncAdmin:
        """Return the API for programs without an event loop, from the same arguments."""
        return SyncAdmin(partial(cls, *args, **kwargs))

    async def start(self) -> None:
        """Get ready for use. Idempotent."""
        self._session.start()

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        await self._session.close()
