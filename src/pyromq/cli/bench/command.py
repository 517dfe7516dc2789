"""`pyromq bench`: load on any cluster, made by this client, with rates and latencies.

One process runs its load on its own event loop. With `--processes`, children that are forked
before anything runs do so, and send a `Sample` each half second through a pipe; the parent
shows the sum. The end (count, time, Ctrl-C) is the parent's word: it tells the children with
SIGTERM, they send what they have and end.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from pyromq.cli.client_options import Cluster, client_options
from pyromq.cli.consume import start_of
from pyromq.cli.lazy_group import HelpfulGroup
from pyromq.cli.running import run_client

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pyromq.cli.bench.figures import Recorder, Report
    from pyromq.cli.bench.load import Load

_DEFAULT_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5
#: How long children may take to end.
_END_SECONDS = 15.0


@click.group(cls=HelpfulGroup)
def bench() -> None:
    """Make load on a cluster and measure it."""


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of both commands."""
    for option in reversed(
        (
            click.option("--count", type=click.IntRange(1), help="End after so many messages."),
            click.option(
                "--duration",
                metavar="SECONDS",
                type=click.FloatRange(0, min_open=True),
                help=f"End after so long; {_DEFAULT_SECONDS:g} unless there is a --count.",
            ),
            click.option(
                "--processes",
                type=click.IntRange(1, 256),
                default=1,
                show_default=True,
                help="Divide the load among so many processes: one uses one core at most.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON."),
            click.option(
                "--plot",
                metavar="FILE",
                help="Draw rate and latencies over time into FILE, an SVG.",
            ),
        )
    ):
        command = option(command)
    return command


@bench.command()
@click.argument("topic")
@click.option("--size", type=click.IntRange(1), default=128, show_default=True, help="Of a body.")
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="How many sends are under way at once.",
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many producers share the sends; each has a connection to each broker.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Messages of one request.",
)
@click.option(
    "--linger",
    metavar="MILLISECONDS",
    type=click.FloatRange(0),
    help="Let the client batch single sends that come within so long.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Messages per second; without it, as many as the cluster takes.",
)
@click.option("--tags", default="", help="Of every message.")
@click.option("--keys", is_flag=True, help="Give every message a key of its own.")
@_common
@client_options
def produce(
    topic: str,
    size: int,
    in_flight: int,
    connections: int,
    batch: int,
    linger: float | None,
    rate: float | None,
    tags: str,
    keys: bool,
    count: int | None,
    duration: float | None,
    processes: int,
    as_json: bool,
    plot: str | None,
    cluster: Cluster,
) -> None:
    """Send messages with random bodies to TOPIC.

    Without --rate, --in-flight sends are under way at all times. With it, a message is due
    at its time and its latency counts from then, whether or not the send could begin: what
    waits for a slow cluster is not left out. Failed sends are counted, and make the exit
    status 1. Ctrl-C ends it, with the figures so far.

    \b
    Examples
        pyromq bench produce load --size 1024 --duration 30
        pyromq bench produce load --rate 5000 --plot load.svg
        pyromq bench produce load --linger 5 --in-flight 2048 --processes 2
    """
    from pyromq.cli.bench.load import ProduceLoad

    if batch > 1 and linger is not None:
        raise click.UsageError("give --batch or --linger, not both")
    if in_flight < connections:
        raise click.UsageError(
            f"--connections {connections} with --in-flight {in_flight}: each needs one at least"
        )
    if connections < processes:
        connections = processes
    if in_flight < processes:
        raise click.UsageError(
            f"--processes {processes} with --in-flight {in_flight}: each needs one at least"
        )
    load = ProduceLoad(
        cluster,
        topic,
        size,
        in_flight,
        connections,
        batch,
        None if linger is None else linger / 1e3,
        rate,
        count,
        tags,
        keys,
    )
    _bench(load, count, duration, processes, as_json, plot)


