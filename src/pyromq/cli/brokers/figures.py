"""Load and resources of each broker: `pyromq standalone --figures`.

    broker-0: in 22,971 msg/s 6.3 MiB/s, out 0 msg/s, CPU 21 %, RSS 134 MiB

Messages and bytes come from the brokers themselves (GET_BROKER_RUNTIME_INFO), CPU time and memory
from /proc. `in` counts stored messages with the bytes of their records, also those that a replica
copied, `out` messages that pulls returned. RSS includes the pages of the store's files that are
mapped at the moment; the kernel takes them back when it needs memory.

A broker that does not answer is shown as such. `Figures` prints a line per broker at an interval
and a table of totals when it stops, before the brokers do. Runs on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from pyromq.base.periodic import PeriodicTasks
from pyromq.base.sizes import MIB
from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError

logger = logging.getLogger(__name__)

#: How long a broker may take to answer: the last figures delay the stop by no more than this.
_ANSWER_SECONDS: Final = 2.0
_PROC: Final = Path("/proc")


class Target(NamedTuple):
    """A broker to observe."""

    name: str
    address: str
    pid: int
    restarts: int = 0


class Sample(NamedTuple):
    """The counters of a broker at one moment, since its process started."""

    time: float
    pid: int
    messages_in: int
    bytes_in: int
    messages_out: int
    cpu_seconds: float
    rss: int


class Figures:
    """Prints figures of the brokers that `targets` returns."""

    def __init__(
        self,
        targets: Callable[[], Sequence[Target]],
        every: float | None,
        *,
        echo: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        client: RemotingClient | None = None,
    ) -> None:
        """Print lines every `every` seconds, or only the table if that is None.

        `client` is closed with this object; it may read runtime information.
        """
        self._targets = targets
        self._every = every
        self._echo = echo or _print
        self._clock = clock
        self._client = client or RemotingClient(connect_timeout=_ANSWER_SECONDS)
        self._last: dict[str, Sample] = {}
        self._periodic = PeriodicTasks()

    async def start(self) -> None:
        """Take the first samples and start to print."""
        if self._every is not None:
            await self._take(self._targets())
            self._periodic.start(self._every, self.print_lines)

    async def stop(self) -> None:
        """Print the table."""
        await self._periodic.stop()
        targets = self._targets()
        samples = await self._take(targets)
        await self._client.close()
        self._echo(table(targets, samples))

    async def print_lines(self) -> None:
        """Print the rates since the previous call, a line per broker and one for all."""
        targets, before = self._targets(), self._last.copy()
        samples = await self._take(targets)
        lines, rates = [], []
        for target, sample in zip(targets, samples, strict=True):
            if sample is None:
                lines.append(f"{target.name}: no answer")
                continue
            rate = rate_between(before.get(target.name), sample)
            if rate is not None:  # None for a process that is new
                rates.append(rate)
                lines.append(f"{target.name}: {rate.text()}")
        if len(rates) > 1:
            total = Rate(*(sum(values) for values in zip(*rates, strict=True)))
            lines.append(f"all: {total.text()}")
        if lines:
            self._echo("\n".join(lines))

    async def _take(self, targets: Sequence[Target]) -> list[Sample | None]:
        samples = await asyncio.gather(*map(self._sample, targets))
        self._last = {
            target.name: sample
            for target, sample in zip(targets, samples, strict=True)
            if sample is not None
        }
        return samples

    async def _sample(self, target: Target) -> Sample | None:
        try:
            answer = await self._client.request(
                target.address,
                RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO),
                _ANSWER_SECONDS,
            )
            if answer.code != ResponseCode.SUCCESS:
                return None
            counters = KVTable.decode(answer.body).table
            cpu_seconds, rss = process_usage(target.pid)
            return Sample(
                self._clock(),
                target.pid,
                int(counters["putMessageTimesTotal"]),
                int(counters["putMessageSizeTotal"]),
                int(counters["msgGetTotalTodayNow"]),
                cpu_seconds,
                rss,
            )
        except (RemotingError, OSError, KeyError, ValueError) as error:
            logger.debug("no figures of %s: %s", target.name, error)
            return None


def _print(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody reads stdout, and the brokers matter more
        click.echo(text)


class Rate(NamedTuple):
    """The load of a broker between two samples."""

    messages_in: float
    bytes_in: float
    messages_out: float
    #: 1.0 is one core.
    cores: float
    rss: float

    def text(self) -> str:
        """Return the load as a line."""
        return (
            f"in {self.messages_in:,.0f} msg/s {self.bytes_in / MIB:,.1f} MiB/s, "
            f"out {self.messages_out:,.0f} msg/s, CPU {self.cores:.0%}, "
            f"RSS {self.rss / MIB:,.0f} MiB"
        ).replace("%", " %")


def rate_between(before: Sample | None, after: Sample) -> Rate | None:
    """Return the load between two samples; None unless they are of the same process."""
    if before is None or before.pid != after.pid or after.time <= before.time:
        return None
    seconds = after.time - before.time
    return Rate(
        (after.messages_in - before.messages_in) / seconds,
        (after.bytes_in - before.bytes_in) / seconds,
        (after.messages_out - before.messages_out) / seconds,
        (after.cpu_seconds - before.cpu_seconds) / seconds,
        after.rss,
    )


def table(targets: Sequence[Target], samples: Sequence[Sample | None]) -> str:
    """Return the totals of every broker since its process started."""
    rows = [("broker", "messages in", "MiB in", "messages out", "CPU s", "RSS MiB", "restarts")]
    rows += [
        (
            target.name,
            *(
                ("no answer", "", "", "", "")
                if sample is None
                else (
                    f"{sample.messages_in:,}",
                    f"{sample.bytes_in / MIB:,.1f}",
                    f"{sample.messages_out:,}",
                    f"{sample.cpu_seconds:,.1f}",
                    f"{sample.rss / MIB:,.0f}",
                )
            ),
            str(target.restarts),
        )
        for target, sample in zip(targets, samples, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def process_usage(pid: int) -> tuple[float, int]:
    """Return the CPU seconds and the resident bytes of a process. Raises OSError."""
    # The second field is the program's name in parentheses, and may hold anything.
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    user, system, pages = int(fields[11]), int(fields[12]), int(fields[21])
    return (user + system) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")
