"""A TCP proxy that damages what passes through it: at exact positions, or by a seed.

    with Proxy(master.ha_address, first(to_client=[Corrupt(700), Cut(9_000)])) as proxy:
        ...                                        # the replica gets haMasterAddress=proxy.address
        proxy.stall(TO_CLIENT)                     # or at any moment
        proxy.resume()

A plan says which faults each connection gets, by its number from 0 on. A fault stands at a position
of a stream: the bytes that the sender sent in that direction since the connection began. What
reaches the receiver depends on these bytes alone, not on how the network divided them, so a seed
repeats its faults.

Invariants
1. A stream is what `Stream` makes of it, and `Stream` does no I/O.
2. Before a cut, everything up to its position has arrived in the receiver's kernel.
3. A proxy without faults passes on end of stream and resets, and reads no more than it can write.

`Proxy` runs a loop on its own thread; its methods may be called on any other one, and have taken
effect when they return.
"""

from __future__ import annotations

import asyncio
import fcntl
import heapq
import itertools
import random
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple, Self

_READ_SIZE: Final = 1 << 16
_CALL_SECONDS: Final = 30.0
_DRAIN_SECONDS: Final = 5.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Where bytes go: to the server that the proxy stands for, or back to its client."""

    TO_TARGET = "to the target"
    TO_CLIENT = "to the client"


TO_TARGET: Final = Direction.TO_TARGET
TO_CLIENT: Final = Direction.TO_CLIENT


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a stream once `at` bytes of it have passed."""

    at: int


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """End the connection, with RST or else with FIN."""

    reset: bool = True


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """Forward nothing in this direction until `Proxy.resume`."""


@dataclass(frozen=True, slots=True)
class Delay(Fault):
    """Forward nothing in this direction for some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Corrupt(Fault):
    """Change the byte at the position, by exclusive or."""

    mask: int = 0xFF


@dataclass(frozen=True, slots=True)
class Drop(Fault):
    """Leave out a range."""

    size: int


@dataclass(frozen=True, slots=True)
class Duplicate(Fault):
    """Send a range twice."""

    size: int


@dataclass(frozen=True, slots=True)
class Swap(Fault):
    """Send the second of two neighbouring pieces first."""

    size: int
    second_size: int


@dataclass(frozen=True, slots=True)
class Split(Fault):
    """Write a range in small pieces."""

    size: int
    piece_size: int = 1


ALL_FAULTS: Final = (Cut, Stall, Delay, Corrupt, Drop, Duplicate, Swap, Split)
#: Those after which the receiver still gets what was sent, if connections are made again.
HARMLESS_FAULTS: Final = (Cut, Delay, Split)
_Moment = Cut | Stall | Delay


@dataclass(frozen=True, slots=True)
class Script:
    """The faults of one connection."""

    to_target: Sequence[Fault] = ()
    to_client: Sequence[Fault] = ()


#: The faults of a connection, by its number.
Plan = Callable[[int], Script]


def harmless(_number: int) -> Script:
    """Forward everything."""
    return Script()


def first(*, to_target: Sequence[Fault] = (), to_client: Sequence[Fault] = ()) -> Plan:
    """Return a plan with faults of the first connection only."""
    return scripts(Script(to_target, to_client))


def scripts(*listed: Script) -> Plan:
    """Return a plan with a script for each of the first connections."""
    return lambda number: listed[number] if number < len(listed) else Script()


def seeded(
    seed: int,
    *,
    kinds: Sequence[type[Fault]] = ALL_FAULTS,
    reach: int = 64 * 1024,
    max_faults: int = 3,
    connections: int | None = None,
) -> Plan:
    """Return a plan with random faults, the same for the same seed.

    Each stream gets up to `max_faults`, each at most `reach` bytes after the one before;
    connections after the first `connections` get none.
    """

    def plan(number: int) -> Script:
        if connections is not None and number >= connections:
            return Script()
        choose = random.Random(f"{seed} {number}")
        return Script(*(random_faults(choose, kinds, reach, max_faults) for _ in Direction))

    return plan


def random_faults(
    choose: random.Random, kinds: Sequence[type[Fault]], reach: int, max_faults: int
) -> list[Fault]:
    """Return faults in the order of their positions, without overlaps."""
    faults: list[Fault] = []
    position = 0
    for _ in range(choose.randint(0, max_faults)):
        position += choose.randrange(reach)
        size = choose.choice((1, 8, 12, 100, 4_000))
        kind = choose.choice(kinds)
        if kind is Cut:
            faults.append(Cut(position, reset=choose.random() < 0.5))
        elif kind is Stall:
            faults.append(Stall(position))
        elif kind is Delay:
            faults.append(Delay(position, choose.random() / 10))
        elif kind is Corrupt:
            faults.append(Corrupt(position, choose.randint(1, 255)))
        elif kind is Swap:
            faults.append(Swap(position, size, second := choose.choice((1, 8, 100))))
            position += second
        elif kind is Split:
            faults.append(Split(position, size, choose.choice((1, 3, 7))))
        else:
            faults.append((Drop if kind is Drop else Duplicate)(position, size))
        position += size
    return faults


class Stream:
    """One direction of a connection, without I/O: takes bytes, says what to do."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        #: Bytes taken.
        self.position = 0
        #: Faults that have begun.
        self.begun: list[Fault] = []
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Fault]] = []
        self._active: Fault | None = None
        self._held = bytearray()
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """Plan a fault; one whose position has passed happens at once, after an active one."""
        heapq.heappush(self._waiting, (fault.at, next(self._numbers), fault))

    def feed(self, data: bytes) -> Iterator[bytes | _Moment]:
        """Take bytes; yield pieces to write and moments to wait or to end, in order.

        After a Cut nothing follows. Without data, yield what is due at the present position.
        """
        left = memoryview(data)
        while True:
            if self._active is None:
                self._begin_next()
            fault = self._active
            if isinstance(fault, Cut | Stall | Delay):
                self._active = None
                yield fault
                if isinstance(fault, Cut):
                    return
            elif not left:
                return
            elif fault is None:
                taken = self._take(left, self._next_position() - self.position)
                left = left[len(taken) :]
                yield taken
            else:
                wanted = _size(fault) - len(self._held)
                taken = self._take(left, wanted)
                left = left[len(taken) :]
                self._held += taken
                if len(taken) == wanted:
                    whole = bytes(self._held)
                    self._held.clear()
                    self._active = None
                    yield from _changed(fault, whole)

    def finish(self) -> bytes:
        """Return bytes that were held back for a fault that never got all of its own."""
        held = bytes(self._held)
        self._held.clear()
        return b"" if isinstance(self._active, Drop) else held

    def _begin_next(self) -> None:
        if self._waiting and self._waiting[0][0] <= self.position:
            self._active = heapq.heappop(self._waiting)[2]
            self.begun.append(self._active)

    def _next_position(self) -> int:
        return self._waiting[0][0] if self._waiting else 1 << 62

    def _take(self, left: memoryview, size: int) -> bytes:
        taken = bytes(left[:size])
        self.position += len(taken)
        return taken


