"""The replica's side of replication: follows a master for as long as the broker is a replica.

One task connects, compares the two logs, follows, and connects again with exponential backoff. The
master's address may change at any time: the task moves to the new one.

Before it follows, a replica makes sure that its log is the beginning of the master's. With a pyromq
master both ends compare the last bytes by checksum (`divergence`); with a Java master the replica
does what can be done from outside (`java_master`). If the logs differ, or the master no longer has
the next bytes, no retry can help: the replica stops for good, and `on_stop` gets a text that says
what happened and which command repairs it.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from pyromq.remoting.address import parse_address
from pyromq.replication import divergence, wire
from pyromq.replication.link import LinkError, LinkState, MasterRefusedError, ReplicaLink
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.config import MessageStoreConfig
from pyromq.store.replication import StoreReplication
from pyromq.store.results import PutError, StoreError
from pyromq.tls.client import ClientTls
from pyromq.tls.errors import describe

logger = logging.getLogger(__name__)

_FIRST_BACKOFF: Final = 0.2
_MAX_BACKOFF: Final = 5.0
_CONNECT_SECONDS: Final = 5.0
#: How long a pyromq master may take for its hello; a Java master says nothing.
_HELLO_SECONDS: Final = 1.0
_ADDRESS_SECONDS: Final = 0.2
#: A pyromq master that is silent more often than this was replaced by a Java one.
_MAX_SILENCES: Final = 5


class DivergedError(Exception):
    """This log cannot follow the master's. The text says why, and what to do."""


class FollowerStatus(NamedTuple):
    """How a replica is doing."""

    #: Where the master serves replicas; None if unknown.
    master: str | None
    is_connected: bool
    end: int
    #: Since the master last said something; None if not connected.
    silent_seconds: float | None
    #: Why the replica stopped for good, or an empty string.
    stopped: str


