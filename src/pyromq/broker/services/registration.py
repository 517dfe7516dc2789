"""Keeps every NameServer informed of this broker: where it is and which topics it has.

A registration goes out at start, every `registerNameServerPeriod` and at once when topics
change. NameServers share nothing, so each has a task of its own: one that is slow or
unreachable delays nobody else. With `forceRegister` off, a NameServer is first asked
whether it has the current data version, and only registered at if not.

Invariants:
1. After a change of topics, a registration that begins after the change follows at every
   NameServer; changes during a registration share the next one.
2. A failed registration is tried again after 10 seconds or at the next change.
3. A registration is compressed when `compressedRegister` says so, and whenever it would take
   more than half a frame as JSON: NameServers read no frame above 16 MiB. One that does not
   fit even so is not sent; the log says what to do.
4. The order configuration and the master's addresses are taken from the first NameServer
   of the list that answers, so that differing NameServers do not make them flap.

Runs on the event loop; the body of a registration is encoded in a thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.topics import TopicTable
from pyromq.protocol.message.crc import CRC_MASK, crc32
from pyromq.protocol.message.sysflag import PERM_READ, PERM_WRITE
from pyromq.protocol.wire.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import MAX_FRAME, RemotingCommand
from pyromq.protocol.wire.headers import (
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from pyromq.remoting.errors import RemotingError

logger = logging.getLogger(__name__)

_SHORTEST_PERIOD = 10.0
_LONGEST_PERIOD = 60.0
#: Seconds after which a failed registration is tried again.
_RETRY_DELAY = 10.0
#: Seconds that the stop of a broker waits for NameServers.
_UNREGISTER_TIMEOUT = 3.0
#: A registration with more bytes than this is compressed; a compressed one is worth a warning.
_LARGE_BODY: Final = MAX_FRAME // 2
#: What a frame has room for beside the header of a registration.
_MAX_BODY: Final = MAX_FRAME - 16 * 1024


class _EncodedBody(NamedTuple):
    """The body of a registration, and what its header says of it."""

    content: bytes
    checksum: int
    compressed: bool


class NameServerClient(Protocol):
    """What registration needs of `RemotingClient`."""

    async def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - the time-out is part of the protocol's request
    ) -> RemotingCommand:
        """Send a request and return its answer. Raises RemotingError."""


class Registration:
    """Registers one broker at all its NameServers."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        client: NameServerClient,
        *,
        broker_address: str,
        ha_address: str,
    ) -> None:
        """`broker_address` is where clients reach the broker, `ha_address` where replicas do."""
        self._config = config
        self._topics = topics
        self._client = client
        self._broker_address = broker_address
        self._ha_address = ha_address
        self._name_servers = [_NameServer(address) for address in config.name_servers]
        self._body = _EncodedBody(b"", 0, compressed=False)
        #: Whether the log has a line about the size of the newest registration.
        self._size_reported = False
        self._body_version: DataVersion | None = None
        self._encoding = asyncio.Lock()
        #: The master's addresses as a NameServer told them; of use to a replica.
        self.master_address: str | None = None
        self.master_ha_address: str | None = None

    async def start(self) -> None:
        """Begin to register; returns when one NameServer knows the broker, or all failed."""
        self._topics.add_listener(lambda _: self.register_soon())
        attempts = [name_server.next_attempt() for name_server in self._name_servers]
        for name_server in self._name_servers:
            name_server.task = asyncio.create_task(self._keep_registered(name_server))
        for attempt in asyncio.as_completed(attempts):
            if await attempt:
                return

    def register_soon(self) -> None:
        """Register at every NameServer without waiting."""
        for name_server in self._name_servers:
            name_server.wake.set()

    async def register_now(self) -> None:
        """Register at every NameServer; returns when those that answered last have answered."""
        version = self._topics.data_version
        attempts = []
        for name_server in self._name_servers:
            attempt = name_server.running_attempt(version) if name_server.registered else None
            if attempt is None:
                name_server.wake.set()
                attempt = name_server.next_attempt() if name_server.registered else None
            if attempt is not None:
                attempts.append(attempt)
        if attempts:
            await asyncio.wait(attempts)

    async def stop(self, *, unregister: bool = True) -> None:
        """Stop registering and take the broker off every NameServer that knows it."""
        tasks = [item.task for item in self._name_servers if item.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name_server in self._name_servers:
            name_server.give_up()
        known = [item for item in self._name_servers if item.ever_registered and unregister]
        await asyncio.gather(*map(self._unregister, known))

    async def _keep_registered(self, name_server: _NameServer) -> None:
        period = self._config.register_name_server_period / 1000
        period = min(max(period, _SHORTEST_PERIOD), _LONGEST_PERIOD)
        forced = True
        while True:
            with name_server.attempt(self._topics.data_version):
                await self._register(name_server, forced=forced)
            delay = period if name_server.registered else min(period, _RETRY_DELAY)
            forced = await name_server.woken_within(delay) or self._config.force_register

    async def _register(self, name_server: _NameServer, *, forced: bool) -> None:
        try:
            if forced or not name_server.registered or await self._is_outdated(name_server):
                await self._send_registration(name_server)
        except Exception as error:
            # Whatever went wrong, the broker must try again: without it nobody finds it.
            # A ValueError is an answer whose header or body cannot be read.
            expected = isinstance(error, RemotingError | _RefusedError | ValueError)
            if name_server.registered or not name_server.reported:
                logger.warning(
                    "not registered at NameServer %s: %s",
                    name_server.address,
                    error,
                    exc_info=not expected,
                )
            name_server.registered = False
            name_server.reported = True
            return
        if not name_server.registered:
            logger.info("registered at NameServer %s", name_server.address)
        name_server.registered = name_server.ever_registered = True
        name_server.reported = False
        self._take_answer()

    async def _is_outdated(self, name_server: _NameServer) -> bool:
        """Whether the NameServer has other topics than the broker now."""
        version = self._topics.data_version
        header = QueryDataVersionRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        answer = await self._request(
            name_server,
            RemotingCommand(
                RequestCode.QUERY_DATA_VERSION, ext_fields=header.encode(), body=version.encode()
            ),
        )
        if QueryDataVersionResponseHeader.decode(answer.ext_fields).changed:
            return True
        return bool(answer.body) and DataVersion.decode(answer.body) != version

    async def _send_registration(self, name_server: _NameServer) -> None:
        body = await self._registration_body()
        if len(body.content) > _MAX_BODY:
            raise _RefusedError(
                f"a registration of {len(self._topics)} topics has {len(body.content)} bytes, "
                f"limit {_MAX_BODY}: stop the broker and remove topics that are not used from "
                f"{self._topics.file.path}"
            )
        header = RegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=self._config.broker_id,
            compressed=body.compressed,
            body_crc32=body.checksum,
        )
        answer = await self._request(
            name_server,
            RemotingCommand(
                RequestCode.REGISTER_BROKER, ext_fields=header.encode(), body=body.content
            ),
        )
        addresses = RegisterBrokerResponseHeader.decode(answer.ext_fields)
        ordered = KVTable.decode(answer.body) if answer.body else None
        name_server.answer = (addresses, ordered)

    async def _registration_body(self) -> _EncodedBody:
        async with self._encoding:
            if self._body_version != self._topics.data_version:
                wrapper = self._topics.snapshot()
                self._body = await asyncio.to_thread(self._encode, wrapper)
                self._body_version = wrapper.data_version
                self._report_size(len(wrapper.topic_config_table))
            return self._body

    def _report_size(self, topic_count: int) -> None:
        """Warn, once, while there is still room."""
        size = len(self._body.content)
        if size > _LARGE_BODY and not self._size_reported:
            logger.warning(
                "the registration of %d topics has %d bytes, %d %% of what a NameServer reads: "
                "delete topics that are not used",
                topic_count,
                size,
                size * 100 // _MAX_BODY,
            )
        self._size_reported = size > _LARGE_BODY

    def _encode(self, wrapper: TopicConfigSerializeWrapper) -> _EncodedBody:
        """In a thread: the body of a registration."""
        permission = self._config.broker_permission
        compressed = self._config.compressed_register
        content = b""
        if permission & (PERM_READ | PERM_WRITE) != PERM_READ | PERM_WRITE:
            wrapper.topic_config_table = {
                name: dataclasses.replace(topic, perm=permission)
                for name, topic in wrapper.topic_config_table.items()
            }
            if not compressed:
                content = RegisterBrokerBody(wrapper).encode()
        elif not compressed:
            content = self._topics.json.registration(wrapper)
        if compressed or len(content) > _LARGE_BODY:
            compressed = True
            content = RegisterBrokerBody(wrapper).encode(compress=True)
        return _EncodedBody(content, crc32(content) & CRC_MASK, compressed)

    async def _request(self, name_server: _NameServer, command: RemotingCommand) -> RemotingCommand:
        answer = await self._client.request(
            name_server.address, command, self._config.register_broker_timeout_mills / 1000
        )
        if answer.code != ResponseCode.SUCCESS:
            raise _RefusedError(f"answer {answer.code}: {answer.remark}")
        return answer

    def _take_answer(self) -> None:
        """Use what the first NameServer that answers said of order topics and the master."""
        first = next((item for item in self._name_servers if item.registered), None)
        if first is None or first.answer is None:
            return
        addresses, ordered = first.answer
        first.answer = None
        self.master_address = addresses.master_addr
        self.master_ha_address = addresses.ha_server_addr
        if ordered is not None:
            self._topics.set_order_topics(ordered.table.keys())

    async def _unregister(self, name_server: _NameServer) -> None:
        header = UnRegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        command = RemotingCommand(RequestCode.UNREGISTER_BROKER, ext_fields=header.encode())
        try:
            await self._client.request(name_server.address, command, _UNREGISTER_TIMEOUT)
        except RemotingError as error:
            logger.warning("not unregistered at NameServer %s: %s", name_server.address, error)