def _size(fault: Fault) -> int:
    """Return how many bytes a fault concerns."""
    match fault:
        case Swap(_, size, second_size):
            return size + second_size
        case Drop(_, size) | Duplicate(_, size) | Split(_, size):
            return size
        case _:
            return 1


def _changed(fault: Fault, data: bytes) -> Iterator[bytes]:
    match fault:
        case Corrupt(_, mask):
            yield bytes([data[0] ^ mask])
        case Duplicate():
            yield data + data
        case Swap(_, size, _):
            yield data[size:] + data[:size]
        case Split(_, _, piece_size):
            for at in range(0, len(data), piece_size):
                yield data[at : at + piece_size]
        case Drop():
            pass


class Happened(NamedTuple):
    """A fault that has begun."""

    connection: int
    direction: Direction
    fault: Fault


class Proxy:
    """Forwards connections to `target` ("host:port"), each with the faults of the plan.

    `target` and `plan` may be changed; what counts is their value when a connection begins.
    """

    def __init__(self, target: str, plan: Plan = harmless) -> None:
        self.target = target
        self.plan = plan
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._is_refusing = False
        self._stalled = set[Direction]()
        self._connections: list[_Connection] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections and the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    @property
    def connections(self) -> int:
        """How many connections there were, without refused ones."""
        return len(self._connections)

    @property
    def live(self) -> int:
        """How many there are now."""
        return sum(connection.is_live for connection in self._connections)

    def received(self, direction: Direction) -> int:
        """Return how many bytes came in for a direction, on all connections."""
        return sum(each.pumps[direction].stream.position for each in self._connections)

    def sent(self, direction: Direction) -> int:
        """Return how many bytes were passed on."""
        return sum(each.pumps[direction].sent for each in self._connections)

    def happened(self) -> list[Happened]:
        """Return the faults that have begun, by connection and direction."""
        return [
            Happened(connection.number, direction, fault)
            for connection in list(self._connections)
            for direction, pump in connection.pumps.items()
            for fault in list(pump.stream.begun)
        ]

    def stall(self, *directions: Direction) -> None:
        """Forward nothing in these directions, or in both, also on new connections."""

        async def stall() -> None:
            self._stalled.update(directions or Direction)
            self._let_flow()

        self._call(stall())

    def resume(self, *directions: Direction) -> None:
        """End stalls in these directions, or in both."""

        async def resume() -> None:
            self._stalled.difference_update(directions or Direction)
            self._let_flow(*(directions or Direction))

        self._call(resume())

    def cut(self, *, reset: bool = True) -> None:
        """End all connections now."""

        async def cut() -> None:
            live = [each for each in self._connections if each.is_live]
            await asyncio.gather(*(each.cut(reset=reset) for each in live))

        self._call(cut())

    def inject(self, direction: Direction, fault: Fault) -> None:
        """Add a fault to all live connections; its `at` counts from their present position.

        At the earliest it takes effect with the next bytes.
        """

        async def inject() -> None:
            for connection in self._connections:
                if connection.is_live:
                    stream = connection.pumps[direction].stream
                    stream.add(replace(fault, at=stream.position + fault.at))

        self._call(inject())

    def refuse(self, is_refusing: bool = True) -> None:
        """Reset all connections and new ones at once, as without a network; False ends that."""

        async def refuse() -> None:
            self._is_refusing = is_refusing

        self._call(refuse())
        if is_refusing:
            self.cut()

    def _let_flow(self, *directions: Direction) -> None:
        for connection in self._connections:
            for direction, pump in connection.pumps.items():
                if direction in self._stalled:
                    pump.flowing.clear()
                elif direction in directions:
                    pump.flowing.set()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        tasks = [accepting, *(each.task for each in self._connections if each.task is not None)]
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._listener.close()
        self._loop.close()

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            if self._is_refusing:
                _close(client, reset=True)
                continue
            number = len(self._connections)
            connection = _Connection(number, client, self.target, self.plan(number))
            self._connections.append(connection)
            self._let_flow()
            connection.task = self._loop.create_task(connection.serve())


