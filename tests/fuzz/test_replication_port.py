"""Hostile bytes on the replication port of a live SYNC_MASTER, while a good client sends.

Conversations are valid ones of both formats, with something wrong in each: values, bytes, order,
length. None of them is that of a replica which has the log, so no message may be acknowledged by
one. Each costs at most one log line; the broker serves sends all the time, in bounded memory.

A conversation depends on its seed and number alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from pyromq.broker.broker import Broker
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.replication import wire
from pyromq.store.config import BrokerRole
from pyromq.store.offline.check import check_store
from tests.fuzz.test_live_server import anonymous_memory, lines_about, send_v2
from tests.support.brokers import local_broker, small_store
from tests.support.crash import seeds
from tests.support.damage import damaged
from tests.support.examples import is_soak
from tests.support.loops import on_uvloop_often
from tests.support.patience import DEADLINE, until

MIB: Final = 1024 * 1024
CASES: Final = 3000
AT_ONCE: Final = 16
#: What is in the log before anybody connects.
MESSAGES: Final = 60
MAX_GROWTH: Final = 48 * MIB
#: What may be told to a producer if no replica has its message.
ALONE: Final = (ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)
NUMBERS: Final = (0, 1, -1, -2, 7, 8, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63))


class Target:
    """A broker without a replica, and a producer that must not be lied to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sent = 0
        self.broker = Broker(
            local_broker(),
            small_store(root / "store", broker_role=BrokerRole.SYNC_MASTER, slave_timeout=50),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.broker.start()
        self.client = RemotingClient()
        for _ in range(MESSAGES):
            await self.send()
        #: Ends of records, up to the last one that was sent before the attack.
        assert self.broker.store is not None
        self.replication = self.broker.store.replication
        self.source = self.replication.source
        self.end = self.source.end
        working = asyncio.ensure_future(self._work())
        try:
            yield
            before = self.sent
            await until(lambda: self.sent > before + 1 or working.done())
            assert not working.done(), working
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await self.client.close()
            await self.broker.stop()
        assert list(check_store(self.root / "store")) == []

    async def send(self) -> None:
        request = RemotingCommand(
            310, ext_fields=send_v2("Good").encode(), body=b"x" * (1 + self.sent % 3000)
        )
        answer = await self.client.request(f"127.0.0.1:{self.broker.port}", request, DEADLINE)
        assert answer.code in ALONE, answer
        assert int(answer.ext_fields["queueOffset"]) == self.sent
        self.sent += 1

    async def _work(self) -> None:
        while True:
            await self.send()

    def feeders(self) -> int:
        """Return how many connections the master holds."""
        assert self.broker.replication is not None
        return len(self.broker.replication._master._feeders)


class Conversations:
    """Makes what hostile peers say."""

    def __init__(self, target: Target, seed: int) -> None:
        self._source = target.source
        self._end = target.end
        self._seed = seed

    def make(self, number: int) -> tuple[list[bytes], bool]:
        """Return what is said, in pieces, and whether the peer waits for an answer after each."""
        rng = random.Random(f"{self._seed} {number}")
        kind = number % 5
        if kind == 0:
            pieces = [rng.randbytes(rng.choice([1, 7, 8, 9, 100, 5000]))]
        elif kind == 1:
            pieces = self._java(rng)
        elif kind == 2:
            pieces = [damaged(rng, b"".join(self._questions(rng)))]
        elif kind == 3:
            pieces = self._questions(rng)
            pieces[rng.randrange(len(pieces))] = rng.choice(JUNK)
        else:
            pieces = self._follow(rng)
        return pieces, rng.random() < 0.5

    def _java(self, rng: random.Random) -> list[bytes]:
        """A request anywhere, then reports that no replica would send."""
        first = rng.choice([0, self._end, self._boundary(rng), self._number(rng)])
        reports = [self._number(rng) for _ in range(rng.randrange(5))]
        pieces = [wire.encode_report(each) for each in (first, *reports)]
        if rng.random() < 0.2:
            pieces.append(rng.randbytes(rng.randrange(1, 20)))
        return pieces

    def _questions(self, rng: random.Random) -> list[bytes]:
        """Good questions."""
        ranges = [sorted(rng.sample(range(self._end), 2)) for _ in range(rng.randrange(1, 5))]
        pieces = [wire.ENQUIRY, wire.encode_question({"checksums": ranges, "number": 1})]
        follow = {"follow": 0, "start": 0, "crc": 0, "brokerId": 1, "number": 2}
        return [*pieces, wire.encode_question(follow)]

    def _follow(self, rng: random.Random) -> list[bytes]:
        """A replica of another log, or one without any, that reports what it does not have."""
        offset = rng.choice([0, self._boundary(rng), self._end, self._number(rng)])
        question = {
            "follow": offset,
            "start": rng.choice([0, max(0, offset - 1000), self._number(rng)]),
            "crc": rng.randrange(1 << 32),
            "brokerId": rng.choice([1, -5, 2**62, "x", None]),
        }
        if rng.random() < 0.4:
            question = {"follow": 0, "start": 0, "crc": 0, "brokerId": 1}
        reports = [wire.encode_checked_report(self._number(rng)) for _ in range(rng.randrange(4))]
        if reports and rng.random() < 0.5:
            # A good report, damaged: above the offset to follow from, at the end of a record.
            good = wire.encode_checked_report(self._boundary(rng))
            reports.append(bytes([*good[:11], good[11] ^ rng.randint(1, 255)]))
        return [wire.ENQUIRY, wire.encode_question(question), *reports]

    def _boundary(self, rng: random.Random) -> int:
        return self._source.boundary_below(rng.randrange(self._end))

    def _number(self, rng: random.Random) -> int:
        """Any number but the end of a record: that would be a replica's."""
        while True:
            near = self._boundary(rng) + rng.choice([-8, -1, 1, 2, 13])
            number = rng.choice([*NUMBERS, near, self._end + rng.randint(1, 10**9)])
            if number <= 0 or not self._source.is_boundary(number):
                return number


JUNK: Final = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"",
    bytes(8),
    struct.pack(">i", 0x7FFFFFFF) + bytes(100),
    struct.pack(">i", wire.MAX_QUESTION) + bytes(3 * wire.MAX_QUESTION),
    wire.encode_question({"checksums": [[0, 1 << 20]] * 64}),
    wire.encode_question({"checksums": [[0, 1 << 20]] * 65}),
    wire.encode_question({"checksums": [[5, 1]]}),
    wire.encode_question({"checksums": [["0", "1"]]}),
    wire.encode_question({"checksums": {"a": 1}}),
    wire.encode_question({"checksums": [[-(2**63), -(2**63) + 5]]}),
    wire.encode_question({"checksums": [[2**63, 2**63 + 5]]}),
    wire.encode_question({"follow": 1.5, "start": 0, "crc": 0}),
    wire.encode_question({"follow": True, "start": 0, "crc": 0}),
    wire.encode_question({"follow": 2**63, "start": 2**63, "crc": 0, "brokerId": 1}),
    wire.encode_question({"unknown\r\nname": [[[[]]]]}),
    wire.encode_question({}) * 200,
    wire.encode_question({"number": [[1]], "checksums": []}) * 50,
]