@bench.command()
@click.argument("topic")
@click.option(
    "--group",
    default="PYROMQ_BENCH",
    show_default=True,
    help="Consume as a member of this group, which commits its offsets.",
)
@click.option(
    "--from",
    "start",
    metavar="first|last|TIME",
    default="last",
    show_default=True,
    help="Where the group begins on queues of which it has consumed nothing yet.",
)
@click.option("--tags", default="*", help="Only messages with these tags, as 'a || b'.")
@click.option("--sql", help="Only messages whose properties make this SQL92 expression true.")
@click.option("--lists", is_flag=True, help="Take lists of messages, not one after the other.")
@_common
@client_options
def consume(
    topic: str,
    group: str,
    start: str,
    tags: str,
    sql: str | None,
    lists: bool,
    count: int | None,
    duration: float | None,
    processes: int,
    as_json: bool,
    plot: str | None,
    cluster: Cluster,
) -> None:
    """Consume TOPIC with a push consumer that does nothing with the messages.

    Latencies are from the time at which a producer made a message, by its clock, until it
    was consumed. Ctrl-C ends it, with the figures so far.

    \b
    Examples
        pyromq bench consume load --from first --count 1000000 --lists
        pyromq bench consume load --group audit --duration 60 --json
    """
    from pyromq.cli.bench.load import ConsumeLoad

    if sql is not None and tags != "*":
        raise click.UsageError("give --tags or --sql, not both")
    load = ConsumeLoad(cluster, topic, group, start_of(start), tags, sql, lists, count)
    _bench(load, count, duration, processes, as_json, plot)


def _bench(
    load: Load,
    count: int | None,
    duration: float | None,
    processes: int,
    as_json: bool,
    plot: str | None,
) -> None:
    from pyromq.cli.bench.figures import Report

    if plot is not None:
        _check_plot(Path(plot))
    if duration is None and count is None:
        duration = _DEFAULT_SECONDS
    report = Report(load.title, load.latency_name, processes)
    with _live_line(report) as show:
        if processes == 1:
            run_client(_measure_here(load, duration, report, show))
        else:
            _measure_children(load, processes, count, duration, report, show)
    _print(report, as_json, plot)
    if report.failed:
        raise click.exceptions.Exit(1)


def _check_plot(file: Path) -> None:
    """Before the load runs: its figures must not be lost to a wrong name."""
    if file.suffix.lower() != ".svg":
        raise click.UsageError(f"--plot {file}: the picture is an SVG, name it FILE.svg")
    if not os.access(file.parent, os.W_OK) or file.is_dir():
        raise click.UsageError(f"--plot {file}: cannot be written")


