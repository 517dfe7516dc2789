"""Caps on what all peers of a server take together: connections, and bytes held for them.

All ports of a process that share its memory and descriptors, such as a broker's main and fast
port, share one `PeerLimits`. A limit of 0 means no limit.

Invariants
1. A connection above a limit is closed before any of its bytes is read.
2. `received` counts incomplete frames and complete frames that wait; `unsent` counts responses that
   peers have not read. When a sum exceeds its limit, connections are closed until it is an eighth
   below, starting with the largest product of bytes and seconds: a large frame that is arriving
   now outlives one that was abandoned.
3. Bodies of requests in progress cannot be dropped. While they exceed the limit
   (`is_overworked`), connections with requests in progress are not read.

A connection whose chunks contain only complete frames, and which reads its responses, costs nothing
here. Everything runs on the loop's thread.
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
from pyromq.base.networks import Network, is_allowed
from pyromq.base.settings import setting
from pyromq.base.sizes import KIB, MIB
from pyromq.remoting.socket_options import SocketConfig, SocketOptions

logger = logging.getLogger(__name__)

MAX_RECEIVED: Final = 256 * MIB
MAX_UNSENT: Final = 512 * MIB
#: A frame must be complete after this time plus the time its bytes take at this rate.
FRAME_SECONDS: Final = 60.0
MIN_BYTES_PER_SECOND: Final = 64 * KIB
#: The most that one address gets of all connections, so that others can still connect.
_MAX_ADDRESS_SHARE: Final = 0.9
#: Closing stops when a sum is this share of its limit. Each round sorts all connections, so it
#: should free room for many.
_RELIEVED_SHARE: Final = 0.875
#: Descriptors that a server without a store needs besides its connections.
DESCRIPTORS_OF_A_SERVER: Final = 64
#: Errors of accept() when the process has too many open files.
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


class Holder(Protocol):
    """A connection, as a budget knows it."""

    @property
    def unsent(self) -> int:
        """Return how many bytes wait until the peer reads."""

    def give_up(self, setting: str, reason: str) -> None:
        """Close immediately because a limit is exceeded, and release everything."""


@dataclass(slots=True)
class Holding:
    """Bytes that one connection makes the server hold."""

    size: int
    since: float

    def weight(self, now: float) -> float:
        """Return how much this holding is to blame: bytes times seconds."""
        return self.size * (now - self.since + 0.001)


class Budget:
    """Bytes held for connections, with a limit on their sum."""

    def __init__(
        self,
        what: str,
        limit: int,
        setting: str,
        measure: Callable[[Holder], int] | None = None,
    ) -> None:
        """`what` and `setting` name the bytes and their limit in the log.

        `measure` returns a connection's current bytes if they shrink without a call of `hold`.
        """
        self.limit = limit
        self.total = 0
        self._what = what
        self._setting = setting
        self._measure = measure
        self._held: dict[Holder, Holding] = {}

    def hold(self, holder: Holder, size: int, now: float, *, restart: bool = False) -> None:
        """Record that `size` bytes are held for a connection; `restart` restarts its clock."""
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
    """Why a connection is refused: the setting, and the value that has reached it."""

    setting: str
    reason: str

    def log(self, address: str) -> None:
        """Write a line about a refused connection from `address`."""
        logger.warning(
            "connection from %s refused: %s (%s)",
            address,
            self.reason,
            self.setting,
            extra={**RARELY, "kind": self.setting},
        )


class PeerConfig(SocketConfig, Protocol):
    """The part of a server's configuration that `PeerSettings` declares."""

    @property
    def max_connections(self) -> int:
        """Return the limit on connections."""

    @property
    def max_connections_per_address(self) -> int:
        """Return the limit on connections from one address."""

    @property
    def max_received_bytes(self) -> int:
        """Return the limit on bytes of unfinished requests."""

    @property
    def max_unsent_bytes(self) -> int:
        """Return the limit on bytes of unread responses."""

    @property
    def max_frame_seconds(self) -> int:
        """Return the seconds in which a request must arrive."""


