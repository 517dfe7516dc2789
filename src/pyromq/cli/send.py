"""`pyromq send`: send one message, or the same message many times, from the command line.

Results go to stdout, one line per message; the progress bar and the summary go to stderr, so
that pipes carry results only. The first message is sent alone: a wrong address or topic then
fails with one error. Later failures are counted and make the exit code 1.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import Counter, deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from pyromq.base.progress import count_progress
from pyromq.cli.client_options import Cluster, client_options
from pyromq.cli.running import run_client
from pyromq.client import Message, Producer, RocketMQError, SendResult
from pyromq.client.message import MAX_DELAY_LEVEL

if TYPE_CHECKING:
    from rich.progress import Progress

_MAX_IN_FLIGHT = 64
#: Abandon the run after this many failures in a row: the cluster is gone.
_MAX_FAILURES_IN_A_ROW = 64
#: Above this count, messages get a progress bar and a summary instead of a line each.
_MAX_LINES = 20
_BAR_REFRESH_SECONDS = 0.1
_MAX_ERRORS_IN_SUMMARY = 5
_PERCENTILES = (50, 99)


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--file", "file", metavar="FILE", help="Send the content of FILE; - reads stdin.")
@click.option("--size", type=click.IntRange(1), help="Send a generated body of this many bytes.")
@click.option("--tags", default="", help="Set the tag by which consumers filter.")
@click.option("--keys", default="", help="Index the message under these keys, separated by spaces.")
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a user property. Repeat the option to set several.",
)
@click.option(
    "--delay-level",
    metavar="LEVEL",
    type=click.IntRange(1, MAX_DELAY_LEVEL),
    default=None,
    help=f"Deliver the message later, by a level from 1 to {MAX_DELAY_LEVEL} (1s 5s 10s 30s 1m "
    "... 2h unless the broker is configured otherwise).",
)
@click.option(
    "--ordering-key",
    metavar="KEY",
    default="",
    help="Send messages with the same key to the same queue, which keeps their order.",
)
@click.option(
    "--count", type=click.IntRange(1), default=1, help="Send the message this many times."
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help=f"Print a line per message even above {_MAX_LINES} messages.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object per message and, with --count above 1, a final summary object.",
)
@client_options
def send(
    topic: str,
    body: str | None,
    file: str | None,
    size: int | None,
    tags: str,
    keys: str,
    properties: tuple[str, ...],
    delay_level: int | None,
    ordering_key: str,
    count: int,
    verbose: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Send a message to TOPIC and print its id, queue and offset.

    BODY is the text of the message; - reads it from stdin. Brokers create a missing topic unless
    autoCreateTopicEnable is off.

    With --count, messages are sent concurrently. Up to 20 print a line each; above that, a
    terminal shows a progress bar. A summary with rate and latencies follows on stderr.

    --json prints one object per message, at any count, for scripts. "type" is "message" (topic,
    brokerName, queueId, queueOffset, msgId, offsetMsgId, status), "failure" (topic, error) or, in
    the last line of a run with --count above 1, "summary".

    The exit code is 0 if all messages were sent, 1 if any failed, 2 for wrong arguments and 130
    after Ctrl-C. If the first message fails, no other is sent.

    \b
    Examples
        pyromq send greetings 'hello'
        pyromq send orders --file order.json --tags new --keys 'order-17 customer-4'
        date | pyromq send clock - --property source=cron
        pyromq send reminders 'wake up' --delay-level 5
        pyromq send orders --file order.json --ordering-key order-17
        pyromq send load --size 1024 --count 10000
        pyromq send orders --file order.json --json | jq -r .msgId
    """
    message = Message(
        topic,
        _content(body, file, size),
        tags=tags,
        keys=keys,
        properties=dict(map(_property, properties)),
        delay_level=delay_level or 0,
        ordering_key=ordering_key,
    )
    report = _Report(topic, count, verbose=verbose, as_json=as_json)
    run_client(_send(cluster, message, report))
    if report.errors:
        raise click.exceptions.Exit(1)