@contextmanager
def _live_line(report: Report) -> Iterator[Callable[[], None]]:
    """Gives what shows how it goes: one line on a terminal, nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    with console.status("starting") as status:
        yield lambda: status.update(report.line())


def _print(report: Report, as_json: bool, plot: str | None) -> None:
    from rich.console import Console

    if as_json:
        import orjson

        click.echo(orjson.dumps(report.json(), option=orjson.OPT_INDENT_2).decode())
    else:
        Console(file=sys.stdout, soft_wrap=True).print(report.table())
    if plot is not None:
        from pyromq.cli.bench.plot import plot as draw

        try:
            Path(plot).write_text(draw(report))
        except OSError as error:
            raise click.ClickException(f"{plot} cannot be written: {error.strerror}") from error


# In this process


async def _measure_here(
    load: Load, duration: float | None, report: Report, show: Callable[[], None]
) -> None:
    from pyromq.cli.bench.figures import Recorder

    began = time.perf_counter()

    def take(recorder: Recorder) -> None:
        report.add(recorder.take(), time.perf_counter() - began)
        show()

    report.ended_early = not await _run_load(load, duration, Recorder(), take)


async def _run_load(
    load: Load,
    duration: float | None,
    recorder: Recorder,
    take: Callable[[Recorder], None],
) -> bool:
    """Run a load and have samples taken; False when a signal has ended it."""
    stopping = asyncio.Event()
    task = asyncio.create_task(load.run(recorder, stopping))
    end = None if duration is None else time.perf_counter() + duration
    is_whole = True
    try:
        while not task.done() and (end is None or time.perf_counter() < end):
            left = _SAMPLE_SECONDS if end is None else max(0.0, end - time.perf_counter())
            await asyncio.wait((task,), timeout=min(_SAMPLE_SECONDS, left))
            take(recorder)
    except asyncio.CancelledError:
        # A signal: not an accident, but the way to end a load, which goes on to its end below.
        is_whole = False
    stopping.set()
    await asyncio.wait((task,), timeout=_END_SECONDS)
    take(recorder)
    if task.done():
        task.result()
    return is_whole


# In several processes


def _measure_children(
    load: Load,
    processes: int,
    count: int | None,
    duration: float | None,
    report: Report,
    show: Callable[[], None],
) -> None:
    # Loaded once, not by each child.
    import pyromq.client  # noqa: F401

    # Forked while there is one thread and no event loop: options need not be sent anywhere.
    context = multiprocessing.get_context("fork")
    children = []
    pipes: list[Connection] = []
    for number in range(processes):
        receiving, sending = context.Pipe(duplex=False)
        child = context.Process(
            target=_child, args=(load.part(number, processes), duration, sending), daemon=True
        )
        child.start()
        sending.close()
        children.append(child)
        pipes.append(receiving)
    failure = _Follower(pipes, children, count, report, show).follow()
    for child in children:
        child.join(_END_SECONDS)
        if child.is_alive():
            child.kill()
    if failure is not None:
        raise click.ClickException(failure)


class _Follower:
    """Adds up what children send, until they have ended."""

    def __init__(
        self,
        pipes: list[Connection],
        children: Sequence[multiprocessing.process.BaseProcess],
        count: int | None,
        report: Report,
        show: Callable[[], None],
    ) -> None:
        self._pipes = pipes
        self._children = children
        self._count = count
        self._report = report
        self._show = show
        self._is_ending = False

    def follow(self) -> str | None:
        """Come back when all have ended; with the words of one that failed."""
        from pyromq.cli.bench.figures import Sample

        failure: str | None = None
        began = time.perf_counter()
        pending, looked_at = Sample(), began
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            while self._pipes:
                ready = multiprocessing.connection.wait(self._pipes, _SAMPLE_SECONDS)
                for pipe in [pipe for pipe in self._pipes if pipe in ready]:
                    try:
                        said: Sample | str = pipe.recv()
                    except EOFError:
                        self._pipes.remove(pipe)
                        continue
                    if isinstance(said, str):
                        failure = failure or said
                        self._end()
                    else:
                        pending.add(said)
                now = time.perf_counter()
                if now - looked_at >= _SAMPLE_SECONDS or not self._pipes:
                    self._report.add(pending, now - began)
                    pending, looked_at = Sample(), now
                    self._show()
                    if self._count is not None and self._report.sum.messages >= self._count:
                        self._end()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return failure

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._report.ended_early = True
        self._end()

    def _end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            for child in self._children:
                child.terminate()


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _child(load: Load, duration: float | None, pipe: Connection) -> None:
    """A child's whole life."""
    from pyromq.cli.bench.figures import Recorder

    # Ctrl-C goes to the whole group of processes, but here the parent decides.
    os.setpgrp()

    def take(recorder: Recorder) -> None:
        pipe.send(recorder.take())

    async def work() -> None:
        await _run_load(load, duration, Recorder(), take)

    try:
        run_client(work())
    except click.ClickException as error:
        pipe.send(error.message)
    except (click.exceptions.Exit, BrokenPipeError):
        pass  # a signal before the load began; the parent is no more
    finally:
        pipe.close()
