"""Limits on what the peers of a server may take together: connections, and bytes it must hold.

One `PeerLimits` belongs to all ports of a process that share its memory and descriptors, such as
a broker's main and fast port. A limit of 0 is no limit.

Invariants
1. A connection above a limit is refused before a byte of it is read.
2. `received` covers frames that are not whole yet and whole frames that wait their turn,
   `unsent` the answers that peers do not read. When a sum passes its limit, connections are
   closed until it is an eighth below: first the one with the most bytes times seconds, so a
   large frame that is on its way now outlives one that was left lying.
3. Bodies of requests in progress cannot be dropped. While they pass the limit (`is_overworked`),
   a connection with a request in progress is not read from.

A connection whose chunks hold whole frames only, and which reads its answers, costs nothing here.
Everything runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from pyromq.base.log_lines import RARELY
from pyromq.base.settings import setting
from pyromq.remoting.socket_options import SocketConfig, SocketOptions

logger = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
MAX_RECEIVED: Final = 256 * MIB
MAX_UNSENT: Final = 512 * MIB
#: A frame must be whole after this time...
FRAME_SECONDS: Final = 60.0
#: ...and the time that its bytes take at this rate.
MIN_BYTES_PER_SECOND: Final = 64 * 1024
#: One address never gets more than this share of all connections: others must get in, too.
_ADDRESS_SHARE: Final = 0.9
#: Closing goes on until a sum is this share of its limit: once for many, as it sorts them all.
_RELIEVED_SHARE: Final = 0.875
#: Descriptors that a server without a store needs beside its connections.
DESCRIPTORS_OF_A_SERVER: Final = 64
#: What accepting a connection fails with when the process has too many open files already.
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


class Holder(Protocol):
    """A connection, as a budget knows it."""

    @property
    def unsent(self) -> int:
        """How many bytes wait until the peer reads."""

    def give_up(self, setting: str, reason: str) -> None:
        """Close at once, as a limit is reached, and hold nothing any more."""


@dataclass(slots=True)
class Holding:
    """Bytes that one connection makes the server hold."""

    size: int
    since: float

    def weight(self, now: float) -> float:
        """How much this holding is to blame: bytes times seconds."""
        return self.size * (now - self.since + 0.001)


class Budget:
    """Bytes that are held for connections, with a limit on their sum."""

    def __init__(
        self,
        what: str,
        limit: int,
        setting: str,
        measure: Callable[[Holder], int] | None = None,
    ) -> None:
        """`what` and `setting` name the bytes and their limit to the log's readers.

        `measure` returns a connection's bytes as they are now, where they shrink unnoticed.
        """
        self.limit = limit
        self.total = 0
        self._what = what
        self._setting = setting
        self._measure = measure
        self._held: dict[Holder, Holding] = {}

    def hold(self, holder: Holder, size: int, now: float, *, restart: bool = False) -> None:
        """Note that `size` bytes are held for a connection; `restart` its clock."""
        holding = self._held.get(holder)
        if holding is None:
            if not size:
                return
            holding = self._held[holder] = Holding(0, now)
        elif not size:
            del self._held[holder]
        elif restart:
            holding.since = now
        grown = size - holding.size
        holding.size = size
        self.total += grown
        if grown > 0 and self.limit and self.total > self.limit:
            self._relieve(now)

    def __iter__(self) -> Iterator[tuple[Holder, Holding]]:
        return iter(list(self._held.items()))

    def _relieve(self, now: float) -> None:
        if self._measure is not None:
            for holder in list(self._held):
                self.hold(holder, min(self._measure(holder), self._held[holder].size), now)
            if self.total <= self.limit:
                return
        by_weight = sorted(self._held.items(), key=lambda item: item[1].weight(now), reverse=True)
        for holder, holding in by_weight:
            if self.total <= self.limit * _RELIEVED_SHARE:
                return
            holder.give_up(
                self._setting,
                f"has held {holding.size} bytes of {self._what} for {now - holding.since:.1f} s; "
                f"all connections hold {self.total}, limit {self.limit}",
            )


class Refusal(NamedTuple):
    """Why a connection is refused: a setting, and what has reached it."""

    setting: str
    reason: str


class PeerConfig(SocketConfig, Protocol):
    """A server's configuration, as far as it is made of `PeerSettings`."""

    @property
    def max_connections(self) -> int:
        """Connections in total."""

    @property
    def max_connections_per_address(self) -> int:
        """Connections from one address."""

    @property
    def max_received_bytes(self) -> int:
        """Bytes of unfinished requests."""

    @property
    def max_unsent_bytes(self) -> int:
        """Bytes of unread answers."""

    @property
    def max_frame_seconds(self) -> int:
        """Seconds for a request to arrive."""


