"""What every client has, whether it produces or consumes: one identity in the cluster.

A session owns the connections, the routes and the heartbeats that tell the
brokers who is there. Brokers forget a client that was silent for 120 s;
a heartbeat goes to every known master each 30 s. On the owner's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping

from pyromq.client.errors import BrokerError, ClientError, ClientStateError
from pyromq.client.message import local_address
from pyromq.client.routes import Routes
from pyromq.protocol.bodies import HeartbeatData
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import RemotingCommand
from pyromq.protocol.headers import UnregisterClientRequestHeader
from pyromq.remoting.address import parse_addresses
from pyromq.remoting.client import ClientHandler, RemotingClient, RemotingError

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0


class Session:
    """A client's presence in the cluster of the NameServers `namesrv` (`host:port[;host:port]`).

    `describe` gives the content of a heartbeat; `group` is what is unregistered at the end.
    """

    def __init__(
        self,
        namesrv: str,
        describe: Callable[[str], HeartbeatData],
        *,
        handlers: Mapping[int, ClientHandler] | None = None,
        request_timeout: float = 3.0,
    ) -> None:
        self.client_id = f"{local_address()}@{os.getpid()}#{time.time_ns()}"
        self.request_timeout = request_timeout
        self.remoting = RemotingClient(handlers)
        self.routes = Routes(
            self.remoting, parse_addresses(namesrv), request_timeout=request_timeout
        )
        self._describe = describe
        self._greeted: set[str] = set()
        self._heartbeats: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Begin with the heartbeats."""
        if self._closed:
            raise ClientStateError("this client was closed: make a new one")
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._beat_forever())

    def check_running(self) -> None:
        """Raise ClientStateError unless started and not closed."""
        if self._heartbeats is None or self._closed:
            raise ClientStateError(
                "this client was closed: make a new one"
                if self._closed
                else "this client was not started: use it in `async with`, or await start() first"
            )

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

    async def close(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Tell the brokers that the group's member leaves, and close every connection."""
        if self._closed:
            return
        self._closed = True
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
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
        await self.remoting.close()

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for route in self.routes.known():
                try:
                    await self.routes.get(route.topic)
                except ClientError as error:
                    logger.warning("%s", error)
            await self.beat()

    async def _beat_one(self, address: str) -> None:
        body = self._describe(self.client_id).encode()
        try:
            await self.ask(address, RemotingCommand(RequestCode.HEART_BEAT, body=body))
        except (RemotingError, BrokerError) as error:
            logger.warning("heartbeat failed: %s", error)
        else:
            self._greeted.add(address)
