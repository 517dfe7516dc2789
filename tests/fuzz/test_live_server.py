"""A real broker and a real NameServer under hostile input, while a good client works.

Whatever a hostile client sends, it gets an answer or a closed connection with one line in
the log; a well-behaved client beside it never notices, the loop has nothing to report, and
memory stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from pyromq.broker.broker import Broker
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.record import decode_records, encode_inner_message
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION
from pyromq.protocol.wire.bodies import ConsumerData, HeartbeatData, ProducerData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    Encoding,
    FrameReader,
    RemotingCommand,
    frame_prefix,
)
from pyromq.protocol.wire.header_codec import Header
from pyromq.protocol.wire.headers import (
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryDataVersionRequestHeader,
    QueryMessageRequestHeader,
    RegisterBrokerRequestHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UnRegisterBrokerRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from pyromq.remoting.client import RemotingClient
from tests.fuzz.test_codec import ABSURD
from tests.support.brokers import local_broker, small_store
from tests.support.loops import on_both_loops, on_uvloop_often
from tests.support.patience import DEADLINE, until

MIB: Final = 1024 * 1024
#: A code that no server knows: its answer shows that everything before it was looked at.
PROBE: Final = 4242
PROBE_OPAQUE: Final = 1_000_000

Log = pytest.LogCaptureFixture


class Cluster:
    """NameServer and broker in this process, and a client that must not suffer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nameserver = NameServer(
            NamesrvConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                kv_config_path=str(root / "kv.json"),
                config_store_path=str(root / "namesrv.properties"),
            )
        )
        self.rounds = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.nameserver.start()
        self.broker = Broker(
            local_broker(namesrv_addr=f"127.0.0.1:{self.nameserver.port}"),
            small_store(self.root / "store", mapped_file_size_commit_log=64 * MIB),
        )
        await self.broker.start()
        self.client = RemotingClient()
        working = asyncio.ensure_future(self._work())
        try:
            await until(lambda: self.rounds or working.done())
            yield
            before = self.rounds
            await until(lambda: self.rounds > before + 1 or working.done())
            assert not working.done()
        finally:
            working.cancel()
            (outcome,) = await asyncio.gather(working, return_exceptions=True)
            await self.client.close()
            await self.broker.stop()
            await self.nameserver.stop()
        assert isinstance(outcome, asyncio.CancelledError), outcome

    async def _work(self) -> None:
        """Send, pull it back, ask for the route: over and over."""
        while True:
            body = b"good %d" % self.rounds
            sent = await self._ask_broker(
                RemotingCommand(310, ext_fields=send_v2("Good").encode(), body=body)
            )
            offset = int(sent.ext_fields["queueOffset"])
            assert offset == self.rounds
            pulled = await self._ask_broker(
                RemotingCommand(11, ext_fields=pull("Good", offset).encode())
            )
            assert [record.body for record in decode_records(pulled.body)] == [body]
            route = await self.client.request(
                f"127.0.0.1:{self.nameserver.port}",
                RemotingCommand(105, ext_fields=GetRouteInfoRequestHeader("TBW102").encode()),
                DEADLINE,
            )
            assert route.code == ResponseCode.SUCCESS, route.remark
            self.rounds += 1
            await asyncio.sleep(0.002)

    async def _ask_broker(self, command: RemotingCommand) -> RemotingCommand:
        answer = await self.client.request(f"127.0.0.1:{self.broker.port}", command, DEADLINE)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer


def send_v2(topic: str, **changes: Any) -> SendMessageRequestHeaderV2:
    fields: dict[str, Any] = {
        "producer_group": "P",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": "KEYS\x01k\x02TAGS\x01t",
    }
    return SendMessageRequestHeaderV2(**{**fields, **changes})


def pull(topic: str, offset: int, sys_flag: int = PULL_SUBSCRIPTION) -> PullMessageRequestHeader:
    return PullMessageRequestHeader("C", topic, 0, offset, 32, sys_flag, 0, 100, 0, "*", "TAG")


