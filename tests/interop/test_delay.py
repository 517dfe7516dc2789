"""Delayed messages: the delivered record, and the store on which one goes on for the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message.record import MessageRecord, decode_records
from pyromq.protocol.wire.bodies import DelayOffsetSerializeWrapper
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import PullMessageRequestHeader
from tests.interop.raw_broker import GROUP, RawBroker, Seed
from tests.interop.servers import PyromqServer
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.patience import DEADLINE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

TOPIC = "Delayed"
PROPERTIES = {
    "TAGS": "tag-ä",
    "KEYS": "one two",
    "UNIQ_KEY": "7F000001000000000000000000000001",
    "WAIT": "true",
    "own": "消息",
    "DELAY": "1",
}

Server = PyromqServer | ApacheRocketMQ


@pytest.fixture
def servers(namesrv: str) -> Iterator[Servers]:
    java_or_skip()
    servers = Servers(namesrv)
    yield servers
    servers.end()


class Servers:
    """Starts brokers of either kind; ends them, however a test ends."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._started: list[Server] = []

    def start(self, name: str, store: Path, levels: str = "1s 5s") -> Server:
        settings = {"messageDelayLevel": levels}
        server: Server
        if name == "apache":
            server = ApacheRocketMQ(
                store=store,
                broker_only=True,
                namesrv_address=self._namesrv,
                broker_properties=settings,
                jvm_options=QUICK_JVM_OPTIONS,
            )
        else:
            server = PyromqServer(store=store, broker_properties=settings)
        self._started.append(server)
        server.start()
        return server

    def end(self) -> None:
        for server in self._started:
            server.kill()
            if isinstance(server, PyromqServer):
                server.clean_up()


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[RawBroker]:
    broker = RawBroker(server.broker_address)
    try:
        yield broker
    finally:
        await broker.close()


async def pull(broker: RawBroker, count: int, tags: str = "*") -> list[MessageRecord]:
    """Wait for so many messages of queue 1."""
    deadline = time.monotonic() + DEADLINE
    while True:
        header = PullMessageRequestHeader(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=1,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=4,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=tags,
            sub_version=0,
        )
        answer = await broker.ask(
            RequestCode.PULL_MESSAGE,
            header,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )
        records = decode_records(answer.body)
        if len(records) >= count:
            return records
        assert time.monotonic() < deadline, f"{len(records)} of {count} messages came"
        await asyncio.sleep(0.05)


def lasting(record: MessageRecord) -> dict[str, Any]:
    """What of a delivered record does not depend on when and where it was sent."""
    return {
        name: getattr(record, name)
        for name in (
            "topic",
            "queue_id",
            "queue_offset",
            "body",
            "flag",
            "sys_flag",
            "reconsume_times",
            "prepared_transaction_offset",
            "body_crc",
        )
    } | {"properties": {k: v for k, v in record.properties.items() if k != "CLUSTER"}}


async def test_a_delivered_record_is_the_same(tmp_path: Path, servers: Servers) -> None:
    found = []
    for name in ("apache", "pyromq"):
        server = servers.start(name, tmp_path / name)
        async with connected(server) as broker:
            await broker.send(Seed(TOPIC, 1, [b"body \x00\xff"], PROPERTIES, sys_flag=0x2))
            await broker.send(Seed(TOPIC, 1, [b"no tags"], {"DELAY": "1"}))
            records = await pull(broker, 2)
            # The entry's hash of the tags, which the broker filters by.
            (tagged,) = await pull(broker, 1, "tag-ä")
            offsets = await broker.ask(RequestCode.GET_ALL_DELAY_OFFSET, None)
        assert tagged == records[0]
        found.append(([lasting(record) for record in records], offsets.body))
    assert found[0] == found[1]
    assert DelayOffsetSerializeWrapper.decode(found[0][1]).offset_table == {1: 2}


@pytest.mark.parametrize(("first", "second"), [("pyromq", "apache"), ("apache", "pyromq")])
async def test_the_other_delivers_what_is_left(
    tmp_path: Path, servers: Servers, first: str, second: str
) -> None:
    """Not due before the first one has ended, and at once for the second one.

    Its second level is shorter, and what waits for longer than its level says is due.
    """
    store = tmp_path / "store"
    server = servers.start(first, store, "1s 1h")
    async with connected(server) as broker:
        await broker.send(Seed(TOPIC, 1, [b"before"], {"DELAY": "1"}))
        await pull(broker, 1)
        await broker.send(Seed(TOPIC, 1, [b"after"], {"DELAY": "2"}))
    server.stop()
    saved = (store / "config" / "delayOffset.json").read_bytes()

    server = servers.start(second, store, "1s 1s")
    async with connected(server) as broker:
        records = await pull(broker, 2)
    assert [record.body for record in records] == [b"before", b"after"]
    assert saved == b'{\n\t"offsetTable":{1:1\n\t}\n}'
