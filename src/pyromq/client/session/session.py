"""What every client has, whether it produces or consumes: one identity in the cluster.

A session owns the connections, the routes and the heartbeats that tell the
brokers who is there. Brokers forget a client that was silent for 120 s; a
heartbeat goes to every known master each 30 s, to a new one at once, and to one
to which the connection was lost and made again.

Names in a namespace: everything that leaves a session or arrives at it carries
`namespace%name`; `wrap` and `unwrap` are for those who stand between it and the
application. On the owner's event loop, in the process that started it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping

from pyromq.client.errors import BrokerError, ClientError, ClientStateError
from pyromq.client.options import Settings
from pyromq.client.session.routes import Routes, TopicRoute
from pyromq.protocol.namespace import with_namespace, without_namespace
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.bodies import HeartbeatData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import UnregisterClientRequestHeader
from pyromq.remoting.client import ClientHandler, RemotingClient, RemotingError
from pyromq.remoting.tls import client_context

logger = logging.getLogger(__name__)


class Session:
    """A client's presence in a cluster.

    `describe` gives the content of a heartbeat for a client id; `handlers` serve what
    brokers ask of the client. `on_return` is told the address of a broker that is back.
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
        self.remoting = RemotingClient(
            handlers,
            tls=client_context(settings.tls),
            before_request=self._sign if settings.access_key else None,
            on_connect=self._greet_again,
        )
        self.routes = Routes(
            self.remoting,
            settings.name_servers,
            request_timeout=settings.request_timeout,
            max_age=settings.route_interval,
            on_change=self._greet_new_masters,
        )
        #: Whether it may be used: started, not closed, not inherited by a fork.
        self.running = False
        self._describe = describe
        self._on_return = on_return
        self._greeted: set[str] = set()
        self._greetings: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []
        self._closed = False
        self._process = 0

    def become_instance(self, name: str) -> None:
        """Take another instance's id, before any broker was told the old one."""
        assert not self._greeted
        self.client_id = self.settings.client_id(name)

    def start(self) -> None:
        """Begin with the heartbeats, and to look for new routes."""
        if self._closed:
            raise ClientStateError("this client was closed: make a new one")
        if not self._background:
            self._background = [
                asyncio.create_task(self._repeat(self.settings.heartbeat_interval, self.beat)),
                asyncio.create_task(self._repeat(self.settings.route_interval, self._look)),
            ]
            self.running = True
            self._process = os.getpid()
            _running.add(self)

    def check_running(self) -> None:
        """Raise ClientStateError unless started, not closed, and in the process of its start."""
        if self.running:
            return
        if self._closed:
            raise ClientStateError("this client was closed: make a new one")
        if self._process and self._process != os.getpid():
            raise ClientStateError(
                f"this client was started in process {self._process}, of which this one is a "
                "fork: make a new one here"
            )
        raise ClientStateError(
            "this client was not started: use it in `async with`, or await start() first"
        )

    def wrap(self, name: str) -> str:
        """A topic's or group's name as servers know it."""
        return with_namespace(self.settings.namespace, name)

    def unwrap(self, name: str) -> str:
        """A topic's or group's name as the application knows it."""
        return without_namespace(self.settings.namespace, name)

    async def ask(
        self,
        address: str,
        command: RemotingCommand,
        request_timeout: float | None = None,
    ) -> RemotingCommand:
        """The answer of one server; raises BrokerError when it is not SUCCESS."""
        answer = await self.remoting.request(
            address, command, self.request_timeout if request_timeout is None else request_timeout
        )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(address, answer.code, answer.remark)
        return answer

    async def beat(self) -> None:
        """Send a heartbeat to every known master; one that does not answer is logged."""
        masters = {address for route in self.routes.known() for address in route.masters()}
        await asyncio.gather(*(self._beat_one(address) for address in masters))

    def is_known_to(self, address: str) -> bool:
        """Whether a master has had a heartbeat, on a connection that is still there."""
        return address in self._greeted and self.remoting.ready(address) is not None

    async def introduce(self, address: str) -> None:
        """Send a heartbeat to a master now; one that does not answer is logged."""
        await self._beat_one(address)

    async def close(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Tell the brokers that the group's member leaves, and close every connection."""
        if self._closed:
            return
        self._closed = True
        self.running = False
        _running.discard(self)
        tasks = [*self._greetings, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
            # A broker that is gone needs no farewell.
            return_exceptions=True,
        )
        await self.routes.close()
        await self.remoting.close()

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:
                # A mistake of ours must not make brokers forget us.
                logger.exception("client %s: tried again in %g s", self.client_id, seconds)

    async def _look(self) -> None:
        """See whether routes have changed; apart from heartbeats, which must not wait for that."""
        for route in self.routes.known():
            try:
                await self.routes.refresh(route.topic)
            except ClientError as error:
                logger.warning("route of %s could not be renewed: %s", route.topic, error)

    async def _beat_one(self, address: str) -> None:
        body = self._describe(self.client_id).encode()
        try:
            await self.ask(address, RemotingCommand(RequestCode.HEART_BEAT, body=body))
        except (RemotingError, BrokerError) as error:
            logger.warning("heartbeat failed: %s", error)
        else:
            self._greeted.add(address)

    def _greet_new_masters(self, route: TopicRoute) -> None:
        """Tell brokers that were not known until now who is here."""
        new = route.masters() - self._greeted
        if new and self.running:
            greeting = asyncio.create_task(self._greet(new))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)

    def _greet_again(self, address: str) -> None:
        """A broker that was lost and is back may have been restarted: it knows nobody."""
        if address in self._greeted and self.running:
            if self._on_return is not None:
                self._on_return(address)
            greeting = asyncio.create_task(self._greet({address}))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)

    async def _greet(self, addresses: set[str]) -> None:
        await asyncio.gather(*map(self._beat_one, addresses))

    def _sign(self, _address: str, command: RemotingCommand) -> None:
        settings = self.settings
        acl.sign(
            command.ext_fields,
            command.body,
            settings.access_key,
            settings.secret_key,
            settings.security_token,
        )


#: The sessions in use: a fork has copies of them that share sockets with the original.
_running: weakref.WeakSet[Session] = weakref.WeakSet()


def _forked() -> None:
    for session in _running:
        session.running = False
    _running.clear()


os.register_at_fork(after_in_child=_forked)