class Hostile:
    """A connection that may say anything."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.opened: list[str] = []

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.frames = FrameReader(max_frame=1 << 30)
        host, port = self.writer.get_extra_info("sockname")
        self.opened.append(f"{host}:{port}")

    @property
    def address(self) -> str:
        return self.opened[-1]

    async def answers_until(self, opaque: int | None) -> list[RemotingCommand] | None:
        """What comes until that opaque is answered; None: the connection was closed first."""
        found: list[RemotingCommand] = []
        while True:
            try:
                data = await asyncio.wait_for(self.reader.read(1 << 18), DEADLINE)
            except ConnectionError:
                data = b""
            if not data:
                return None
            found += self.frames.feed(data)
            if any(answer.opaque == opaque for answer in found):
                return found

    async def attack(self, frame: bytes, opaque: int, *, may_wait: bool = False) -> str:
        """Send a frame and a probe behind it: "answered", "waiting" or "closed"."""
        self.writer.write(frame + RemotingCommand(PROBE, opaque=PROBE_OPAQUE).encode())
        answers = await self.answers_until(PROBE_OPAQUE)
        if answers is None:
            await self.connect()
            return "closed"
        if all(answer.opaque != opaque for answer in answers):
            if may_wait:
                return "waiting"
            late = await self.answers_until(opaque)  # a coroutine answers when it can
            assert late is not None
        return "answered"

    def close(self) -> None:
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def hostile(port: int) -> AsyncIterator[Hostile]:
    client = Hostile(port)
    await client.connect()
    try:
        yield client
    finally:
        client.close()


def lines_about(caplog: Log, address: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and address in record.getMessage()
    ]


def anonymous_memory() -> int:
    """Bytes of this process that are no file's."""
    text = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", text)
    assert found
    return int(found[1]) * 1024


# Bytes that are no frames


def no_frames() -> Iterator[bytes]:
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)
    yield bytes(1000)
    yield b"\xff" * 1000
    yield struct.pack(">II", 17 * MIB, 100) + bytes(100_000)
    yield struct.pack(">II", 0x80000000, 0)
    yield struct.pack(">II", 3, 0)
    yield struct.pack(">II", 10, 0xFFFFFF) + bytes(100)
    yield struct.pack(">II", 4, 0)
    for header in (
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"code":"310"}',
        b'{"code":1e400}',
        b'{"code":NaN}',
        b'{"code":99999999999999}',
        b'{"code":310,"flag":{}}',
        b'{"code":310,"remark":"\xff"}',
        b'{"code":310,"opaque":"x"}',
        b'{"code":11,"opaque":"x"}',
        b'{"code":34,"opaque":[]}',
        b'{"code":105,"opaque":4294967296}',
        b'{"code":103,"version":"high"}',
        b'{"code":34,"extFields":"none"}',
        b'{"code":105,"extFields":[1,2]}',
        b"[" * 100_000,
        b'{"code":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"code":34,"remark":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"code":34,"extFields":{"a":' + b"[" * 1000 + b"]" * 1000 + b"}}",
    ):
        yield frame_prefix(0, len(header), 0) + header
    for data in (b"", b"\x00", bytes(12), bytes(13) + b"\xff\xff\xff\xff", b"\xff" * 100):
        yield frame_prefix(1, len(data), 0) + data
    yield frame_prefix(2, 2, 0) + b"{}"


@on_both_loops
async def test_bytes_that_are_no_frame(tmp_path: Path, caplog: Log) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.running():
        for port in (cluster.broker.port, cluster.nameserver.port):
            for data in no_frames():
                caplog.clear()  # ports are used again
                async with hostile(port) as client:
                    client.writer.write(data)
                    assert await client.answers_until(None) is None
                    assert len(lines_about(caplog, client.address)) == 1, data[:60]


@on_both_loops
async def test_truncated_frames(tmp_path: Path, caplog: Log) -> None:
    cluster = Cluster(tmp_path)
    command = RemotingCommand(310, ext_fields=send_v2("Torn").encode(), body=bytes(50))
    async with cluster.running():
        for encoding in Encoding:
            command.encoding = encoding
            frame = command.encode()
            for length in range(0, len(frame), 5):
                caplog.clear()  # ports are used again
                async with hostile(cluster.broker.port) as client:
                    client.writer.write(frame[:length])
                    client.writer.write_eof()
                    assert await client.answers_until(None) is None
                    assert lines_about(caplog, client.address) == []
        assert cluster.broker.topics.get("Torn") is None


@on_both_loops
async def test_random_bytes(tmp_path: Path, caplog: Log) -> None:
    cluster = Cluster(tmp_path)
    dice = random.Random(20_260_101)
    good = RemotingCommand(310, ext_fields=send_v2("Random").encode(), body=b"x" * 30).encode()
    async with cluster.running():
        for n in range(300):
            kind = n % 3
            if kind == 0:
                data = dice.randbytes(dice.randrange(1, 2000))
            elif kind == 1:
                data = frame_prefix(dice.randrange(3), 40, 60) + dice.randbytes(100)
            else:
                damaged = bytearray(good)
                for _ in range(dice.randrange(1, 6)):
                    damaged[dice.randrange(len(damaged))] = dice.randrange(256)
                data = bytes(damaged)
            port = dice.choice((cluster.broker.port, cluster.nameserver.port))
            caplog.clear()  # ports are used again
            async with hostile(port) as client:
                client.writer.write(data)
                client.writer.write_eof()
                assert await client.answers_until(None) is None
                assert len(lines_about(caplog, client.address)) <= 1, data


