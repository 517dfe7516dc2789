"""`pyromq bench`: load a cluster with this client and measure rates and latencies.

A single process runs the load on its own event loop. With `--processes`, children are forked
before a loop or thread exists; each sends a `Sample` through a pipe every half second, and the
parent shows the sum. The parent ends the run (count, time, Ctrl-C): it sends SIGTERM to the
children, which send their last sample and exit.
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
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import click
import orjson

from pyromq.base.command_options import add_options
from pyromq.cli.bench.figures import Recorder, Report, Sample
from pyromq.cli.bench.load import ConsumeLoad, Load, ProduceLoad
from pyromq.cli.bench.plot import plot as draw
from pyromq.cli.client_options import Cluster, client_options
from pyromq.cli.consume import start_of
from pyromq.cli.lazy_group import HelpfulGroup
from pyromq.cli.running import run_client

_DEFAULT_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5
#: How long a load and its children may take to stop.
_STOP_SECONDS = 15.0


@click.group(cls=HelpfulGroup)
def bench() -> None:
    """Load a cluster and measure rates and latencies."""


#: Options of both commands.
_common_options = add_options(
    click.option("--count", type=click.IntRange(1), help="Stop after this many messages."),
    click.option(
        "--duration",
        metavar="SECONDS",
        type=click.FloatRange(0, min_open=True),
        help=f"Stop after this time [default: {_DEFAULT_SECONDS:g}, or none with --count].",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="Split the load across this many processes; each uses at most one core.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON."),
    click.option(
        "--plot",
        metavar="FILE",
        help="Plot rate and latencies over time to FILE, an SVG.",
    ),
)


@bench.command()
@click.argument("topic")
@click.option(
    "--size",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Set the size of a body in bytes.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Keep this many sends in flight.",
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Send through this many producers; each has its own connection to each broker.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Send this many messages per request.",
)
@click.option(
    "--linger",
    metavar="MILLISECONDS",
    type=click.FloatRange(0),
    help="Let the producer batch single sends that arrive within this time.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Send this many messages per second [default: as many as the cluster accepts].",
)
@click.option("--tags", default="", help="Set this tag on every message.")
@click.option("--keys", is_flag=True, help="Give every message its own key.")
@_common_options
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

    Without --rate, --in-flight sends are in flight at all times. With --rate, each message has a
    due time, and its latency counts from then: time spent waiting for a slow cluster is included.
    Failed sends are counted and make the exit code 1. Ctrl-C stops the load and prints the figures
    so far.

    \b
    Examples
        pyromq bench produce load --size 1024 --duration 30
        pyromq bench produce load --rate 5000 --plot load.svg
        pyromq bench produce load --linger 5 --in-flight 2048 --processes 2
    """
    if batch > 1 and linger is not None:
        raise click.UsageError("give --batch or --linger, not both")
    if in_flight < connections:
        raise click.UsageError(
            f"--connections {connections} with --in-flight {in_flight}: each needs at least one"
        )
    if connections < processes:
        connections = processes
    if in_flight < processes:
        raise click.UsageError(
            f"--processes {processes} with --in-flight {in_flight}: each needs at least one"
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
    help="Join this consumer group and commit its offsets.",
)
@click.option(
    "--from",
    "start",
    metavar="first|last|TIME",
    default="last",
    show_default=True,
    help="Start here on queues without a committed offset.",
)
@click.option("--tags", default="*", help="Consume messages with these tags only, as in 'a || b'.")
@click.option("--sql", help="Consume messages whose properties match this SQL92 expression only.")
@click.option("--lists", is_flag=True, help="Handle messages in lists instead of one by one.")
@_common_options
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
    """Consume TOPIC with a push consumer that discards the messages.

    Latency is the time from the creation of a message, by the producer's clock, until it was
    consumed. Ctrl-C stops the load and prints the figures so far.

    \b
    Examples
        pyromq bench consume load --from first --count 1000000 --lists
        pyromq bench consume load --group audit --duration 60 --json
    """
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
    """Check the file before the load runs: a wrong name must not cost its figures."""
    if file.suffix.lower() != ".svg":
        raise click.UsageError(f"--plot {file}: only SVG is supported, use FILE.svg")
    if not os.access(file.parent, os.W_OK) or file.is_dir():
        raise click.UsageError(f"--plot {file}: the file is not writable")


@contextmanager
def _live_line(report: Report) -> Iterator[Callable[[], None]]:
    """Yield a function that refreshes a live line; it does nothing without a terminal."""
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
        click.echo(orjson.dumps(report.json(), option=orjson.OPT_INDENT_2).decode())
    else:
        Console(file=sys.stdout, soft_wrap=True).print(report.table())
    if plot is not None:
        try:
            Path(plot).write_text(draw(report))
        except OSError as error:
            raise click.ClickException(f"cannot write {plot}: {error.strerror}") from error


# A load in this process


async def _measure_here(
    load: Load, duration: float | None, report: Report, show: Callable[[], None]
) -> None:
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
    """Run a load and take samples; return False if a signal ended it."""
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
        # A signal is the normal way to stop a load; continue with the shutdown below.
        is_whole = False
    stopping.set()
    await asyncio.wait((task,), timeout=_STOP_SECONDS)
    take(recorder)
    if task.done():
        task.result()
    return is_whole


# A load in several processes


def _measure_children(
    load: Load,
    processes: int,
    count: int | None,
    duration: float | None,
    report: Report,
    show: Callable[[], None],
) -> None:
    # Fork while there is one thread and no event loop: children inherit the options.
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
        child.join(_STOP_SECONDS)
        if child.is_alive():
            child.kill()
    if failure is not None:
        raise click.ClickException(failure)


class _Follower:
    """Adds up the samples of the children until they exit."""

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
        self._is_stopping = False

    def follow(self) -> str | None:
        """Wait until all children exit; return the error of the first that failed."""
        failure: str | None = None
        began = time.perf_counter()
        pending, reported_at = Sample(), began
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            while self._pipes:
                ready = multiprocessing.connection.wait(self._pipes, _SAMPLE_SECONDS)
                for pipe in [pipe for pipe in self._pipes if pipe in ready]:
                    try:
                        received: Sample | str = pipe.recv()
                    except EOFError:
                        self._pipes.remove(pipe)
                        continue
                    if isinstance(received, str):
                        failure = failure or received
                        self._stop()
                    else:
                        pending.add(received)
                now = time.perf_counter()
                if now - reported_at >= _SAMPLE_SECONDS or not self._pipes:
                    self._report.add(pending, now - began)
                    pending, reported_at = Sample(), now
                    self._show()
                    if self._count is not None and self._report.sum.messages >= self._count:
                        self._stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return failure

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._report.ended_early = True
        self._stop()

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            for child in self._children:
                child.terminate()


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _child(load: Load, duration: float | None, pipe: Connection) -> None:
    """Run a child's share of the load and send its samples."""
    # Leave the process group, which receives Ctrl-C: the parent decides when to stop.
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
        pass  # a signal before the load began, or the parent is gone
    finally:
        pipe.close()