class PeerLimits:
    """What all connections of a process may take."""

    def __init__(
        self,
        *,
        max_connections: int = 0,
        max_connections_per_address: int = 0,
        max_received: int = MAX_RECEIVED,
        max_unsent: int = MAX_UNSENT,
        frame_seconds: float = FRAME_SECONDS,
        sockets: SocketOptions | None = None,
    ) -> None:
        self.max_connections = max_connections
        self.max_per_address = max_connections_per_address
        if max_connections:
            share = max(1, int(max_connections * _ADDRESS_SHARE))
            self.max_per_address = min(self.max_per_address or share, share)
        self.received = Budget("unfinished requests", max_received, "maxReceivedBytes")
        self.unsent = Budget(
            "unread answers", max_unsent, "maxUnsentBytes", lambda holder: holder.unsent
        )
        self.frame_seconds = frame_seconds
        self.sockets = sockets or SocketOptions()
        self.connections = 0
        #: Bytes of the bodies of requests in progress.
        self.in_progress = 0
        self._by_address: dict[str, int] = {}

    @classmethod
    def of(cls, config: PeerConfig, reserved: int = DESCRIPTORS_OF_A_SERVER) -> PeerLimits:
        """Return the limits that a server's settings ask for; see `possible_connections`."""
        return cls(
            max_connections=possible_connections(config.max_connections, reserved),
            max_connections_per_address=config.max_connections_per_address,
            max_received=config.max_received_bytes,
            max_unsent=config.max_unsent_bytes,
            frame_seconds=config.max_frame_seconds,
            sockets=SocketOptions.of(config),
        )

    def admit(self, address: str) -> Refusal | None:
        """Count a connection from `address`, or return why it is refused."""
        if self.max_connections and self.connections >= self.max_connections:
            return Refusal(
                "maxConnections", f"{self.connections} connections, limit {self.max_connections}"
            )
        count = self._by_address.get(address, 0)
        if self.max_per_address and count >= self.max_per_address:
            return Refusal(
                "maxConnectionsPerAddress",
                f"{count} connections from this address, limit {self.max_per_address}",
            )
        self._by_address[address] = count + 1
        self.connections += 1
        return None

    def leave(self, address: str) -> None:
        """Forget a connection that was admitted."""
        self.connections -= 1
        left = self._by_address[address] - 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]

    @property
    def is_overworked(self) -> bool:
        """Whether the requests in progress are too large, together, to take more."""
        return 0 < self.received.limit < self.in_progress

    def is_too_slow(self, holding: Holding, now: float) -> bool:
        """Whether an unfinished frame has had its time."""
        if not self.frame_seconds:
            return False
        return now - holding.since > self.frame_seconds + holding.size / MIN_BYTES_PER_SECOND


class PeerSettings:
    """The settings of these limits, as fields of a server's configuration."""

    def __init__(self, received: int, unsent: int) -> None:
        """`received` and `unsent` are the defaults of the byte limits."""
        refused = "A connection above it is closed as soon as it is accepted."
        self.max_connections = setting(
            "maxConnections",
            20_000,
            "Connections to all ports together; 0 for no limit. Never more than the process's "
            "limit of open files allows beside the files of the server.",
            minimum=0,
            limit=refused,
        )
        self.max_connections_per_address = setting(
            "maxConnectionsPerAddress",
            10_000,
            "Connections from one address; 0 for no limit. Never more than nine tenths of all "
            "connections.",
            minimum=0,
            limit=refused,
        )
        self.max_received_bytes = setting(
            "maxReceivedBytes",
            received,
            "Bytes of requests that are not whole yet or wait for their turn, on all connections "
            "together; 0 for no limit. Requests in progress may take as much again.",
            bits=64,
            minimum=0,
            limit="Connections are closed, those that hold the most for the longest time first; "
            "while requests in progress are above it, their connections are not read from.",
        )
        self.max_unsent_bytes = setting(
            "maxUnsentBytes",
            unsent,
            "Bytes of answers that peers have not read, on all connections together; 0 for no "
            "limit.",
            bits=64,
            minimum=0,
            limit="Connections are closed, those that leave the most unread for the longest time "
            "first.",
        )
        self.max_frame_seconds = setting(
            "maxFrameSeconds",
            60,
            "Seconds for a request to arrive from its first byte to its last, beside the time "
            "that it takes at 64 KiB a second; 0 for no limit.",
            minimum=0,
            limit="The connection is closed.",
        )


def possible_connections(wanted: int, reserved: int = DESCRIPTORS_OF_A_SERVER) -> int:
    """Return how many connections the process's descriptors allow, at most `wanted` (0: any).

    `reserved` descriptors are left to files.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return wanted
    possible = max(1, descriptors - reserved)
    return min(wanted, possible) if wanted else possible


def report_accept_faults(loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop say in one line that it has no descriptor for a new connection.

    asyncio's own loop tries again every second and logs a traceback for each connection that
    waits. uvloop accepts such connections with a spare descriptor and closes them.
    """
    before = loop.get_exception_handler()
    if not isinstance(before, _AcceptFaults):
        loop.set_exception_handler(_AcceptFaults(before))


class _AcceptFaults:
    """A loop's exception handler that leaves everything else to the one before it."""

    def __init__(self, before: _ExceptionHandler | None) -> None:
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR and "socket" in context:
            logger.error(
                "cannot accept a connection, trying again: %s; close connections or raise the "
                "limit of open files (ulimit -n)",
                error,
                extra=RARELY,
            )
        elif self._before is None:
            loop.default_exception_handler(context)
        else:
            self._before(loop, context)