# Requests with absurd contents


BROKER_REQUESTS: dict[int, tuple[Header, bytes]] = {
    RequestCode.SEND_MESSAGE: (
        SendMessageRequestHeader("P", "Open", "TBW102", 4, 1, 0, 1_700_000_000_000, 0, "A\x01b"),
        b"body",
    ),
    RequestCode.SEND_MESSAGE_V2: (send_v2("Open", queue_id=1), b"body"),
    RequestCode.SEND_BATCH_MESSAGE: (
        send_v2("Open", queue_id=1, batch=True),
        encode_inner_message(b"one", b"TAGS\x01t") * 3,
    ),
    RequestCode.PULL_MESSAGE: (pull("Good", 0), b""),
    RequestCode.QUERY_CONSUMER_OFFSET: (QueryConsumerOffsetRequestHeader("C", "Good", 0), b""),
    RequestCode.UPDATE_CONSUMER_OFFSET: (
        UpdateConsumerOffsetRequestHeader("C", "Good", 0, 5),
        b"",
    ),
    RequestCode.GET_MAX_OFFSET: (GetMaxOffsetRequestHeader("Good", 0), b""),
    RequestCode.GET_MIN_OFFSET: (GetMinOffsetRequestHeader("Good", 0), b""),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (SearchOffsetRequestHeader("Good", 0, 0), b""),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (GetConsumerListByGroupRequestHeader("C"), b""),
    RequestCode.UNREGISTER_CLIENT: (UnregisterClientRequestHeader("id", "P", "C"), b""),
    RequestCode.QUERY_MESSAGE: (QueryMessageRequestHeader("Good", "k", 32, 0, 2**62), b""),
    RequestCode.VIEW_MESSAGE_BY_ID: (ViewMessageRequestHeader(0), b""),
}
NAMESERVER_REQUESTS: dict[int, tuple[Header, bytes]] = {
    RequestCode.REGISTER_BROKER: (
        RegisterBrokerRequestHeader("evil", "127.0.0.1:1", "Evil", "127.0.0.1:2", 0),
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}}}',
    ),
    RequestCode.UNREGISTER_BROKER: (
        UnRegisterBrokerRequestHeader("evil", "127.0.0.1:1", "Evil", 0),
        b"",
    ),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: (GetRouteInfoRequestHeader("Good"), b""),
    RequestCode.QUERY_DATA_VERSION: (
        QueryDataVersionRequestHeader("evil", "127.0.0.1:1", "Evil", 0),
        b'{"timestamp":1,"counter":1}',
    ),
}
#: Values that JSON has beside text.
NOT_TEXT: tuple[object, ...] = (
    0,
    -1,
    2**63,
    1.5,
    True,
    None,
    [],
    {},
    [[1]],
    {"a": {"b": None}},
)


def absurd_requests(code: int, header: Header, body: bytes) -> Iterator[tuple[bytes, int]]:
    """Frames of a request with one thing wrong in each, and their opaques."""
    fields = header.encode()
    opaque = 0

    def frame(ext_fields: dict[str, Any], body: bytes = body, **top: Any) -> tuple[bytes, int]:
        nonlocal opaque
        opaque += 1
        value = {"code": code, "opaque": opaque, "extFields": ext_fields, "version": 407, **top}
        text = orjson.dumps(value)
        return frame_prefix(0, len(text), len(body)) + text + body, opaque

    yield frame({})
    yield frame({}, b"", extFields=None)
    for name in fields:
        yield frame({key: text for key, text in fields.items() if key != name})
        for value in (*ABSURD, *NOT_TEXT):
            yield frame({**fields, name: value})
    for text in ABSURD:
        opaque += 1
        everything = dict.fromkeys(fields, text)
        command = RemotingCommand(
            code, opaque=opaque, ext_fields=everything, body=body, encoding=Encoding.ROCKETMQ
        )
        yield command.encode(), opaque
    for bad in (b"", b"\x00", b"[]", b"null", b"{", b"\xff" * 50, b"[" * 10_000, bytes(1000)):
        yield frame(fields, bad)
    languages: tuple[object, ...] = ("KLINGON", 5, None, [])
    for language in languages:
        yield frame(fields, language=language)
    for version in (-1, 0, 2**31 - 1):
        yield frame(fields, version=version)
    for flag in (FLAG_ONEWAY, 3, -1, 2**31 - 1):
        # Nobody waits for an answer here: the next request shows that all is well.
        yield frame(fields, flag=flag)[0] + frame(fields)[0], opaque