class _RefusedError(Exception):
    """A NameServer answered with an error."""


class _NameServer:
    """One NameServer: what is known of it and who waits for it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.task: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()
        #: Whether the last attempt succeeded, whether any ever did, whether a failure is logged.
        self.registered = False
        self.ever_registered = False
        self.reported = False
        self.answer: tuple[RegisterBrokerResponseHeader, KVTable | None] | None = None
        self._waiting: list[asyncio.Future[bool]] = []
        #: While an attempt is under way: who waits for it, and which topics it began with.
        self._told_by_running: list[asyncio.Future[bool]] | None = None
        self._running_version: DataVersion | None = None

    def next_attempt(self) -> asyncio.Future[bool]:
        """The outcome of the next attempt that begins after this call."""
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(outcome)
        return outcome

    def running_attempt(self, version: DataVersion) -> asyncio.Future[bool] | None:
        """The outcome of the attempt that is under way, if it began with these topics."""
        if self._told_by_running is None or version != self._running_version:
            return None
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._told_by_running.append(outcome)
        return outcome

    @contextmanager
    def attempt(self, version: DataVersion) -> Iterator[None]:
        """An attempt that begins now: when it ends, those who waited for it are told."""
        self.wake.clear()
        waiting, self._waiting = self._waiting, []
        self._told_by_running, self._running_version = waiting, version
        try:
            yield
        finally:
            self._told_by_running = None
            _tell(waiting, self.registered)

    def give_up(self) -> None:
        """No attempt will follow: let nobody wait for one."""
        self.registered = False
        waiting, self._waiting = self._waiting, []
        _tell(waiting, False)

    async def woken_within(self, seconds: float) -> bool:
        """Wait for a change of topics, at most so long; whether there was one."""
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return False
        return True


def _tell(waiting: list[asyncio.Future[bool]], outcome: bool) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(outcome)
