"""The base of every asynchronous client, and its one identity in the cluster.

    async with Producer(...) as producer:   # start
        ...                                 # close, even if the block raises

Each producer or consumer (`Client`) owns one `Session`: connections, routes and heartbeats.
Brokers forget a client after 120 s of silence. A heartbeat goes to every known master every 30 s,
to a newly found one at once, and to one whose connection was lost and re-established. Consumers
also send them to replicas, which they read from while a master is away (`away`).

Names that leave or reach a session carry the namespace (`namespace%name`); `wrap` and `unwrap`
convert between these and the application's names. A session runs on its owner's event loop and
only in the process that started it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self

from pyromq.base.periodic import PeriodicTasks
from pyromq.client.errors import BrokerError, ClientError, ClientStateError, OptionError
from pyromq.client.options import Settings
from pyromq.client.session.away import AwayBrokers
from pyromq.client.session.routes import Routes, TopicRoute
from pyromq.protocol.namespace import with_namespace, without_namespace
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.bodies import HeartbeatData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import UnregisterClientRequestHeader
from pyromq.remoting.client import ClientHandler, RemotingClient, RemotingError
from pyromq.tls.client import client_tls
from pyromq.tls.errors import TlsError

logger = logging.getLogger(__name__)


class Client(ABC):
    """A producer or consumer."""

    _session: Session

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def start(self) -> None:
        """Get ready for use. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Finish the work in flight and leave the cluster. Idempotent."""

    @property
    def client_id(self) -> str:
        """Return the id under which brokers know this client."""
        return self._session.client_id


class SessionState(Enum):
    """The life of a session; `_NEXT` holds the legal transitions."""

    NEW = auto()
    RUNNING = auto()
    #: A copy in a forked child: its sockets belong to the parent.
    FORKED = auto()
    CLOSED = auto()


#: Python 3.11 takes 65 ns to look up a member of an enum, and each batched send needs this one.
RUNNING: Final = SessionState.RUNNING
_NEXT: Final = {
    SessionState.NEW: {SessionState.RUNNING, SessionState.CLOSED},
    SessionState.RUNNING: {SessionState.FORKED, SessionState.CLOSED},
    SessionState.FORKED: {SessionState.CLOSED},
    SessionState.CLOSED: set[SessionState](),
}


class Session:
    """A client's presence in a cluster.

    `describe` returns the heartbeat for a client id. `handlers` serve requests that brokers send
    to the client. `on_return` is called with the address of a broker that is reachable again.
    """

    def __init__(
        self,
        settings: Settings,
        describe: Callable[[str], HeartbeatData],
        *,
        handlers: Mapping[int, ClientHandler] | None = None,
        on_return: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self.client_id = settings.client_id()
        self.request_timeout = settings.request_timeout
        try:
            tls = client_tls(settings.tls)
        except TlsError as error:
            raise OptionError(str(error)) from error
        self.remoting = RemotingClient(
            handlers,
            tls=tls,
            before_request=self._sign if settings.access_key else None,
            on_connect=self._greet_again,
        )
        self.routes = Routes(
            self.remoting,
            settings.name_servers,
            request_timeout=settings.request_timeout,
            max_age=settings.route_interval,
            on_change=self._greet_new,
        )
        self.state = SessionState.NEW
        self._describe = describe
        self._on_return = on_return
        self.away = AwayBrokers(self._try_introduce, self._is_listed)
        #: Brokers that have answered a heartbeat.
        self._greeted: set[str] = set()
        self._greetings: set[asyncio.Task[None]] = set()
        self._periodic = PeriodicTasks()
        self._process = 0

    @property
    def running(self) -> bool:
        """Return whether the session is usable: started, not closed, not forked."""
        return self.state is RUNNING

    def become_instance(self, name: str) -> None:
        """Change the instance name in the client id, before the first heartbeat."""
        assert not self._greeted
        self.client_id = self.settings.client_id(name)

    def start(self) -> None:
        """Start heartbeats and route refreshes. Idempotent."""
        if self.state is SessionState.CLOSED:
            self.check_running()
        if self.state is SessionState.NEW:
            self._enter(SessionState.RUNNING)
            self._process = os.getpid()
            _running.add(self)
            settings = self.settings
            name = f"client {self.client_id}"
            self._periodic.start(
                settings.heartbeat_interval, self.beat, name=f"{name}: sending heartbeats"
            )
            # Apart from heartbeats, which must not wait for a NameServer.
            self._periodic.start(
                settings.route_interval, self._refresh_routes, name=f"{name}: refreshing routes"
            )

    def check_running(self) -> None:
        """Raise ClientStateError unless the session is running."""
        if self.state is RUNNING:
            return
        if self.state is SessionState.CLOSED:
            raise ClientStateError("this client is closed: create a new one")
        if self.state is SessionState.FORKED:
            raise ClientStateError(
                f"this client was started in process {self._process}, and this is a fork of it: "
                "create a new client here"
            )
        raise ClientStateError(
            "this client was not started: use it in `async with`, or await start() first"
        )

    def wrap(self, name: str) -> str:
        """Return a topic or group name as servers know it."""
        return with_namespace(self.settings.namespace, name)

    def unwrap(self, name: str) -> str:
        """Return a topic or group name as the application knows it."""
        return without_namespace(self.settings.namespace, name)

    async def ask(
        self,
        address: str,
        command: RemotingCommand,
        request_timeout: float | None = None,
    ) -> RemotingCommand:
        """Return a server's response; raises BrokerError unless its code is SUCCESS."""
        answer = await self.remoting.request(
            address, command, self.request_timeout if request_timeout is None else request_timeout
        )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(address, answer.code, answer.remark)
        return answer

    async def beat(self) -> None:
        """Send a heartbeat to every known broker that needs one; failures are logged."""
        await asyncio.gather(*map(self.introduce, self._audience(self.routes.known())))

    def is_known_to(self, address: str) -> bool:
        """Return whether a broker got a heartbeat over a connection that is still open."""
        return address in self._greeted and self.remoting.ready(address) is not None

    async def introduce(self, address: str) -> None:
        """Send a heartbeat to one broker; a failure is logged."""
        if await self._try_introduce(address, logging.WARNING):
            self.away.remove(address)

    async def close(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Unregister from the brokers and close every connection. Idempotent."""
        if self.state is SessionState.CLOSED:
            return
        self._enter(SessionState.CLOSED)
        _running.discard(self)
        for greeting in self._greetings:
            greeting.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)
        await self.away.close()
        await self._periodic.stop()
        header = UnregisterClientRequestHeader(
            client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await asyncio.gather(
            *(
                self.ask(
                    address,
                    RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext_fields=header.encode()),
                )
                for address in self._greeted
            ),
            # A broker that is gone has forgotten us anyway.
            return_exceptions=True,
        )
        await self.routes.close()
        await self.remoting.close()

    # Helpers, in call order

    def _enter(self, state: SessionState) -> None:
        assert state in _NEXT[self.state], f"{self.state.name} to {state.name}"
        self.state = state

    async def _refresh_routes(self) -> None:
        for route in self.routes.known():
            try:
                await self.routes.refresh(route.topic)
            except ClientError as error:
                logger.warning("refreshing the route of topic %s failed: %s", route.topic, error)

    def _audience(self, routes: Iterable[TopicRoute]) -> set[str]:
        """Return who gets heartbeats: a producer's go to masters, a consumer's to replicas too."""
        is_consumer = bool(self._describe(self.client_id).consumer_data_set)
        return {
            address
            for route in routes
            for address in (route.everyone() if is_consumer else route.masters())
        }

    async def _try_introduce(self, address: str, level: int = logging.DEBUG) -> bool:
        body = self._describe(self.client_id).encode()
        try:
            await self.ask(address, RemotingCommand(RequestCode.HEART_BEAT, body=body))
        except (RemotingError, BrokerError) as error:
            logger.log(level, "heartbeat failed: %s", error)
            return False
        self._greeted.add(address)
        return True

    def _is_listed(self, address: str) -> bool:
        return any(address in route.everyone() for route in self.routes.known())

    def _greet_new(self, route: TopicRoute) -> None:
        """Send a heartbeat to the brokers of a changed route that have had none."""
        if self.running and (new := self._audience([route]) - self._greeted):
            self._greet(new)

    def _greet_again(self, address: str) -> None:
        """Send a heartbeat over a new connection: a restarted broker has forgotten its clients."""
        if address in self._greeted and self.running:
            if self._on_return is not None:
                self._on_return(address)
            self._greet({address})

    def _greet(self, addresses: set[str]) -> None:
        async def introduce_all() -> None:
            await asyncio.gather(*map(self.introduce, addresses))

        greeting = asyncio.create_task(introduce_all())
        self._greetings.add(greeting)
        greeting.add_done_callback(self._greetings.discard)

    def _sign(self, _address: str, command: RemotingCommand) -> None:
        settings = self.settings
        acl.sign(
            command.ext_fields,
            command.body,
            settings.access_key,
            settings.secret_key,
            settings.security_token,
        )

    def _forked(self) -> None:
        self._enter(SessionState.FORKED)


#: Running sessions. A forked child holds copies that share their sockets with the parent.
_running: weakref.WeakSet[Session] = weakref.WeakSet()


def _forked() -> None:
    for session in _running:
        session._forked()
    _running.clear()


os.register_at_fork(after_in_child=_forked)
