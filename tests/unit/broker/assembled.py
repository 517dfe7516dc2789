"""A whole broker without sockets, assembled as the real one (`broker.assembly`).

Bytes pass through real connections: parsing, runs of frames, answers after the seal. Requests of
`fast` meet the compiled kernel first, those of `hot` the hot handlers, those of `slow` only the
plain ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pyromq.broker.assembly import assemble
from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.pull import PullHandlers
from pyromq.broker.handlers.send_slow import SlowSends
from pyromq.broker.hooks import Hooks
from pyromq.broker.instruments import BrokerInstruments
from pyromq.broker.parts import BrokerParts, build_parts
from pyromq.broker.services.flow_control import Lanes
from pyromq.broker.services.long_poll import LongPoll
from pyromq.broker.state.tables import BrokerTables
from pyromq.protocol.message.message_id import encode_host, format_address
from pyromq.protocol.message.record import MessageRecord, decode_record
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, command_from, split_frames
from pyromq.remoting.connection import Connection
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service
from pyromq.store.message_store import MessageStore
from tests.support.brokers import small_store
from tests.support.requests import BORN, send_request

STORE_HOST = ("127.0.0.1", 10911)


class FakeTransport(asyncio.Transport):
    """Keeps what is written; closes when told to."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer})
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Client:
    """One connection to the broker."""

    def __init__(self, server: RemotingServer, peer: tuple[str, int]) -> None:
        self.connection = Connection(server, asyncio.get_running_loop())
        self.transport = FakeTransport(peer)
        self.connection.connection_made(self.transport)

    @property
    def closed(self) -> bool:
        return self.transport.closed

    def exchange(self, *requests: RemotingCommand | bytes) -> list[RemotingCommand]:
        """Send requests in one chunk; the answers that came at once."""
        chunk = b"".join(
            item.encode() if isinstance(item, RemotingCommand) else item for item in requests
        )
        self.connection.data_received(chunk)
        return self.received()

    def ask(self, request: RemotingCommand | bytes) -> RemotingCommand:
        """The one answer of one request."""
        (answer,) = self.exchange(request)
        return answer

    def received(self) -> list[RemotingCommand]:
        """What came since the last look."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        frames, taken, error = split_frames(data)
        assert error is None
        assert taken == len(data)
        return [command_from(frame) for frame in frames]

    def lose(self) -> None:
        """The client goes away."""
        self.connection.connection_lost(None)


class AssembledBroker:
    """A broker that a test talks to without a network."""

    def __init__(
        self,
        root: Path,
        config: BrokerConfig | None = None,
        *,
        hooks: Hooks | None = None,
        instruments: BrokerInstruments | None = None,
        **store_settings: Any,
    ) -> None:
        self.config = config or BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")
        store_config = small_store(root, **store_settings)
        self.tables = tables = BrokerTables.of(self.config, store_config)
        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        self.filters, self.consumers = tables.filters, tables.consumers
        self.producers, self.transactions = tables.producers, tables.transactions
        self.long_poll = LongPoll(self.config)
        self.lanes = Lanes(self.config)
        self.host = encode_host(*STORE_HOST)
        bit_map_of = self.filters.bit_map if self.config.enable_calc_filter_bit_map else None
        self.store = MessageStore(store_config, self.host, self.long_poll.arrived, bit_map_of)
        self.store.start()
        self.long_poll.start()
        self.now = BORN
        #: Called when a new topic must be announced before an answer leaves; usually nothing waits.
        self.announce: Callable[[], Awaitable[None]] | None = None
        self.parts = self._build_parts(hooks, instruments)
        self.writer, self.stats = self.parts.writer, self.parts.stats
        self.assembly = assemble(self.parts)
        service = self.assembly.service
        self.server = served(service)
        self.fast = self.connect()
        without_kernel = dataclasses.replace(service, take_frames=None)
        self.hot_server = served(without_kernel)
        self.hot = Client(self.hot_server, ("127.0.0.1", 40404))
        slow_server = served(dataclasses.replace(without_kernel, hot_handlers=only_hot(service)))
        self.slow = Client(slow_server, ("127.0.0.1", 40404))

    def _build_parts(
        self, hooks: Hooks | None, instruments: BrokerInstruments | None
    ) -> BrokerParts:
        return build_parts(
            self.config,
            self.store,
            self.tables,
            lanes=self.lanes,
            long_poll=self.long_poll,
            store_host=self.host,
            address=format_address(*STORE_HOST),
            announce=self._announce,
            hooks=hooks,
            instruments=instruments,
            clock=lambda: self.now,
        )

    def _announce(self) -> Awaitable[None] | None:
        return None if self.announce is None else self.announce()

    @property
    def slow_sends(self) -> SlowSends:
        sends = self.assembly.routes.plain[RequestCode.SEND_MESSAGE].__self__  # type: ignore[attr-defined]
        assert isinstance(sends, SlowSends)
        return sends

    @property
    def pull_handlers(self) -> PullHandlers:
        handlers = self.assembly.routes.hot[RequestCode.PULL_MESSAGE].__self__  # type: ignore[attr-defined]
        assert isinstance(handlers, PullHandlers)
        return handlers

    def connect(self, peer: tuple[str, int] = ("127.0.0.1", 40404)) -> Client:
        return Client(self.server, peer)

    async def close(self) -> None:
        self.long_poll.stop()
        await self.lanes.stop()
        self.store.stop()
        await self.tables.close()

    def put(self, *bodies: bytes, topic: str = "T", tags: str = "", queue_id: int = 0) -> None:
        """Store messages, one chunk each."""
        properties = f"TAGS\x01{tags}" if tags else ""
        for body in bodies:
            request = send_request(
                body=body, topic=topic, queueId=str(queue_id), properties=properties
            )
            assert self.fast.ask(request).code == ResponseCode.SUCCESS

    def records(self, since: int = 0) -> list[MessageRecord]:
        """Everything in the log from a physical offset on, in its order."""
        found = []
        offset = since
        while offset < self.store.max_physical_offset:
            data = self.store.read_record(offset)
            assert data is not None, f"no record at {offset}"
            record = decode_record(data)
            assert record.physical_offset == offset
            assert record.size == len(data)
            found.append(record)
            offset += record.size
        return found

    def entries(self) -> list[tuple[str, int, int, int]]:
        """Topic, queue id, offset and tags code of every consume-queue entry."""
        return [
            (queue.topic, queue.queue_id, number, entry[2])
            for queue in sorted(self.store.queues(), key=lambda q: (q.topic, q.queue_id))
            for number, entry in enumerate(queue.entries())
        ]


def served(service: Service[Connection]) -> RemotingServer:
    """Return a server that does not listen, for `Client`."""
    server = RemotingServer()
    server.serve(service)
    return server


def only_hot(service: Service[Connection]) -> dict[int, Any]:
    """Return the hot handlers of the codes that have no plain one."""
    return {
        code: handler
        for code, handler in service.hot_handlers.items()
        if code not in service.handlers
    }
