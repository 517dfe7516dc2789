"""Hostile masters for a replica: damaged streams of frames, and hellos with absurd values.

Streams are made of a real master's log, with damage, and go straight into a link, without sockets.
Whatever comes, the replica's log stays the beginning of the real master's, its reports are ends
of records that it has, and nothing is raised. Plain frames have no checksum: there, only offsets,
the order of frames and their ends are damaged. Nobody would notice a changed property.

A case depends on its seed and number alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from pyromq.protocol.message.record import HEAD_SIZE_V4
from pyromq.replication import replica as replica_module
from pyromq.replication import wire
from pyromq.replication.link import LinkState, ReplicaLink
from pyromq.store.config import BrokerRole
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from tests.fuzz.test_live_server import anonymous_memory
from tests.support.crash import seeds
from tests.support.damage import damaged
from tests.support.examples import is_soak
from tests.support.patience import DEADLINE, until
from tests.support.replication import ReplicaSide
from tests.support.stores import SEGMENT, open_store, put

MIB: Final = 1024 * 1024
CASES: Final = 2000
HELLOS: Final = 80
MAX_GROWTH: Final = 48 * MIB
ABSURD: Final[tuple[object, ...]] = (
    *(None, True, "0", 1.5, [], {}, -1, 0, 1, SEGMENT, SEGMENT - 1, 7 * SEGMENT),
    *(2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)


class Line:
    """A transport without a socket: keeps what the replica says."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        raise AssertionError("the disk has room")


class RealMaster:
    """The log of a master, as frames."""

    def __init__(self, root: Path, seed: int, size: int = 4 * MIB) -> None:
        store = open_store(root)
        rng = random.Random(seed)
        #: Where records begin.
        self.boundaries = {0}
        while store.max_physical_offset < size:
            put(
                store,
                rng.randbytes(rng.choice([0, 10, 300, 5000, 30_000])),
                queue_id=rng.randrange(4),
                tags=rng.choice(["", "a"]),
                keys=f"key-{len(self.boundaries)}",
            )
            store.seal()
            self.boundaries.add(store.max_physical_offset)
        source, log = store.replication.source, bytearray()
        while len(log) < source.end:
            log += source.slice(len(log), SEGMENT)
        store.stop()
        self.log = bytes(log)
        self.boundaries |= set(range(0, len(self.log), SEGMENT))

    def frames(self, rng: random.Random, offset: int, *, is_checked: bool) -> Iterator[bytes]:
        """Yield a few good frames from an offset on."""
        for _ in range(rng.randint(1, 6)):
            size = rng.choice([0, 1, 8, 100, 5_000, 20_000])
            size = min(size, SEGMENT - offset % SEGMENT, len(self.log) - offset)
            body = self.log[offset : offset + size]
            if is_checked:
                yield wire.encode_checked_header(offset, body) + body
            else:
                yield wire.encode_plain_header(offset, size) + body
            offset += size


