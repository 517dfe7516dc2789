"""A master, as its peers on the replication port see it: Java's replicas, pyromq's, and others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from pyromq.replication import wire
from pyromq.replication.feeder import FeederState
from pyromq.replication.master import MAX_CONNECTIONS
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.replication_settings import BrokerRole
from tests.support.loops import on_both_loops
from tests.support.patience import until
from tests.support.replication import MasterSide
from tests.support.stores import SEGMENT, put


class Peer:
    """A raw connection to the replication port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, master: MasterSide) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", master.port))

    def report(self, offset: int) -> None:
        self.writer.write(struct.pack(">q", offset))

    async def frame(self) -> tuple[int, bytes]:
        offset, size = struct.unpack(">qi", await self.reader.readexactly(12))
        return offset, await self.reader.readexactly(size)

    async def data(self, size: int) -> bytes:
        """The bodies of the next frames, `size` bytes in all; they follow each other."""
        found, expected = b"", None
        while len(found) < size:
            offset, body = await self.frame()
            assert expected in (None, offset)
            expected = offset + len(body)
            found += body
        return found

    async def control(self) -> dict[str, Any]:
        offset, size, _ = struct.unpack(">qiI", await self.reader.readexactly(16))
        assert offset == -1
        return wire.decode_json(await self.reader.readexactly(size))

    async def ask(self, **question: object) -> dict[str, Any]:
        self.writer.write(wire.encode_question(question))
        return await self.control()

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.close()
        return True

    def close(self) -> None:
        self.writer.close()


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[MasterSide]:
    side = MasterSide(tmp_path / "master", BrokerRole.SYNC_MASTER, slave_timeout=60_000)
    await side.start()
    fill(side, 150)
    yield side
    await side.stop()


def fill(master: MasterSide, count: int) -> None:
    for number in range(count):
        put(master.store, bytes([number % 256]) * 1000, queue_id=number % 4)
    master.store.seal()


def end_of(master: MasterSide) -> int:
    return master.store.max_physical_offset


def log_from(master: MasterSide, start: int) -> bytes:
    parts = []
    while start < end_of(master):
        parts.append(bytes(master.store.replication.source.slice(start, SEGMENT)))
        start += len(parts[-1])
    return b"".join(parts)