@dataclass(slots=True)
class _Pump:
    """One direction of a connection."""

    stream: Stream
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0

    def __post_init__(self) -> None:
        self.flowing.set()

    async def run(self, source: socket.socket, sink: socket.socket) -> Cut | None:
        """Forward until the end of the stream, or return the cut that ends the connection."""
        loop = asyncio.get_running_loop()
        data: bytes | None = b""  # what is due at position 0 comes before the first byte
        while data is not None:
            for action in self.stream.feed(data):
                await self.flowing.wait()
                match action:
                    case bytes():
                        await loop.sock_sendall(sink, action)
                        self.sent += len(action)
                    case Delay(_, seconds):
                        await asyncio.sleep(seconds)
                    case Stall():
                        self.flowing.clear()
                    case Cut():
                        await _wait_until_arrived(sink)
                        return action
            await self.flowing.wait()
            data = await loop.sock_recv(source, _READ_SIZE) or None
        await self.flowing.wait()
        if rest := self.stream.finish():
            await loop.sock_sendall(sink, rest)
            self.sent += len(rest)
        sink.shutdown(socket.SHUT_WR)
        return None


class _Connection:
    """A client's connection and the one to the target."""

    def __init__(self, number: int, client: socket.socket, target: str, script: Script) -> None:
        self.number = number
        self.is_live = True
        self.pumps = {
            TO_TARGET: _Pump(Stream(script.to_target)),
            TO_CLIENT: _Pump(Stream(script.to_client)),
        }
        self.task: asyncio.Task[None] | None = None
        self._client = client
        self._server = socket.socket()
        self._server.setblocking(False)
        self._target = target
        self._ended = asyncio.Event()
        self._cut: asyncio.Future[Cut] = asyncio.get_running_loop().create_future()

    async def cut(self, *, reset: bool) -> None:
        """End the connection; return when RST or FIN was sent."""
        if not self._cut.done():
            self._cut.set_result(Cut(0, reset))
        await self._ended.wait()

    async def serve(self) -> None:
        """Forward both directions until both end, or one is cut or fails."""
        reset = True
        try:
            if await self._connect():
                reset = await self._forward()
        finally:
            for each in (self._client, self._server):
                _close(each, reset=reset)
            self._end()

    def _end(self) -> None:
        self.is_live = False
        self._ended.set()

    async def _connect(self) -> bool:
        for each in (self._client, self._server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, _, port = self._target.rpartition(":")
        try:
            await asyncio.get_running_loop().sock_connect(self._server, (host, int(port)))
        except OSError:
            return False
        return True

    async def _forward(self) -> bool:
        """Return whether the connection ends with a reset."""
        ends = {TO_TARGET: (self._client, self._server), TO_CLIENT: (self._server, self._client)}
        pumps: set[asyncio.Future[Cut | None]] = {
            asyncio.ensure_future(pump.run(*ends[direction]))
            for direction, pump in self.pumps.items()
        }
        left: set[asyncio.Future[Any]] = {*pumps, self._cut}
        try:
            while left & pumps:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    if each.exception() is not None:  # a reset, or it cannot be written to
                        return True
                    if (end := each.result()) is not None:
                        for pump in pumps:
                            pump.cancel()
                        await asyncio.wait(pumps)
                        if not end.reset:
                            await self._say_farewell()
                        return bool(end.reset)
            return False
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _say_farewell(self) -> None:
        """Send FIN both ways and read until the peers close: unread bytes would make a RST."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                for each in (self._client, self._server):
                    each.shutdown(socket.SHUT_WR)
                self._end()
                for each in (self._client, self._server):
                    while await asyncio.get_running_loop().sock_recv(each, _READ_SIZE):
                        pass


async def _wait_until_arrived(sink: socket.socket) -> None:
    """Wait until the other end's kernel has acknowledged everything that was written."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while time.monotonic() < deadline:
        (unsent,) = struct.unpack("i", fcntl.ioctl(sink, termios.TIOCOUTQ, bytes(4)))
        if not unsent:
            return
        await asyncio.sleep(0.001)


def _close(connection: socket.socket, *, reset: bool) -> None:
    if reset:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    connection.close()