class Replica:
    """A store that believes what it gets."""

    def __init__(self, root: Path, master: RealMaster) -> None:
        self._root = root
        self._number = 0
        self._master = master
        self.store = self._next_store()

    def _next_store(self) -> MessageStore:
        self._number += 1
        root = self._root / str(self._number)
        return open_store(root, broker_role=BrokerRole.SLAVE)

    def begin_again(self) -> None:
        """Check the files and start with an empty log."""
        self.store.stop()
        assert list(check_store(self.store.config.root, self.store.config)) == []
        self.store = self._next_store()

    def follow(self, stream: bytes, pieces: random.Random, *, is_checked: bool) -> Line:
        """Let a new connection bring this stream, in pieces."""
        replication = self.store.replication
        replication.log.finish()
        if replication.log.is_empty:
            # A damaged header may have moved its beginning; a master says where that is.
            replication.log.begin_at(0)
        link = ReplicaLink(self.store.config, replication, asyncio.get_running_loop())
        line = Line()
        link.connection_made(line)  # type: ignore[arg-type] # it has what is needed
        if is_checked:
            # As after an accepted question.
            link._received_to = link._follow_from = replication.log.end
            stream = wire.encode_control({"follow": replication.log.end}) + stream
        else:
            link.follow_java()
        while stream and link.state is not LinkState.CLOSED:
            room = link.get_buffer(-1)
            assert len(room)
            size = min(len(stream), len(room), pieces.choice([1, 12, 17, 1000, 100_000]))
            if size == 1:
                size = min(len(stream), 3)
            room[:size] = stream[:size]
            link.buffer_updated(size)
            stream = stream[size:]
        link.close("the end of the case")
        return line

    def check(self, line: Line, *, is_checked: bool) -> None:
        """The log is a beginning of the master's, and what was said is true."""
        source, log = self.store.replication.source, self.store.replication.log
        master = self._master
        if log.is_empty:
            assert len(line.written) <= wire.REPORT_SIZE
            return
        assert log.boundary in master.boundaries
        assert log.boundary <= source.end <= len(master.log)
        begin = max(0, source.end - 2 * SEGMENT)
        while begin < source.end:
            piece = bytes(source.slice(begin, SEGMENT))
            assert piece == master.log[begin : begin + len(piece)]
            begin += len(piece)
        size = wire.CHECKED_REPORT_SIZE if is_checked else wire.REPORT_SIZE
        for at in range(0, len(line.written), size):
            said = bytes(line.written[at : at + size])
            (offset,) = struct.unpack_from(">q", said)
            assert offset in master.boundaries
            assert offset <= log.boundary
            if is_checked:
                assert wire.decode_checked_report(said) == offset


def plain_damage(rng: random.Random, frames: list[bytes]) -> bytes:
    """Damage what a replica can notice without checksums of frames."""
    at = rng.randrange(len(frames))
    frame = bytearray(frames[at])
    kind = rng.randrange(6)
    if kind == 0:
        offset, size = wire.PLAIN_HEADER.unpack_from(frame)
        if rng.random() < 0.5:
            offset ^= 1 << rng.randrange(63)
        else:
            size = rng.randint(-1, max(size - 1, -1))
        wire.PLAIN_HEADER.pack_into(frame, 0, offset, size)
    elif kind == 1:
        return b"".join(frames)[: rng.randrange(1 + sum(map(len, frames)))]
    elif kind == 2:
        frames.insert(at, frames[rng.randrange(len(frames))])
    elif kind == 3:
        rng.shuffle(frames)
    elif kind == 4:
        del frames[at]
    else:
        frames.insert(at, rng.randbytes(rng.choice([12, 100])))
    if kind == 0:
        frames[at] = bytes(frame)
    return b"".join(frames)


async def follow_hostile_masters(root: Path, seed: int, count: int) -> None:
    """Damage one connection after the other."""
    master = RealMaster(root / "master", seed)
    replica = Replica(root / "replicas", master)
    memory = 0
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        is_checked = number % 3 != 0
        log = replica.store.replication.log
        offset = 0 if log.is_empty else log.end
        if len(master.log) - offset < 100_000:
            replica.begin_again()
            offset = 0
        frames = list(master.frames(rng, offset, is_checked=is_checked))
        if rng.random() < 0.2:
            stream = b"".join(frames)
        elif is_checked:
            stream = damaged(rng, b"".join(frames))
        else:
            stream = plain_damage(rng, frames)
        try:
            line = replica.follow(stream, rng, is_checked=is_checked)
            replica.check(line, is_checked=is_checked)
        except BaseException as error:
            error.add_note(f"seed {seed}, case {number}, from {offset}, checked: {is_checked}")
            raise
        if number == count // 3:
            memory = anonymous_memory()
        if number % 100 == 0:
            await asyncio.sleep(0)
    replica.begin_again()
    replica.store.stop()
    assert anonymous_memory() < memory + MAX_GROWTH


