"""`pyromq consume`: a topic's messages on the screen or in a pipe, as they come."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click
import orjson

from pyromq.cli.client_options import Cluster, client_options
from pyromq.cli.running import run_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyromq.client import LitePullConsumer, ReceivedMessage, StartFrom

_TOPIC_PAUSE_SECONDS = 1.0
_RATE_SECONDS = 1.0


@click.command()
@click.argument("topic")
@click.option("--group", help="Read as a member of this consumer group and commit its offsets.")
@click.option(
    "--from",
    "start",
    metavar="first|last|TIME",
    default="last",
    show_default=True,
    help="Begin with the first message, with those that come from now on, or with those since "
    "a time as 2026-11-01T12:30. A group with committed offsets goes on from those.",
)
@click.option("--tags", default="*", help="Only messages with these tags, as 'a || b'.")
@click.option("--sql", help="Only messages whose properties make this SQL92 expression true.")
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@client_options
def consume(
    topic: str,
    group: str | None,
    start: str,
    tags: str,
    sql: str | None,
    count: int | None,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Print the messages of TOPIC as they come; Ctrl-C ends, and so does the end of a pipe.

    Each line begins with the time at which the message was stored, and its time zone.

    Without --group every message of every queue is printed and nothing is remembered. With
    --group the topic's queues are divided among all members of the group, whatever program
    they are, and what was printed is not printed again.

    \b
    Examples
        pyromq consume greetings --from first
        pyromq consume orders --tags 'new || paid' --group audit
        pyromq consume orders --sql "price > 100 AND region = 'eu'" --from 2026-11-01T12:30
        pyromq consume orders --json --count 100 > orders.jsonl
        pyromq consume orders | head -1
    """
    if sql is not None and tags != "*":
        raise click.UsageError("give --tags or --sql, not both")
    run_client(
        _consume(cluster, topic, group, start_of(start), tags, sql, count, as_json),
        watch_stdout=True,
    )


def start_of(text: str) -> StartFrom | datetime:
    """What `--from` means; also of `pyromq bench`."""
    from pyromq.client import StartFrom

    try:
        return StartFrom(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--from {text!r}: expected first, last or a time as 2026-11-01T12:30"
        ) from None


async def _consume(
    cluster: Cluster,
    topic: str,
    group: str | None,
    start: StartFrom | datetime,
    tags: str,
    sql: str | None,
    count: int | None,
    as_json: bool,
) -> None:
    from pyromq.client import LitePullConsumer, StartFrom, Subscription, TopicNotFoundError

    subscription = Subscription.of(tags) if sql is None else Subscription.sql(sql)
    is_waiting = False
    while True:
        async with LitePullConsumer(
            cluster.namesrv, group=group, start_from=start, **cluster.options
        ) as consumer:
            try:
                await consumer.subscribe({topic: subscription})
            except TopicNotFoundError:
                if not is_waiting:
                    click.echo(f"Topic {topic} does not exist yet: waiting for it.", err=True)
                is_waiting = True
                # Everything in it will have come from now on.
                start = StartFrom.FIRST
            else:
                await _print(consumer, count, as_json)
                return
        await asyncio.sleep(_TOPIC_PAUSE_SECONDS)


async def _print(consumer: LitePullConsumer, count: int | None, as_json: bool) -> None:
    seen = 0
    with _printing() as write:
        async for message in consumer:
            write(_as_json(message) if as_json else _as_text(message))
            seen += 1
            if seen == count:
                return


@contextmanager
def _printing() -> Iterator[Callable[[str], None]]:
    """Gives what prints a line: plain into a pipe, above a live rate line on a terminal."""
    if not sys.stdout.isatty():
        yield click.echo
        return
    from rich.console import Console

    console = Console()
    rate = _Rate()
    with console.status(rate.text()) as status:

        def write(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            if rate.count():
                status.update(rate.text())

        yield write


class _Rate:
    """Messages per second, worked out anew each second."""

    def __init__(self) -> None:
        self._total = self._since = 0
        self._rate = 0.0
        self._looked_at = time.monotonic()

    def count(self) -> bool:
        """Count one message; whether there is a new rate to show."""
        self._total += 1
        self._since += 1
        elapsed = time.monotonic() - self._looked_at
        if elapsed < _RATE_SECONDS and self._total > 1:
            return False
        self._rate = self._since / max(elapsed, 0.001)
        self._since = 0
        self._looked_at += elapsed
        return True

    def text(self) -> str:
        """The rate line."""
        return f"{self._total:,} messages, {self._rate:,.0f}/s, waiting for more (Ctrl-C ends)"


def _as_text(message: ReceivedMessage) -> str:
    stored = datetime.fromtimestamp(message.store_timestamp / 1000).astimezone()
    parts = [
        stored.isoformat(timespec="milliseconds"),
        f"{message.queue.broker_name}:{message.queue.queue_id}#{message.queue_offset}",
    ]
    parts += [f"tags={message.tags}"] if message.tags else []
    parts += [f"keys={message.keys}"] if message.keys else []
    if not message.is_readable:
        return f"{' '.join(parts)} (compressed, cannot be read: {message.body_size} bytes)"
    return f"{' '.join(parts)} {message.body.decode(errors='backslashreplace')}"


def _as_json(message: ReceivedMessage) -> str:
    body: dict[str, str | bool] = {"bodyBase64": base64.b64encode(message.raw_body).decode()}
    if not message.is_readable:
        body["bodyIsCompressed"] = True
    else:
        with contextlib.suppress(UnicodeDecodeError):
            body = {"body": message.body.decode()}
    return orjson.dumps(
        {
            "topic": message.topic,
            "brokerName": message.queue.broker_name,
            "queueId": message.queue.queue_id,
            "queueOffset": message.queue_offset,
            "msgId": message.msg_id,
            "offsetMsgId": message.offset_msg_id,
            "tags": message.tags,
            "keys": message.keys,
            "flag": message.flag,
            "reconsumeTimes": message.reconsume_times,
            "bornTimestamp": message.born_timestamp,
            "storeTimestamp": message.store_timestamp,
            "properties": message.properties,
            "systemProperties": message.system_properties,
            **body,
        }
    ).decode()
