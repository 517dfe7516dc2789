"""Every request code of both servers, good and damaged, while a good client works.

The servers run in a process of their own (`fuzzed_servers`), which measures its loop and its
memory; this one forges frames (`request_forge`) and sends them over some connections, each
chunk with a probe behind it. A finding names the frame: `Forge(targets, seed).frame(number)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    ChunkGatherer,
    RemotingCommand,
    split_frames,
)
from pyromq.protocol.wire.headers import GetRouteInfoRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.store.offline.check import Violation, check_store
from tests.fuzz.request_forge import Forge, Frame, target
from tests.fuzz.test_live_server import PROBE, pull, send_v2
from tests.support.crash import REPOSITORY, seeds
from tests.support.patience import DEADLINE, until

MIB: Final = 1024 * 1024
#: The second one is a bound from above, and the machine may be busy.
MAX_STALL_SECONDS: Final = {"stall": 0.2, "stall by all threads": 1.0}
#: Bytes of memory more between two measurements. They are farther and farther apart: a heap gets
#: its holes in the beginning, a leak goes on.
MAX_GROWTH: Final = 64 * MIB
MEASURED_AT: Final = (20_000, 200_000, 1_000_000)
SEED: Final = 20_261_117
CONNECTIONS: Final = 4
CHUNK_FRAMES: Final = 50
#: An opaque that no frame has.
PROBE_OPAQUE: Final = 0x7EADBEEF
#: Frames between two looks at the servers.
LOOK_FRAMES: Final = 1000

#: A line of a log: characters, and its beginning.
MAX_LINE: Final = 5000
LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ +[\w.]+ - ")

#: Python's own exceptions in an answer are a mistake of ours, whatever the peer sent.
PYTHON_ERROR: Final = re.compile(
    r"^(?:\w*\.)?(?:Key|Type|Attribute|Index|Assertion|Recursion|UnicodeDecode|UnicodeEncode"
    r"|Overflow|Memory|ZeroDivision|Buffer|OS|FileNotFound|Permission|NotImplemented|Runtime"
    r"|Lookup|Value|error|Timeout|Cancelled)\w*(?:Error)?:"
)


class Servers:
    """The process with both servers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asking = asyncio.Lock()
        self.ports: dict[str, int] = {}
        self.forge = Forge([], 0)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, root: Path, seed: int = SEED) -> AsyncIterator[Servers]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.fuzz.fuzzed_servers",
            str(root),
            cwd=REPOSITORY,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # it is in the logs
            limit=16 * MIB,
        )
        servers = cls(process)
        try:
            first = await servers._line()
            servers.ports = first["ports"]
            servers.forge = Forge([target(**code) for code in first["codes"]], seed)
            yield servers
            last = await servers.ask("stop")
            assert last["tracebacks"] == []
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def ask(self, command: str) -> dict[str, Any]:
        async with self._asking:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{command}\n".encode())
            return await self._line()

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 2 * DEADLINE)
        assert line, f"the servers' process ended: {self._process.returncode}"
        said: dict[str, Any] = json.loads(line)
        return said


