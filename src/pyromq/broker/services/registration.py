"""Registers the broker, its address and its topics with every NameServer.

A registration is sent at start, every `registerNameServerPeriod`, and immediately when topics
change. NameServers share nothing, so each has its own task: a slow or unreachable one delays no
other. With `forceRegister` off, the broker first queries the NameServer's data version and
registers only if it is outdated.

Invariants:
1. After a change of topics every NameServer gets a registration that was started after the change;
   changes during a registration share the next one.
2. A failed registration is retried after 10 seconds or at the next change.
3. A registration is compressed if `compressedRegister` is set, and whenever its JSON exceeds half a
   frame: NameServers read no frame above 16 MiB. One that is still too large is not sent; the log
   says what to do.
4. The broker unregisters from a NameServer that leaves the list (`set_name_servers`).
5. Order topics and the master's addresses come from the first NameServer of the list that answers,
   so that NameServers that disagree do not make them flap.

Runs on the loop; the body of a registration is encoded in a thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from pyromq.broker.config import BrokerConfig
from pyromq.broker.role import Role
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
from pyromq.remoting.requester import Requester

logger = logging.getLogger(__name__)

_MIN_PERIOD_SECONDS = 10.0
_MAX_PERIOD_SECONDS = 60.0
_RETRY_SECONDS = 10.0
#: How long a stopping broker waits for NameServers.
_UNREGISTER_SECONDS = 3.0
#: Bytes above which a registration is compressed; a compressed one above it causes a warning.
_LARGE_BODY: Final = MAX_FRAME // 2
#: Bytes of a frame, less the header of a registration.
_MAX_BODY: Final = MAX_FRAME - 16 * 1024


class _EncodedBody(NamedTuple):
    """The body of a registration and the header fields that describe it."""

    content: bytes
    checksum: int
    compressed: bool


class Registration:
    """Registers one broker with all its NameServers."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        client: Requester,
        *,
        broker_address: str,
        ha_address: str,
        role: Role,
    ) -> None:
        """`broker_address` is where clients reach the broker, `ha_address` where replicas do.

        Every registration carries the id that `role` has then.
        """
        self._config = config
        self._role = role
        self._topics = topics
        self._client = client
        self._broker_address = broker_address
        self._ha_address = ha_address
        self._name_servers = [_NameServer(address) for address in config.name_servers]
        self._is_started = False
        self._body = _EncodedBody(b"", 0, compressed=False)
        #: Whether the size of the newest registration was logged.
        self._size_reported = False
        self._body_version: DataVersion | None = None
        self._encoding = asyncio.Lock()
        #: The master's addresses as answered by a NameServer, for replicas. The address for
        #: clients is None while no master is registered; the other one is the last known.
        self.master_address: str | None = None
        self.master_ha_address: str | None = None
        #: The last `master_address` that was not None.
        self.last_master_address: str | None = None

    async def start(self) -> None:
        """Start registering; return when one NameServer knows the broker, or all have failed."""
        self._topics.add_listener(lambda _: self.register_soon())
        self._is_started = True
        for attempt in self._begin(self._name_servers):
            if await attempt:
                return

    async def set_name_servers(self, addresses: list[str]) -> None:
        """Register with these NameServers instead, and leave those that are not among them.

        Returns as `start` does, and at once before the start.
        """
        before = {name_server.address: name_server for name_server in self._name_servers}
        added = [_NameServer(address) for address in addresses if address not in before]
        kept = {name_server.address: name_server for name_server in added} | before
        self._name_servers = [kept[address] for address in addresses]
        left = [before[address] for address in before if address not in addresses]
        await self._leave(left, unregister=True)
        if self._is_started:
            for attempt in self._begin(added):
                if await attempt:
                    return

    def _begin(self, name_servers: list[_NameServer]) -> Iterator[Awaitable[bool]]:
        """Start to register; return the outcomes of the first attempts as they come."""
        attempts = [name_server.next_attempt() for name_server in name_servers]
        for name_server in name_servers:
            name_server.task = asyncio.create_task(self._keep_registered(name_server))
        return asyncio.as_completed(attempts)

    @property
    def registered(self) -> dict[str, bool]:
        """Return whether the last registration succeeded, by NameServer."""
        return {each.address: each.registered for each in self._name_servers}

    def register_soon(self) -> None:
        """Register with every NameServer without waiting."""
        for name_server in self._name_servers:
            name_server.wake.set()

    async def register_now(self) -> None:
        """Register with every NameServer; wait for those that answered the last registration."""
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
        """Stop registering, and unregister from every NameServer that knows the broker."""
        await self._leave(self._name_servers, unregister=unregister)

    async def _leave(self, name_servers: list[_NameServer], *, unregister: bool) -> None:
        tasks = [item.task for item in name_servers if item.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name_server in name_servers:
            name_server.give_up()
        known = [item for item in name_servers if item.ever_registered and unregister]
        await asyncio.gather(*map(self._unregister, known))

    async def _keep_registered(self, name_server: _NameServer) -> None:
        period = self._config.register_name_server_period / 1000
        period = min(max(period, _MIN_PERIOD_SECONDS), _MAX_PERIOD_SECONDS)
        forced = True
        while True:
            with name_server.attempt(self._topics.data_version):
                await self._register(name_server, forced=forced)
            delay = period if name_server.registered else min(period, _RETRY_SECONDS)
            forced = await name_server.woken_within(delay) or self._config.force_register

    async def _register(self, name_server: _NameServer, *, forced: bool) -> None:
        try:
            if forced or not name_server.registered or await self._is_outdated(name_server):
                await self._send_registration(name_server)
        except Exception as error:
            # Whatever failed, keep retrying: nobody finds an unregistered broker. A ValueError
            # means that the header or body of the response cannot be decoded.
            expected = isinstance(error, RemotingError | _RefusedError | ValueError)
            if name_server.registered or not name_server.reported:
                logger.warning(
                    "registration with NameServer %s failed, retrying in %g s: %s; its clients do "
                    "not find this broker",
                    name_server.address,
                    _RETRY_SECONDS,
                    error,
                    exc_info=not expected,
                )
            name_server.registered = False
            name_server.reported = True
            return
        if not name_server.registered:
            logger.info("registered with NameServer %s", name_server.address)
        name_server.registered = name_server.ever_registered = True
        name_server.reported = False
        self._take_answer()

    async def _is_outdated(self, name_server: _NameServer) -> bool:
        """Return whether the NameServer has another version of the topics."""
        version = self._topics.data_version
        header = QueryDataVersionRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._role.broker_id,
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
                f"the registration of {len(self._topics)} topics has {len(body.content)} bytes, "
                f"limit {_MAX_BODY}: stop the broker and remove unused topics from "
                f"{self._topics.file.path}"
            )
        header = RegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=self._role.broker_id,
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
        """Warn once while there is still room."""
        size = len(self._body.content)
        if size > _LARGE_BODY and not self._size_reported:
            logger.warning(
                "registration of %d topics has %d bytes, %d %% of the maximum: "
                "delete unused topics",
                topic_count,
                size,
                size * 100 // _MAX_BODY,
            )
        self._size_reported = size > _LARGE_BODY

    def _encode(self, wrapper: TopicConfigSerializeWrapper) -> _EncodedBody:
        """Encode the body of a registration, in a thread."""
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
            raise _RefusedError(f"response code {answer.code}: {answer.remark}")
        return answer

    def _take_answer(self) -> None:
        """Apply the order topics and master addresses of the first registered NameServer."""
        first = next((item for item in self._name_servers if item.registered), None)
        if first is None or first.answer is None:
            return
        addresses, ordered = first.answer
        first.answer = None
        self.master_address = addresses.master_addr
        self.last_master_address = addresses.master_addr or self.last_master_address
        self.master_ha_address = addresses.ha_server_addr or self.master_ha_address
        if ordered is not None:
            self._topics.set_order_topics(ordered.table.keys())

    async def _unregister(self, name_server: _NameServer) -> None:
        header = UnRegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._role.broker_id,
        )
        command = RemotingCommand(RequestCode.UNREGISTER_BROKER, ext_fields=header.encode())
        try:
            await self._client.request(name_server.address, command, _UNREGISTER_SECONDS)
        except RemotingError as error:
            logger.warning(
                "unregistering from NameServer %s failed: %s; it forgets this broker within 120 s",
                name_server.address,
                error,
            )