class Replica:
    """Follows a master."""

    def __init__(
        self,
        config: MessageStoreConfig,
        store: StoreReplication,
        *,
        address: Callable[[], str | None],
        broker_id: Callable[[], int],
        examine_java: Callable[[str], Awaitable[None]],
        on_stop: Callable[[str], None],
        tls: ClientTls | None = None,
    ) -> None:
        """`address` returns host:port of the master's replication port, or None if unknown.

        `examine_java` raises DivergedError if the log cannot follow the Java master there.
        """
        self._config = config
        self._store = store
        self._address = address
        self._broker_id = broker_id
        self._examine_java = examine_java
        self._on_stop = on_stop
        self._tls = tls
        self._task: asyncio.Task[None] | None = None
        self._link: ReplicaLink | None = None
        self._stopped = ""
        self._reported = ""
        #: The master that negotiated last, and how often it was silent since.
        self._negotiated_with = ""
        self._silences = 0

    def start(self) -> None:
        """Begin to follow."""
        self._stopped = ""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop following; the log ends after a complete record."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._link is not None:
            self._link.close("the replica stops")
            self._link = None

    def cut_off(self) -> None:
        """Break the connection, as a killed process would; `stop` ends the rest."""
        if self._task is not None:
            self._task.cancel()
        if self._link is not None:
            self._link.close("cut off")

    def status(self) -> FollowerStatus:
        """Return how the replica is doing."""
        link = self._link
        is_connected = link is not None and link.state is LinkState.FOLLOWING
        return FollowerStatus(
            self._address(),
            is_connected,
            self._store.log.end,
            link.silent_for if link is not None and is_connected else None,
            self._stopped,
        )

    # The task

    async def _run(self) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            address = await self._known_address()
            began = self._store.log.end
            try:
                reason = await self._follow(address)
            except DivergedError as error:
                self._stopped = str(error)
                logger.critical("replication stopped: %s", error)
                self._on_stop(str(error))
                return
            except (OSError, LinkError, MasterRefusedError, PutError, StoreError) as error:
                reason = describe(error)
            except Exception as error:
                # A bug. Without another attempt the replica would lag for ever, and silently.
                logger.exception("replication from %s failed", address)
                reason = repr(error)
            finally:
                if self._link is not None:
                    self._link.close("replaced")
                    self._link = None
            if self._store.log.end > began:
                backoff = _FIRST_BACKOFF
            self._log_once(f"replication from {address}: {reason}")
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    async def _known_address(self) -> str:
        while True:
            address = self._address()
            if address is not None:
                return address
            self._log_once("no master is registered yet")
            await asyncio.sleep(_ADDRESS_SECONDS)

    def _log_once(self, line: str) -> None:
        """Log a line unless it repeats the last one."""
        if line != self._reported:
            self._reported = line
            logger.warning("%s; retrying", line)

    async def _follow(self, address: str) -> str:
        """Follow one connection; return why it ended. Raises OSError and the errors of a link."""
        loop = asyncio.get_running_loop()
        host, port = parse_address(address)
        # A blank record that was cut off with the last connection: only zeros are missing.
        self._store.log.finish()
        if self._config.ha_report_flushed:
            # The offset to start at is a report, too.
            outcome = await self._store.flushed(self._store.log.end)
            if outcome is not AckOutcome.STORED:
                raise LinkError("the log cannot be flushed")
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, link = await loop.create_connection(
                lambda: ReplicaLink(self._config, self._store, loop),
                host,
                port,
                **({} if self._tls is None else self._tls.arguments(host)),
            )
        self._link = link
        hello = await link.enquire(_HELLO_SECONDS)
        if hello is not None:
            self._silences = 0
            self._negotiated_with = address
            await self._negotiate(link, hello)
        elif address == self._negotiated_with and self._silences < _MAX_SILENCES:
            # Rather a pyromq master that is busy than a Java one in its place.
            self._silences += 1
            raise LinkError("the master accepts connections, but says nothing")
        else:
            await self._examine_java(address)
            link.follow_java()
        self._reported = ""
        logger.info(
            "following %s master %s from %d",
            "a Java" if hello is None else "the",
            address,
            self._store.log.end,
        )
        while not link.closed.done():
            await asyncio.wait((link.closed,), timeout=_ADDRESS_SECONDS)
            current = self._address()
            if current is not None and current != address:
                link.close(f"the master moved to {current}")
        return link.closed.result()

    # Negotiation

    async def _negotiate(self, link: ReplicaLink, hello: dict[str, Any]) -> None:
        """Compare the logs, then follow. Raises DivergedError and the errors of a link."""
        first, end, segment_size = (
            _number(hello, name) for name in ("first", "end", "segmentSize")
        )
        if hello.get("version") != wire.VERSION:
            raise DivergedError(
                f"the master speaks version {hello.get('version')} of the replication protocol, "
                f"this broker {wire.VERSION}: run the same version of pyromq on both"
            )
        if first > end:
            raise LinkError(f"the master's log begins at {first} and ends at {end}")
        source, log = self._store.source, self._store.log
        if segment_size != source.segment_size:
            raise DivergedError(
                f"mappedFileSizeCommitLog is {source.segment_size} here and {segment_size} on the "
                "master: set the master's value, empty the store and restart"
            )
        if log.is_empty:
            log.begin_at(first)
        elif log.end < first:
            raise DivergedError(
                expired_text(self._config, log.end, first, "the replica copies everything")
            )
        else:
            await self._compare(link, first, end)
        start = max(first, log.end - divergence.WINDOW)
        crc = await asyncio.to_thread(source.checksum, start, log.end)
        if crc is None:
            raise LinkError(f"the log has no bytes from {start} to {log.end}")
        await link.follow(log.end, start, crc, self._broker_id())

    async def _compare(self, link: ReplicaLink, master_first: int, master_end: int) -> None:
        """Raise DivergedError unless this log is the beginning of the master's."""
        source, log = self._store.source, self._store.log
        first, end = max(master_first, source.first), min(log.end, master_end)

        async def ask(ranges: list[tuple[int, int]]) -> list[int | None]:
            answer = await link.ask(checksums=[list(each) for each in ranges])
            checksums = answer.get("checksums")
            if not isinstance(checksums, list) or len(checksums) != len(ranges):
                raise LinkError("the master answered a question for checksums with something else")
            return checksums

        if first > end:
            raise DivergedError(
                f"this log ({source.first} to {log.end}) and the master's ({master_first} to "
                f"{master_end}) have nothing in common: this broker replicated another master"
            )
        common = await divergence.common_end(first, end, source.checksum, ask)
        if common == log.end:
            return
        boundary = await asyncio.to_thread(source.boundary_below, common)
        raise DivergedError(diverged_text(self._config, log.end, master_end, boundary))


def expired_text(config: MessageStoreConfig, own_end: int, first: int, then: str) -> str:
    """Return that the master's log begins after the end of this one, and what to do."""
    return (
        f"the master no longer has offset {own_end}, where this log ends: its own is from {first} "
        f"on; move {config.root} away (mv {config.root} {config.root}.old) and restart: {then}"
    )


def diverged_text(config: MessageStoreConfig, own_end: int, master_end: int, common: int) -> str:
    """Return what happened to two logs that parted at `common`, and what to do."""
    how = "is longer than" if common == master_end else "differs from"
    return (
        f"this log {how} the master's: both are the same up to {common}, this one ends at "
        f"{own_end}, the master's at {master_end}. Messages from {common} on exist only here. To "
        f"give them up and follow the master, run: pyromq store truncate {config.root} "
        f"--to {common} --apply"
    )


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise LinkError(f"the master's hello has {name}={value!r}")
    return value