class GoodClient:
    """Sends, pulls back, asks for a route and heartbeats; each must succeed, all the time."""

    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports
        self._client = RemotingClient()
        self.rounds = 0

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        working = asyncio.ensure_future(self._work())
        try:
            await self._rounds(1, working)
            yield
            await self._rounds(2, working)
        finally:
            working.cancel()
            (outcome,) = await asyncio.gather(working, return_exceptions=True)
            await self._client.close()
        assert isinstance(outcome, asyncio.CancelledError), outcome

    async def _rounds(self, count: int, working: asyncio.Future[None]) -> None:
        goal = self.rounds + count
        await until(lambda: self.rounds >= goal or working.done())
        if working.done():
            working.result()

    async def _work(self) -> None:
        subscription = SubscriptionData("Good")
        heartbeat = HeartbeatData(
            client_id="127.0.0.1@good",
            producer_data_set=[ProducerData("GoodProducer")],
            consumer_data_set=[ConsumerData("GoodGroup", subscription_data_set=[subscription])],
        )
        while True:
            body = b"good %d" % self.rounds
            await self._ask("broker", RequestCode.HEART_BEAT, {}, heartbeat.encode())
            sent = await self._ask("broker", 310, send_v2("Good").encode(), body)
            offset = int(sent.ext_fields["queueOffset"])
            pulled = await self._ask("broker", 11, pull("Good", offset).encode())
            assert [record.body for record in decode_records(pulled.body)] == [body]
            route = GetRouteInfoRequestHeader("TBW102").encode()
            await self._ask("nameserver", RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
            self.rounds += 1
            await asyncio.sleep(0.005)

    async def _ask(
        self, server: str, code: int, fields: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        answer = await self._client.request(
            f"127.0.0.1:{self._ports[server]}",
            RemotingCommand(code, ext_fields=fields, body=body),
            DEADLINE,
        )
        assert answer.code == ResponseCode.SUCCESS, f"request {code}: {answer.remark}"
        return answer


class Findings:
    """What the servers did wrong, with the frame that made them."""

    def __init__(self, forge: Forge) -> None:
        self._forge = forge
        self.found: list[str] = []
        self.stalls: list[float] = []
        self.answers: dict[int, int] = {}

    def add(self, what: str, number: int | None = None) -> None:
        if len(self.found) < 50:
            self.found.append(f"{what}{self._shown(number)}")

    def answered(self, header: dict[str, Any]) -> None:
        code, opaque = header["code"], header["opaque"]
        self.answers[code] = self.answers.get(code, 0) + 1
        remark = header.get("remark") or ""
        if code == ResponseCode.SYSTEM_ERROR and PYTHON_ERROR.match(remark):
            self.add(f"answered {remark[:200]!r}", opaque)

    def looked(self, said: dict[str, Any], first: int, last: int) -> None:
        """Take in what the servers say of themselves since some frames ago."""
        self.stalls.append(said["stall"])
        where = f"seed {self._forge.seed}, frames {first} to {last}"
        for kind, limit in MAX_STALL_SECONDS.items():
            if said[kind] > limit:
                seconds, request = said["slowest"]
                self.add(
                    f"{kind} of {said[kind]:.3f} s, {where};"
                    f" slowest request: {seconds:.3f} s, {request}"
                )
        for text in said["tracebacks"]:
            self.add(f"traceback, {where}: {text}")

    def _shown(self, number: int | None) -> str:
        if number is None:
            return ""
        frame = self._forge.frame(number)
        return (
            f": seed {self._forge.seed}, frame {number} ({frame.kind}, {frame.server}):"
            f" {frame.data[:400]!r}"
        )


class Attacker:
    """A connection to each server, over which chunks of frames go."""

    def __init__(self, ports: dict[str, int], findings: Findings) -> None:
        self._ports = ports
        self._findings = findings
        self._streams: dict[str, _Stream] = {}

    async def attack(self, frames: list[Frame]) -> None:
        for server in self._ports:
            chunk: list[Frame] = []
            for frame in frames:
                if frame.server == server:
                    chunk.append(frame)
                    if frame.may_close:
                        await self._send(server, chunk)
                        chunk = []
            await self._send(server, chunk)

    async def _send(self, server: str, chunk: list[Frame]) -> None:
        """Send frames and a probe, and read until its answer, or the end."""
        if not chunk:
            return
        if server not in self._streams:
            port = self._ports[server]
            opened = await asyncio.open_connection("127.0.0.1", port, limit=16 * MIB)
            self._streams[server] = _Stream(*opened)
        stream = self._streams[server]
        writer = stream.writer
        data = b"".join(frame.data for frame in chunk)
        is_torn = chunk[-1].is_torn
        if not is_torn:
            data += RemotingCommand(PROBE, opaque=PROBE_OPAQUE).encode()
        try:
            middle = chunk[0].number * 7919 % len(data)
            for part in (data[:middle], data[middle:]):
                writer.write(part)
                await asyncio.sleep(0)
            if is_torn:
                writer.write_eof()
            is_open = await asyncio.wait_for(self._read(stream), DEADLINE)
        except TimeoutError:
            numbers = [frame.number for frame in chunk]
            self._findings.add(f"no answer to the probe behind frames {numbers} at {server}")
            is_open = False
        except OSError:  # closed, before or after it was seen
            is_open = False
        if is_torn or not is_open:
            if not chunk[-1].may_close:
                self._findings.add("connection closed", chunk[-1].number)
            writer.transport.abort()
            del self._streams[server]

    async def _read(self, stream: _Stream) -> bool:
        """Read answers until the probe's; False when the connection ends before it."""
        while True:
            data = await stream.reader.read(MIB)
            if not data:
                return False
            buffer = stream.gatherer.add(data)
            if buffer is None:
                continue
            frames, taken, error = split_frames(buffer)
            if error is not None:
                self._findings.add(f"an answer that is no frame: {error}")
                return False
            stream.gatherer.keep(buffer, taken)
            is_done = False
            for _, header, _ in frames:
                if not header["flag"] & FLAG_RESPONSE:
                    self._reply(header, stream.writer)
                elif header["opaque"] == PROBE_OPAQUE:
                    is_done = True
                else:
                    self._findings.answered(header)
            if is_done:
                return True

    def _reply(self, header: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer what the server asks its client, with some nonsense."""
        if header["flag"] & FLAG_ONEWAY:
            return
        body = (b"", b"{}", b"[]", b"\xff", b'{"a":1}')[header["opaque"] % 5]
        answer = RemotingCommand(
            header["opaque"] % 3, opaque=header["opaque"], flag=FLAG_RESPONSE, body=body
        )
        writer.write(answer.encode())

    def close(self) -> None:
        for stream in self._streams.values():
            stream.writer.transport.abort()


class _Stream:
    """A connection, and what is read of an answer that is not whole."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.gatherer = ChunkGatherer()


@pytest.mark.parametrize(
    "count",
    [
        MEASURED_AT[0],
        pytest.param(MEASURED_AT[-1], marks=[pytest.mark.soak, pytest.mark.timeout(3 * 3600)]),
    ],
)
async def test_every_request_code(tmp_path: Path, count: int) -> None:
    (seed,) = (SEED,) if count == MEASURED_AT[0] else seeds(1)
    async with Servers.running(tmp_path, seed) as servers:
        forge = servers.forge
        # Without its classes a request ends at the first check.
        assert sum(item.header is not None for item in forge.targets) >= 45
        assert sum(item.body is not None for item in forge.targets) >= 7
        findings = Findings(forge)
        client = GoodClient(servers.ports)
        async with client.working():
            await servers.ask("look")
            memory = [(await servers.ask("memory"))["memory"]]
            for first, last in itertools.pairwise((0, *MEASURED_AT)):
                if last <= count:
                    await attack(servers, findings, range(first, last))
                    memory.append((await servers.ask("memory"))["memory"])
            await client._rounds(3, asyncio.ensure_future(asyncio.sleep(DEADLINE)))
        growth = [after - before for before, after in itertools.pairwise(memory)]
        if max(growth) > MAX_GROWTH:
            findings.add(f"memory grew, seed {seed}: {in_mib(growth)}")
        sys.stdout.write(
            f"\nseed {seed}: {count} frames, {client.rounds} good rounds, longest stall"
            f" {max(findings.stalls):.3f} s, {in_mib(growth)} more,"
            f" answers by code: {dict(sorted(findings.answers.items()))}\n"
        )
    for line in forged_lines(tmp_path / "logs"):
        findings.add(f"log line, seed {seed}: {line[:300]!r}")
    async for violation in restart(tmp_path):
        findings.add(f"store, seed {seed}: {violation}")
    assert not findings.found, "\n".join(findings.found)


def in_mib(sizes: list[int]) -> str:
    return " and ".join(f"{size / MIB:.1f} MiB" for size in sizes)


async def attack(servers: Servers, findings: Findings, numbers: range) -> None:
    """Send these frames over some connections, with a look at the servers now and then."""
    chunks = iter(range(numbers.start, numbers.stop, CHUNK_FRAMES))
    looked = numbers.start

    async def worker() -> None:
        nonlocal looked
        attacker = Attacker(servers.ports, findings)
        try:
            for first in chunks:
                last = min(first + CHUNK_FRAMES, numbers.stop)
                await attacker.attack([servers.forge.frame(n) for n in range(first, last)])
                if last - looked >= LOOK_FRAMES:
                    begin, looked = looked, last
                    findings.looked(await servers.ask("look"), begin, last)
        finally:
            attacker.close()

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    findings.looked(await servers.ask("look"), looked, numbers.stop)


def forged_lines(directory: Path) -> Iterator[str]:
    """Lines of the servers' logs that are too long, or not theirs; one of each kind."""
    seen = set()
    for path in sorted(directory.iterdir()):
        for line in path.read_text(errors="replace").split("\n"):
            is_whole = LOG_LINE.match(line) is not None and len(line) <= MAX_LINE
            if line and not (is_whole and line.isprintable()) and line[24:60] not in seen:
                seen.add(line[24:60])
                yield line


async def restart(root: Path) -> AsyncIterator[Violation]:
    """Serve again on what the attack left; everything that is wrong with it, before and after."""
    for violation in check_store(root / "store"):
        yield violation
    async with Servers.running(root) as servers, GoodClient(servers.ports).working():
        pass
    for violation in check_store(root / "store"):
        yield violation