class _RefusedError(Exception):
    """A NameServer refused, or the registration cannot be sent."""


class _NameServer:
    """The state of one NameServer and the callers that wait for it."""

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
        #: The callers that wait for the attempt in flight, and the topics it started with.
        self._running_waiters: list[asyncio.Future[bool]] | None = None
        self._running_version: DataVersion | None = None

    def next_attempt(self) -> asyncio.Future[bool]:
        """Return the outcome of the next attempt that starts after this call."""
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(outcome)
        return outcome

    def running_attempt(self, version: DataVersion) -> asyncio.Future[bool] | None:
        """Return the outcome of the attempt in flight if it started with these topics."""
        if self._running_waiters is None or version != self._running_version:
            return None
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._running_waiters.append(outcome)
        return outcome

    @contextmanager
    def attempt(self, version: DataVersion) -> Iterator[None]:
        """Enclose an attempt; notify the waiting callers when it ends."""
        self.wake.clear()
        waiting, self._waiting = self._waiting, []
        self._running_waiters, self._running_version = waiting, version
        try:
            yield
        finally:
            self._running_waiters = None
            _notify(waiting, self.registered)

    def give_up(self) -> None:
        """Release the waiting callers, because no attempt will follow."""
        self.registered = False
        waiting, self._waiting = self._waiting, []
        _notify(waiting, False)

    async def woken_within(self, seconds: float) -> bool:
        """Wait for a change of topics, at most `seconds`; return whether there was one."""
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return False
        return True


def _notify(waiting: list[asyncio.Future[bool]], outcome: bool) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(outcome)