async def test_a_java_replica_without_a_log_gets_the_newest_segment(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    peer.report(0)
    start = end_of(master) - end_of(master) % SEGMENT
    offset, body = await peer.frame()
    assert offset == start
    assert len(body) <= master.store.config.ha_transfer_batch_size
    rest = await peer.data(end_of(master) - start - len(body))
    assert body + rest == log_from(master, start)
    peer.close()


async def test_a_java_replica_continues_where_it_was(master: MasterSide) -> None:
    first = int.from_bytes(log_from(master, 0)[:4], "big")
    peer = await Peer.connect(master)
    peer.report(first)
    assert await peer.data(end_of(master) - first) == log_from(master, first)
    # Frames never cross a segment.
    fill(master, 3)
    offset, _ = await peer.frame()
    assert offset == end_of(master) - 3 * first or offset % SEGMENT == 0
    peer.close()


async def test_a_report_acknowledges(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    peer.report(end_of(master))
    await until(lambda: len(master.master.status()) == 1)
    put(master.store, b"one more")
    waiting = master.store.end_chunk()
    assert waiting is not None
    await peer.data(1)
    # The first report of a peer whose log nobody compared acknowledges nothing by itself.
    assert master.store.replication.replicated_offset == 0
    peer.report(end_of(master))
    assert await waiting is AckOutcome.STORED
    assert master.store.replication.replicated_offset == end_of(master)
    peer.close()


async def test_a_report_inside_a_record_does_not_count(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    before = end_of(master)
    peer.report(before)
    await until(lambda: len(master.master.status()) == 1)
    put(master.store, bytes(1000))
    waiting = master.store.end_chunk()
    assert waiting is not None
    await peer.data(1000)
    peer.report(end_of(master) - 1)
    peer.report(end_of(master) - 1)
    await until(lambda: master.master.status()[0].address != "")
    status = master.master.status()[0]
    assert (status.acked, waiting.done()) == (before, False)
    peer.report(end_of(master))
    assert await waiting is AckOutcome.STORED
    peer.close()


@pytest.mark.parametrize("beyond", [1, 1000, 1 << 40])
async def test_a_longer_log_is_refused_and_acknowledges_nothing(
    master: MasterSide, beyond: int, caplog: pytest.LogCaptureFixture
) -> None:
    peer = await Peer.connect(master)
    peer.report(end_of(master) + beyond)
    assert await peer.is_closed()
    assert master.store.replication.replicated_offset == 0
    put(master.store, b"one more")
    waiting = master.store.end_chunk()
    assert waiting is not None
    assert await waiting is AckOutcome.NO_REPLICA
    lines = [line for line in caplog.messages if "not a replica of this log" in line]
    assert len(lines) == 1


async def test_a_peer_that_reports_what_it_was_not_sent_is_closed(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    peer.report(end_of(master))
    await until(lambda: len(master.master.status()) == 1)
    peer.report(end_of(master) + 10)
    assert await peer.is_closed()
    assert master.store.replication.replicated_offset == 0


async def test_a_report_that_goes_back_closes_the_connection(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    peer.report(end_of(master))
    await until(lambda: len(master.master.status()) == 1)
    peer.report(0)
    assert await peer.is_closed()


@pytest.mark.parametrize("offset", [1, 500, SEGMENT - 3, -2, -(1 << 63)])
async def test_a_request_that_is_not_a_record_is_refused(master: MasterSide, offset: int) -> None:
    peer = await Peer.connect(master)
    peer.report(offset)
    assert await peer.is_closed()


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\x64\0\0\0\x50{}",
        b"\xff" * 8 + b"\xff" * 64,
        b"\xff" * 8 + b"\0\0\0\x02\0\0\0\0[]",
        b"\xff" * 8 + wire.encode_question({"unknown": 1}),
        b"\xff" * 8 + wire.encode_question({"follow": "7", "start": 0, "crc": 0}),
        b"\xff" * 8 + wire.encode_question({"checksums": [[0, 1 << 40]]}),
        b"\xff" * 8 + wire.encode_question({"checksums": [[5, 0]]}),
        b"\xff" * 8 + wire.encode_question({"checksums": [[0, 1]] * 1000}),
    ],
)
async def test_anything_else_is_closed_with_one_line(
    master: MasterSide, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    peer = await Peer.connect(master)
    peer.writer.write(junk)
    assert await peer.is_closed()
    await until(lambda: not master.master._feeders)
    assert len(caplog.messages) == 1
    assert "closed" in caplog.messages[0]


async def test_silence_is_closed(tmp_path: Path) -> None:
    side = MasterSide(
        tmp_path / "other", ha_housekeeping_interval=50, ha_send_heartbeat_interval=10
    )
    await side.start()
    peer = await Peer.connect(side)
    assert await peer.is_closed()
    await side.stop()


async def test_heartbeats_name_the_next_offset(tmp_path: Path) -> None:
    side = MasterSide(tmp_path / "other", ha_send_heartbeat_interval=10)
    await side.start()
    fill(side, 1)
    peer = await Peer.connect(side)
    peer.report(end_of(side))
    for _ in range(3):
        assert await peer.frame() == (end_of(side), b"")
    peer.close()
    await side.stop()


async def test_other_addresses_are_refused(tmp_path: Path) -> None:
    side = MasterSide(tmp_path / "other", ha_allowed_replicas="10.0.0.7, 192.168.0.0/16")
    await side.start()
    peer = await Peer.connect(side)
    assert await peer.is_closed()
    await side.stop()


async def test_idle_connections_make_room(master: MasterSide) -> None:
    fed = await Peer.connect(master)
    fed.report(end_of(master))
    await until(lambda: len(master.master.status()) == 1)
    idle = [await Peer.connect(master) for _ in range(MAX_CONNECTIONS + 5)]
    assert await idle[0].is_closed()
    await until(lambda: len(master.master._feeders) <= MAX_CONNECTIONS)
    newest = await Peer.connect(master)
    newest.report(end_of(master))
    await until(lambda: len(master.master.status()) == 2)
    assert fed.reader.at_eof() is False
    for peer in [fed, newest, *idle]:
        peer.close()


async def test_a_pyromq_replica_gets_everything(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    peer.writer.write(wire.ENQUIRY)
    hello = await peer.control()
    assert hello == {
        "version": 1,
        "first": 0,
        "end": end_of(master),
        "segmentSize": SEGMENT,
        "brokerName": "broker-a",
    }
    source = master.store.replication.source
    answer = await peer.ask(
        checksums=[[0, 100], [100, 1 << 16], [0, 0], [end_of(master), end_of(master) + 1]]
    )
    assert answer == {
        "checksums": [source.checksum(0, 100), source.checksum(100, 1 << 16), 0, None]
    }
    assert await peer.ask(follow=0, start=0, crc=0, brokerId=7) == {"follow": 0}
    found = b""
    while len(found) < end_of(master):
        header = await peer.reader.readexactly(16)
        offset, size, _ = struct.unpack(">qiI", header)
        assert offset == len(found)
        body = await peer.reader.readexactly(size)
        assert wire.encode_checked_header(offset, body) == header
        found += body
    assert found == log_from(master, 0)
    (status,) = master.master.status()
    assert (status.kind, status.broker_id, status.acked) == ("pyromq", 7, 0)
    assert status.lag_bytes == end_of(master)
    peer.writer.write(wire.encode_checked_report(end_of(master)))
    await until(lambda: master.master.status()[0].lag_bytes == 0)
    assert master.master.status()[0].lag_millis == 0
    assert master.store.replication.replicated_offset == end_of(master)
    peer.close()


async def test_a_pyromq_replica_with_other_bytes_is_refused(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    peer.writer.write(wire.ENQUIRY)
    await peer.control()
    answer = await peer.ask(
        follow=end_of(master), start=end_of(master) - 1000, crc=1234, brokerId=1
    )
    assert "differ" in answer["error"]
    assert await peer.is_closed()
    assert master.store.replication.replicated_offset == 0


async def test_a_replica_whose_next_segment_expired_is_told(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    peer.writer.write(wire.ENQUIRY)
    await peer.control()
    master.store._log.segments.take_first()
    answer = await peer.ask(follow=0, start=0, crc=0, brokerId=1)
    assert "begins at" in answer["error"]
    assert await peer.is_closed()


async def test_a_broker_that_is_no_master_feeds_nobody(master: MasterSide) -> None:
    peer = await Peer.connect(master)
    peer.report(end_of(master))
    await until(lambda: len(master.master.status()) == 1)
    master.master.withdraw()
    assert await peer.is_closed()
    assert await (await Peer.connect(master)).is_closed()
    master.master.serve(BrokerRole.ASYNC_MASTER)
    again = await Peer.connect(master)
    again.report(end_of(master))
    await until(lambda: len(master.master.status()) == 1)
    again.close()


async def test_a_slow_replica_costs_no_memory(tmp_path: Path) -> None:
    """The log is far larger than the buffers of the sockets; nothing is read for a while."""
    side = MasterSide(tmp_path / "other", mapped_file_size_commit_log=4 << 20)
    await side.start()
    for _ in range(16):
        put(side.store, bytes(1 << 20))
    side.store.seal()
    peer = await Peer.connect(side)
    peer.writer.write(wire.ENQUIRY)
    await peer.control()
    assert await peer.ask(follow=0, start=0, crc=0, brokerId=1) == {"follow": 0}
    (feeder,) = side.master._feeders
    await until(lambda: feeder._is_paused)
    assert feeder._transport.get_write_buffer_size() < 4 << 20
    found = 0
    while found < end_of(side):
        offset, size, _ = struct.unpack(">qiI", await peer.reader.readexactly(16))
        assert offset == found
        found += len(await peer.reader.readexactly(size))
    assert feeder.state is FeederState.FEEDING
    peer.close()
    await side.stop()


async def test_a_java_replica_comes_back_after_any_frame(tmp_path: Path) -> None:
    """It has appended whole frames, and asks for what follows them."""
    side = MasterSide(tmp_path / "master", ha_transfer_batch_size=3000)
    await side.start()
    rng = random.Random(1)
    for _ in range(120):
        put(side.store, bytes(rng.choice([10, 700, 2950, 9000])))
    side.store.seal()
    first_frame = Peer(*await asyncio.open_connection("127.0.0.1", side.port))
    first_frame.report(int.from_bytes(log_from(side, 0)[:4], "big"))
    asked, body = await first_frame.frame()
    found = log_from(side, 0)[:asked] + body
    first_frame.close()
    while len(found) < end_of(side):
        peer = await Peer.connect(side)
        peer.report(len(found))
        offset, body = await peer.frame()
        assert offset == len(found)
        assert body
        found += body
        peer.close()
    assert found == log_from(side, 0)
    await side.stop()


async def test_a_record_larger_than_java_s_buffer_is_cut(tmp_path: Path) -> None:
    side = MasterSide(
        tmp_path / "master",
        mapped_file_size_commit_log=16 << 20,
        max_message_size=8 << 20,
    )
    await side.start()
    put(side.store, b"first")
    put(side.store, bytes(5 << 20))
    put(side.store, b"last")
    side.store.seal()
    peer = await Peer.connect(side)
    peer.report(0)
    sizes, found = [], b""
    while len(found) < end_of(side):
        offset, body = await peer.frame()
        assert offset == len(found)
        sizes.append(len(body))
        found += body
    assert max(sizes) == wire.MAX_PLAIN_BODY
    assert len(sizes) == 4
    assert found == log_from(side, 0)
    peer.close()
    await side.stop()


async def deaf_replica(master: MasterSide) -> Peer:
    """A replica that follows but reads nothing, with bytes for it in the master's buffer."""
    peer = await Peer.connect(master)
    peer.writer.write(wire.ENQUIRY)
    await peer.control()
    await peer.ask(follow=0, start=0, crc=0, brokerId=1)
    cast(asyncio.Transport, peer.writer.transport).pause_reading()
    (feeder,) = master.master._fed
    for _ in range(40):
        fill(master, 400)
        await asyncio.sleep(0)
    # On a machine that stalls, the master may have given up already.
    await until(lambda: feeder._transport.get_write_buffer_size() > 0 or not master.master._fed)
    return peer


@on_both_loops
async def test_a_stop_does_not_wait_for_a_replica_that_reads_nothing(tmp_path: Path) -> None:
    side = MasterSide(tmp_path / "master", mapped_file_size_commit_log=64 * SEGMENT)
    await side.start()
    peer = await deaf_replica(side)
    await side.stop()
    peer.close()


@on_both_loops
async def test_a_silent_replica_that_reads_nothing_is_forgotten(tmp_path: Path) -> None:
    """Its kernel acknowledges probes for ever: only the master can end the connection."""
    side = MasterSide(
        tmp_path / "master",
        mapped_file_size_commit_log=64 * SEGMENT,
        ha_housekeeping_interval=2000,
    )
    await side.start()
    peer = await deaf_replica(side)
    await until(lambda: not side.master.status())
    await until(lambda: not side.master._feeders)
    await side.stop()
    peer.close()