def _content(body: str | None, file: str | None, size: int | None) -> bytes:
    if sum(source is not None for source in (body, file, size)) != 1:
        raise click.UsageError("give exactly one of BODY, --file and --size")
    if size is not None:
        return (b"0123456789" * (size // 10 + 1))[:size]
    if "-" in (body, file):
        return sys.stdin.buffer.read()
    if file is not None:
        try:
            return Path(file).read_bytes()
        except OSError as error:
            raise click.ClickException(f"cannot read {file}: {error.strerror}") from error
    assert body is not None
    return body.encode(errors="surrogateescape")


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise click.UsageError(f"--property {text!r}: expected NAME=VALUE")
    return name, value


async def _send(cluster: Cluster, message: Message, report: _Report) -> None:
    async with Producer(cluster.namesrv, **cluster.options) as producer:
        report.start()
        report.sent(*await _timed_send(producer, message))
        if report.count == 1:
            return
        try:
            with report.progress_bar():
                await _send_rest(producer, message, report)
        finally:
            report.print_summary()


async def _send_rest(producer: Producer, message: Message, report: _Report) -> None:
    """Keep `_MAX_IN_FLIGHT` sends in flight; report results in the order of the sends."""
    unsent = report.count - 1
    in_flight: deque[asyncio.Task[tuple[SendResult, float]]] = deque()
    try:
        while unsent or in_flight:
            if unsent and len(in_flight) < _MAX_IN_FLIGHT:
                in_flight.append(asyncio.create_task(_timed_send(producer, message)))
                unsent -= 1
                continue
            await report.settle(in_flight.popleft())
            if report.failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
                return
    finally:
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)


async def _timed_send(producer: Producer, message: Message) -> tuple[SendResult, float]:
    started = time.perf_counter()
    return await producer.send(message), time.perf_counter() - started


class _Report:
    """Counts results and prints them: lines, a progress bar, a summary."""

    def __init__(self, topic: str, count: int, *, verbose: bool, as_json: bool) -> None:
        self.count = count
        self.errors: Counter[str] = Counter()
        self.failures_in_a_row = 0
        self._topic = topic
        self._as_json = as_json
        self._prints_lines = as_json or verbose or count <= _MAX_LINES
        self._statuses: Counter[str] = Counter()
        self._latencies: list[float] = []
        self._started = 0.0
        self._bar: Progress | None = None
        self._bar_updated = 0.0

    def start(self) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def progress_bar(self) -> AbstractContextManager[object]:
        """Return the bar for a `with` statement; it stays empty where lines are printed."""
        if self.count <= _MAX_LINES or (self._prints_lines and sys.stdout.isatty()):
            return nullcontext()
        self._bar = count_progress(is_transient=True)
        self._bar.add_task("sending", total=self.count)
        return self._bar

    async def settle(self, sending: asyncio.Task[tuple[SendResult, float]]) -> None:
        """Wait for one send and record its result or failure."""
        try:
            self.sent(*await sending)
        except RocketMQError as error:
            self._failed(str(error))
        self._update_bar()

    def sent(self, result: SendResult, seconds: float) -> None:
        """Record a stored message."""
        self.failures_in_a_row = 0
        self._statuses[result.status.name] += 1
        self._latencies.append(seconds)
        if not self._prints_lines:
            return
        queue = result.queue
        if self._as_json:
            self._print_json(
                {
                    "type": "message",
                    "topic": self._topic,
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                    "queueOffset": result.queue_offset,
                    "msgId": result.msg_id,
                    "offsetMsgId": result.offset_msg_id,
                    "status": result.status.name,
                }
            )
        else:
            click.echo(
                f"msgId={result.msg_id} queue={queue.broker_name}:{queue.queue_id} "
                f"offset={result.queue_offset} {result.status.name}"
            )

    def print_summary(self) -> None:
        """Print counts, rate and latencies: JSON to stdout, text to stderr."""
        elapsed = max(time.perf_counter() - self._started, 1e-6)
        sent = self._statuses.total()
        latencies = self._latency_summary()
        if self._as_json:
            self._print_json(
                {
                    "type": "summary",
                    "topic": self._topic,
                    "count": self.count,
                    "sent": sent,
                    "failed": self.errors.total(),
                    "seconds": round(elapsed, 3),
                    "messagesPerSecond": round(sent / elapsed, 1),
                    "latencyMs": {name: round(value, 3) for name, value in latencies.items()},
                    "statuses": self._statuses,
                    "errors": self.errors,
                }
            )
            return
        how_many = f"{sent:,} of {self.count:,}" if sent < self.count else f"{sent:,}"
        times = ", ".join(f"{name} {value:.3g} ms" for name, value in latencies.items())
        lines = [
            f"sent {how_many} messages in {elapsed:.2f} s, {sent / elapsed:,.0f}/s; latency {times}"
        ]
        lines += [
            f"{number:,} stored with {status}: see the broker's log"
            for status, number in self._statuses.items()
            if status != "SEND_OK"
        ]
        lines += [
            f"{number:,} failed: {error}"
            for error, number in self.errors.most_common(_MAX_ERRORS_IN_SUMMARY)
        ]
        if self.failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            lines.append(f"gave up after {self.failures_in_a_row} failures in a row")
        click.echo("\n".join(lines), err=True)

    def _failed(self, error: str) -> None:
        self.failures_in_a_row += 1
        self.errors[error] += 1
        if self._as_json:
            self._print_json({"type": "failure", "topic": self._topic, "error": error})
        elif self._prints_lines:
            click.echo(f"failed: {error}", err=True)

    def _latency_summary(self) -> dict[str, float]:
        """Return percentiles and the maximum in milliseconds."""
        latencies = sorted(self._latencies)
        ranks = {
            f"p{percent}": math.ceil(len(latencies) * percent / 100) for percent in _PERCENTILES
        }
        ranks["max"] = len(latencies)
        return {name: latencies[rank - 1] * 1e3 for name, rank in ranks.items()}

    def _update_bar(self) -> None:
        now = time.perf_counter()
        if self._bar is not None and now - self._bar_updated >= _BAR_REFRESH_SECONDS:
            self._bar_updated = now
            done = self._statuses.total() + self.errors.total()
            self._bar.update(self._bar.task_ids[0], completed=done)

    def _print_json(self, fields: dict[str, Any]) -> None:
        click.echo(orjson.dumps(fields).decode())