@on_uvloop_often
@pytest.mark.parametrize("code", list(BROKER_REQUESTS), ids=lambda code: code.name)
async def test_absurd_requests_to_the_broker(code: int, tmp_path: Path, caplog: Log) -> None:
    cluster = Cluster(tmp_path)
    header, body = BROKER_REQUESTS[code]
    async with cluster.running(), hostile(cluster.broker.port) as client:
        for frame, opaque in absurd_requests(code, header, body):
            caplog.clear()
            outcome = await client.attack(frame, opaque, may_wait=code == RequestCode.PULL_MESSAGE)
            # What is wrong inside a header is answered; only what is no frame closes.
            assert outcome != "closed", frame[:300]
            # One for each request that failed; there are two behind a oneway one.
            assert len(lines_about(caplog, client.address)) <= 2
    check_files(tmp_path / "store")


def check_files(root: Path) -> None:
    """Hostile names have made no directory."""
    names = {path.name for path in (root / "consumequeue").iterdir()}
    assert all(re.fullmatch(r"[%|a-zA-Z0-9_-]+", name) for name in names), names
    assert {path.name for path in root.iterdir()} <= {
        "abort",
        "checkpoint",
        "commitlog",
        "config",
        "consumequeue",
        "index",
        "lock",
    }


@on_uvloop_often
@pytest.mark.parametrize("code", list(NAMESERVER_REQUESTS), ids=lambda code: code.name)
async def test_absurd_requests_to_the_nameserver(code: int, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    header, body = NAMESERVER_REQUESTS[code]
    async with cluster.running(), hostile(cluster.nameserver.port) as client:
        for frame, opaque in absurd_requests(code, header, body):
            assert await client.attack(frame, opaque) == "answered"


def absurd_heartbeats() -> Iterator[bytes]:
    yield from (b"", b"{}", b"[]", b"null", b"{", b"\xff", b"[" * 10_000, b'{"a":' * 10_000)
    yield from (b'{"clientID":%s}' % value for value in (b"1", b"null", b"[]", b"{}", b'""'))
    for name in ("producerDataSet", "consumerDataSet"):
        for value in NOT_TEXT[:2] + NOT_TEXT[3:]:
            yield orjson.dumps({"clientID": "c", name: value})
            yield orjson.dumps({"clientID": "c", name: [value]})
            for member in ("groupName", "subscriptionDataSet", "consumeType", "messageModel"):
                yield orjson.dumps({"clientID": "c", name: [{"groupName": "G", member: value}]})
    for text in ABSURD:
        heartbeat = HeartbeatData(
            client_id=text,
            producer_data_set=[ProducerData(text)],
            consumer_data_set=[ConsumerData(text)],
        )
        yield heartbeat.encode()


@on_both_loops
async def test_absurd_heartbeats(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.running(), hostile(cluster.broker.port) as client:
        for opaque, body in enumerate(absurd_heartbeats()):
            command = RemotingCommand(RequestCode.HEART_BEAT, opaque=opaque, body=body)
            assert await client.attack(command.encode(), opaque) == "answered"


# Memory


@on_both_loops
async def test_client_that_pulls_and_does_not_read(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.running():
        async with hostile(cluster.broker.port) as client:
            for opaque in range(64):
                command = RemotingCommand(
                    310, opaque=opaque, ext_fields=send_v2("Large").encode(), body=bytes(64 * 1024)
                )
                assert await client.attack(command.encode(), opaque) == "answered"
        before = anonymous_memory()
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                client = await stack.enter_async_context(hostile(cluster.broker.port))
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                for opaque in range(1000):
                    command = RemotingCommand(
                        11, opaque=opaque, ext_fields=pull("Large", 0).encode()
                    )
                    client.writer.write(command.encode())
            rounds = cluster.rounds
            await until(lambda: cluster.rounds > rounds + 20)
            # Each has a few answers of 256 KiB waiting, not all of its thousand.
            assert anonymous_memory() - before < 80 * MIB
            # One reads again, and goes on where it stopped.
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            answers = await client.answers_until(99)
            assert answers is not None
            assert [answer.opaque for answer in answers[:100]] == list(range(100))


@on_both_loops
async def test_memory_after_many_attacks(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    async def attack() -> None:
        for port in (cluster.broker.port, cluster.nameserver.port):
            for data in no_frames():
                async with hostile(port) as client:
                    client.writer.write(data)
                    assert await client.answers_until(None) is None
            async with hostile(port) as client:
                for n in range(500):
                    command = RemotingCommand(
                        (34, 105, 310, 11, 103)[n % 5],
                        opaque=n,
                        ext_fields={"b": "x" * 5000, "topic": f"No-{n}" * 500},
                        body=b"{" * 5000,
                    )
                    await client.attack(command.encode(), n)

    async with cluster.running():
        await attack()
        before = anonymous_memory()
        for _ in range(3):
            await attack()
        assert anonymous_memory() - before < 16 * MIB
