"""A broker's handlers, tables and store wired together, without sockets.

Bytes go through the server's real connections: parsing, runs of frames, answers after
the seal. `fast` has the hot handlers in front, `slow` only the plain ones behind them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.pull import PullHandlers
from pyromq.broker.handlers.query import QueryHandlers
from pyromq.broker.handlers.reply import ReplyHandlers
from pyromq.broker.handlers.send import SendHandlers
from pyromq.broker.handlers.send_back import SendBackHandlers
from pyromq.broker.inner_messages import MessageWriter
from pyromq.broker.services.flow_control import Lanes
from pyromq.broker.services.long_poll import LongPoll
from pyromq.broker.services.stats import BrokerStats
from pyromq.broker.state.connections import ConsumerTable, ProducerTable
from pyromq.broker.state.filters import ConsumerFilterTable
from pyromq.broker.state.groups import GroupTable
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.broker.state.topics import TopicTable
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import MessageRecord, decode_record
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    Encoding,
    RemotingCommand,
    command_from,
    split_frames,
)
from pyromq.remoting.server import Connection, RemotingServer
from pyromq.store.message_store import MessageStore
from tests.support.brokers import small_store

BORN = 1_700_000_000_000
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
    """One connection to the wired broker."""

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


class Wired:
    """The parts of a broker that send, pull and query need."""

    def __init__(
        self, root: Path, config: BrokerConfig | None = None, **store_settings: Any
    ) -> None:
        self.config = config or BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")
        store_config = small_store(root, **store_settings)
        directory = store_config.config_directory
        self.topics = TopicTable(self.config, directory)
        self.groups = GroupTable(self.config, directory)
        self.offsets = ConsumerOffsetTable(directory)
        self.filters = ConsumerFilterTable(self.config, directory)
        self.consumers = ConsumerTable()
        self.consumers.on_subscribed = self.filters.register
        self.consumers.on_gone = self.filters.unregister
        self.producers = ProducerTable()
        self.long_poll = LongPoll(self.config)
        self.lanes = Lanes(self.config)
        self.host = encode_host(*STORE_HOST)
        bit_map_of = self.filters.bit_map if self.config.enable_calc_filter_bit_map else None
        self.store = MessageStore(store_config, self.host, self.long_poll.arrived, bit_map_of)
        self.store.start()
        self.long_poll.start()
        self.now = BORN
        self.writer = MessageWriter(self.store)
        self.send = SendHandlers(
            self.config,
            self.store,
            self.writer,
            self.topics,
            self.groups,
            self.host,
            lambda: self.now,
        )
        self.stats = BrokerStats(self.store.growth, self.config.broker_cluster_name)
        self.pull = PullHandlers(
            self.config,
            self.store,
            self.topics,
            self.groups,
            self.consumers,
            self.offsets,
            self.long_poll,
            self.lanes.pull,
            self.stats,
            self.filters,
        )
        query = QueryHandlers(self.store, self.lanes.query)
        #: Group and topic of what consumers sent back.
        self.sent_back: list[tuple[str, str]] = []
        #: What is called when a topic that was made must be known before an answer leaves.
        self.register: Callable[[], Awaitable[None]] | None = None
        send_back = SendBackHandlers(
            self.config,
            self.store,
            self.writer,
            self.topics,
            self.groups,
            self.lanes.send,
            register=self._registered,
            on_sent_back=lambda *sent: self.sent_back.append(sent),
        )
        reply = ReplyHandlers(
            self.config,
            self.writer,
            self.producers,
            self.host,
            self.send.check,
            lambda: self.now,
        )
        plain: dict[int, Any] = {
            RequestCode.SEND_MESSAGE: self.send.send_one,
            RequestCode.SEND_MESSAGE_V2: self.send.send_one,
            RequestCode.SEND_BATCH_MESSAGE: self.send.send_one,
            RequestCode.CONSUMER_SEND_MSG_BACK: send_back.send_back,
            RequestCode.SEND_REPLY_MESSAGE: reply.send_reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: reply.send_reply,
            RequestCode.QUERY_MESSAGE: query.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: query.view_message,
        }
        hot: dict[int, Any] = {
            RequestCode.SEND_MESSAGE: self.send.send,
            RequestCode.SEND_MESSAGE_V2: self.send.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send.send_batch,
            RequestCode.PULL_MESSAGE: self.pull.pull,
        }
        self.server = RemotingServer(plain, hot_handlers=hot, on_chunk_end=self.store.seal)
        self.slow_server = RemotingServer(plain, on_chunk_end=self.store.seal)
        self.fast = self.connect()
        self.slow = Client(self.slow_server, ("127.0.0.1", 40404))

    async def _registered(self) -> None:
        if self.register is not None:
            await self.register()

    def connect(self, peer: tuple[str, int] = ("127.0.0.1", 40404)) -> Client:
        return Client(self.server, peer)

    async def close(self) -> None:
        self.long_poll.stop()
        await self.lanes.stop()
        self.store.stop()
        for table in (self.topics, self.groups, self.offsets, self.filters):
            await table.file.close()

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


V1_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "brokerName",
)
V2_NAMES = "abcdefghijklmn"


def send_fields(code: RequestCode, **values: str | None) -> dict[str, str]:
    """The extFields of a send; values by their long names, None leaves one out."""
    filled: dict[str, str | None] = {
        "producerGroup": "producers",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": str(BORN),
        "flag": "7",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
        **values,
    }
    names = dict(zip(V1_NAMES, V2_NAMES, strict=True))
    return {
        name if code == RequestCode.SEND_MESSAGE else names[name]: value
        for name, value in filled.items()
        if value is not None
    }


def send_request(
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    body: bytes = b"body",
    *,
    opaque: int = 1,
    oneway: bool = False,
    encoding: Encoding = Encoding.JSON,
    version: int = 407,
    **values: str | None,
) -> RemotingCommand:
    """A send of any form."""
    return RemotingCommand(
        code,
        opaque=opaque,
        ext_fields=send_fields(code, **values),
        body=body,
        flag=FLAG_ONEWAY if oneway else 0,
        encoding=encoding,
        version=version,
    )


def pull_request(
    *,
    opaque: int = 1,
    oneway: bool = False,
    encoding: Encoding = Encoding.JSON,
    **values: str | None,
) -> RemotingCommand:
    """A pull that names its subscription itself and does not wait, unless told otherwise."""
    filled: dict[str, str | None] = {
        "consumerGroup": "consumers",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **values,
    }
    return RemotingCommand(
        RequestCode.PULL_MESSAGE,
        opaque=opaque,
        ext_fields={name: value for name, value in filled.items() if value is not None},
        flag=FLAG_ONEWAY if oneway else 0,
        encoding=encoding,
    )


def raw_frame(header: dict[str, Any] | bytes, body: bytes = b"") -> bytes:
    """A frame with any JSON header."""
    data = header if isinstance(header, bytes) else orjson.dumps(header)
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body