async def test_damaged_streams_leave_the_beginning_of_the_master_s_log(tmp_path: Path) -> None:
    await follow_hostile_masters(tmp_path, seed=20_261_117, count=CASES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(10) if is_soak() else [0])
async def test_many_damaged_streams(tmp_path: Path, seed: int) -> None:
    await follow_hostile_masters(tmp_path, seed, count=10 * CASES)


# Negotiations


class HostileMaster:
    """Answers an enquiry, and every question, with whatever a test says."""

    def __init__(self, said: list[bytes]) -> None:
        self.said = said
        self.connections = 0
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            for answer in self.said:
                if not await reader.read(65536):
                    break
                writer.write(answer)
            await reader.read(65536)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()


def hostile_answers(rng: random.Random, end: int, crc: int | None) -> list[bytes]:
    """A hello and some answers with something wrong in them."""
    hello: dict[str, Any] = {
        "version": wire.VERSION,
        "first": 0,
        "end": end + rng.choice([0, 1000]),
        "segmentSize": SEGMENT,
        "brokerName": "broker-a",
    }
    answers: list[dict[str, Any]] = [
        {"checksums": [rng.choice([crc, crc, None, "x", 5])], "number": 1},
        {"follow": rng.choice([end, end, 0, None]), "number": rng.choice([1, 2, 2])},
    ]
    if rng.random() < 0.7:
        hello[rng.choice(["first", "end", "version", "segmentSize"])] = rng.choice(ABSURD)
    if rng.random() < 0.3:
        answers[rng.randrange(2)] = rng.choice(
            [{"error": "go away"}, {}, {"checksums": []}, {"checksums": 5}, {"follow": end}]
        )
    frames = [wire.encode_control(each) for each in (hello, *answers)]
    # After an accepted question: frames of nobody's log.
    body = rng.randbytes(HEAD_SIZE_V4 + 50)
    frames[-1] += wire.encode_checked_header(end, body) + body
    if rng.random() < 0.3:
        at = rng.randrange(len(frames))
        frames[at] = damaged(rng, frames[at])
    return frames


async def meet_hostile_masters(
    root: Path, seed: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Let replicas with and without a log meet masters that lie."""
    stores = {}
    for name, messages in (("empty", 0), ("filled", 20)):
        store = open_store(root / name)
        for number in range(messages):
            put(store, b"%d" % number * 100)
        store.seal()
        end = store.max_physical_offset
        stores[name] = (end, store.replication.source.checksum(0, end))
        store.stop()
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        name = rng.choice(["empty", "filled"])
        end, crc = stores[name]
        hostile = HostileMaster(hostile_answers(rng, end, crc))
        async with hostile.running():
            side = ReplicaSide(root / name, hostile.address, ha_housekeeping_interval=100)
            side.replica.start()
            await until(lambda: hostile.connections > 1 or side.stopped)  # noqa: B023
            task = side.replica._task
            assert side.stopped or (task is not None and not task.done()), (seed, number)
            log = side.store.replication.log
            assert log.is_empty if name == "empty" else log.end == end, (seed, number)
            await asyncio.wait_for(side.stop(), DEADLINE)
        assert not [each for each in caplog.records if each.exc_info], (seed, number)
        caplog.clear()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that connect again at once, and wait for nobody."""
    monkeypatch.setattr(replica_module, "_FIRST_BACKOFF", 0.001)
    monkeypatch.setattr(replica_module, "_MAX_BACKOFF", 0.001)
    monkeypatch.setattr(replica_module, "_HELLO_SECONDS", 0.03)


@pytest.mark.usefixtures("impatient")
async def test_masters_that_lie_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await meet_hostile_masters(tmp_path, 20_261_117, HELLOS, caplog)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seed", seeds(5) if is_soak() else [0])
async def test_many_masters_that_lie_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    caplog.set_level(logging.WARNING)
    await meet_hostile_masters(tmp_path, seed, 20 * HELLOS, caplog)