async def attack(port: int, pieces: list[bytes], waits: bool) -> str:
    """Say everything, read whatever comes until the master closes; return the own address."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    host, own_port = writer.get_extra_info("sockname")
    # uvloop raises RuntimeError for a transport that is closed already.
    with contextlib.suppress(OSError, RuntimeError):
        for piece in pieces:
            writer.write(piece)
            if waits:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await reader.read(65536)
        writer.write_eof()
        while await asyncio.wait_for(reader.read(1 << 18), DEADLINE):
            pass
    writer.transport.abort()
    return f"{host}:{own_port}"


async def attack_often(
    target: Target, caplog: pytest.LogCaptureFixture, seed: int, count: int
) -> None:
    conversations = Conversations(target, seed)
    port = target.broker.port + 1
    numbers = iter(range(count))
    memory = 0

    async def attacker() -> None:
        nonlocal memory
        for number in numbers:
            pieces, waits = conversations.make(number)
            address = await attack(port, pieces, waits)
            assert len(lines_about(caplog, address)) <= 1, (seed, number)
            assert target.replication.replicated_offset == 0, (seed, number)
            if number == count // 3:
                memory = anonymous_memory()
            if number % 500 == 0:
                assert not [each for each in caplog.records if each.exc_info], (seed, number)
                caplog.clear()

    await asyncio.gather(*(attacker() for _ in range(AT_ONCE)))
    assert not [record for record in caplog.records if record.exc_info]
    assert anonymous_memory() < memory + MAX_GROWTH
    await until(lambda: not target.feeders())


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


@on_uvloop_often
async def test_hostile_bytes_acknowledge_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target(tmp_path)
    async with target.running():
        await attack_often(target, caplog, seed=20_261_117, count=CASES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(10) if is_soak() else [0])
async def test_many_hostile_bytes_acknowledge_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    target = Target(tmp_path)
    async with target.running():
        await attack_often(target, caplog, seed, count=10 * CASES)