class PeerLimits:
    """The limits of all connections of a process."""

    def __init__(
        self,
        *,
        max_connections: int = 0,
        max_connections_per_address: int = 0,
        max_received: int = MAX_RECEIVED,
        max_unsent: int = MAX_UNSENT,
        frame_seconds: float = FRAME_SECONDS,
        sockets: SocketOptions | None = None,
        allowed: tuple[str, tuple[Network, ...]] = ("", ()),
    ) -> None:
        """`allowed` is a setting, and the networks in it that peers must come from."""
        self._allowed = allowed
        self.max_connections = max_connections
        self.max_per_address = max_connections_per_address
        if max_connections:
            share = max(1, int(max_connections * _MAX_ADDRESS_SHARE))
            self.max_per_address = min(self.max_per_address or share, share)
        self.received = Budget("unfinished requests", max_received, "maxReceivedBytes")
        self.unsent = Budget(
            "unread responses", max_unsent, "maxUnsentBytes", lambda holder: holder.unsent
        )
        self.frame_seconds = frame_seconds
        self.sockets = sockets or SocketOptions()
        self.connections = 0
        #: Bytes of the bodies of requests in progress.
        self.in_progress = 0
        self._by_address: dict[str, int] = {}

    @classmethod
    def of(cls, config: PeerConfig, reserved: int = DESCRIPTORS_OF_A_SERVER) -> PeerLimits:
        """Return the limits of a server's settings; see `possible_connections`."""
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
        setting, networks = self._allowed
        if networks and not is_allowed(address, networks):
            return Refusal(setting, "its address is not in the list")
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
        """Whether the requests in progress are together too large to accept more."""
        return 0 < self.received.limit < self.in_progress

    def is_too_slow(self, holding: Holding, now: float) -> bool:
        """Return whether an unfinished frame has exceeded its time."""
        if not self.frame_seconds:
            return False
        return now - holding.since > self.frame_seconds + holding.size / MIN_BYTES_PER_SECOND


class PeerSettings:
    """The settings of these limits, for a server's configuration class."""

    def __init__(self, received: int, unsent: int) -> None:
        """`received` and `unsent` are the defaults of the byte limits."""
        refused = "Further connections are closed as soon as they are accepted."
        self.max_connections = setting(
            "maxConnections",
            20_000,
            "Maximum number of connections to all ports together; 0 means no limit. The process's "
            "limit on open files, less the server's own files, is never exceeded.",
            minimum=0,
            limit=refused,
        )
        self.max_connections_per_address = setting(
            "maxConnectionsPerAddress",
            10_000,
            "Maximum number of connections from one address; 0 means no limit. One address never "
            "gets more than nine tenths of all connections.",
            minimum=0,
            limit=refused,
        )
        self.max_received_bytes = setting(
            "maxReceivedBytes",
            received,
            "Maximum bytes of requests that are incomplete or wait to be handled, on all "
            "connections together; 0 means no limit. Requests in progress may take as much again.",
            bits=64,
            minimum=0,
            limit="Connections are closed, starting with those that hold the most bytes for the "
            "longest time; while requests in progress exceed it, their connections are not read.",
        )
        self.max_unsent_bytes = setting(
            "maxUnsentBytes",
            unsent,
            "Maximum bytes of responses that peers have not read, on all connections together; 0 "
            "means no limit.",
            bits=64,
            minimum=0,
            limit="Connections are closed, starting with those that leave the most bytes unread "
            "for the longest time.",
        )
        self.max_frame_seconds = setting(
            "maxFrameSeconds",
            60,
            "Seconds in which a request must arrive, from its first byte to its last, plus the "
            "time its bytes take at 64 KiB/s; 0 means no limit.",
            minimum=0,
            limit="The connection is closed.",
        )


def possible_connections(wanted: int, reserved: int = DESCRIPTORS_OF_A_SERVER) -> int:
    """Return how many connections the process's descriptors allow, at most `wanted` (0: any).

    `reserved` descriptors are kept for files.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return wanted
    possible = max(1, descriptors - reserved)
    return min(wanted, possible) if wanted else possible


def report_accept_faults(loop: asyncio.AbstractEventLoop) -> None:
    """Make a loop log one line when it has no descriptor for a new connection.

    asyncio's own loop retries every second and logs a traceback for each waiting connection.
    uvloop accepts such connections with a spare descriptor and closes them.
    """
    before = loop.get_exception_handler()
    if not isinstance(before, _AcceptFaults):
        loop.set_exception_handler(_AcceptFaults(before))


class _AcceptFaults:
    """An exception handler that leaves everything else to the previous one."""

    def __init__(self, before: _ExceptionHandler | None) -> None:
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR and "socket" in context:
            logger.error(
                "accepting a connection failed, retrying: %s; close connections or raise the limit "
                "on open files (ulimit -n)",
                error,
                extra=RARELY,
            )
        elif self._before is None:
            loop.default_exception_handler(context)
        else:
            self._before(loop, context)
