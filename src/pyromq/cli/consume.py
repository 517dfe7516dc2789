"""`pyromq consume`: print the messages of a topic as they arrive.

Messages go to stdout: plain lines into a pipe, or lines above a live rate on a terminal.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import click
import orjson

from pyromq.cli.client_options import Cluster, client_options
from pyromq.cli.running import run_client
from pyromq.client import (
    LitePullConsumer,
    ReceivedMessage,
    StartFrom,
    Subscription,
    TopicNotFoundError,
)

_TOPIC_POLL_SECONDS = 1.0
_RATE_REFRESH_SECONDS = 1.0


@click.command()
@click.argument("topic")
@click.option("--group", help="Join this consumer group and commit its offsets.")
@click.option(
    "--from",
    "start",
    metavar="first|last|TIME",
    default="last",
    show_default=True,
    help="Start with the first message, with messages that arrive from now on, or with messages "
    "since a time such as 2026-11-01T12:30. A group resumes from its committed offsets.",
)
@click.option("--tags", default="*", help="Print messages with these tags only, as in 'a || b'.")
@click.option("--sql", help="Print messages whose properties match this SQL92 expression only.")
@click.option("--count", type=click.IntRange(1), help="Exit after this many messages.")
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
    """Print the messages of TOPIC as they arrive, until Ctrl-C or a closed pipe.

    Each line starts with the time at which the message was stored, with its time zone.

    Without --group, the command reads all queues and commits no offsets. With --group, it shares
    the queues with all other members of the group, in any language, and a later run resumes after
    the last printed message.

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
    """Parse the value of `--from`; `pyromq bench` calls this as well."""
    try:
        return StartFrom(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--from {text!r}: expected first, last or a time such as 2026-11-01T12:30"
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
                    click.echo(f"Topic {topic} does not exist yet, waiting for it.", err=True)
                is_waiting = True
                # Once the topic exists, all of its messages are new.
                start = StartFrom.FIRST
            else:
                await _print(consumer, count, as_json)
                return
        await asyncio.sleep(_TOPIC_POLL_SECONDS)


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
    """Yield a function that prints a line, on a terminal above a live rate."""
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
    """Messages per second, recomputed each second."""

    def __init__(self) -> None:
        self._total = self._since = 0
        self._rate = 0.0
        self._updated_at = time.monotonic()

    def count(self) -> bool:
        """Count a message; return whether the rate has changed."""
        self._total += 1
        self._since += 1
        elapsed = time.monotonic() - self._updated_at
        if elapsed < _RATE_REFRESH_SECONDS and self._total > 1:
            return False
        self._rate = self._since / max(elapsed, 0.001)
        self._since = 0
        self._updated_at += elapsed
        return True

    def text(self) -> str:
        """Return the rate line."""
        return f"{self._total:,} messages, {self._rate:,.0f}/s, waiting for more (Ctrl-C to stop)"


def _as_text(message: ReceivedMessage) -> str:
    stored = datetime.fromtimestamp(message.store_timestamp / 1000).astimezone()
    parts = [
        stored.isoformat(timespec="milliseconds"),
        f"{message.queue.broker_name}:{message.queue.queue_id}#{message.queue_offset}",
    ]
    parts += [f"tags={message.tags}"] if message.tags else []
    parts += [f"keys={message.keys}"] if message.keys else []
    if not message.is_readable:
        return f"{' '.join(parts)} (cannot decompress the body of {message.body_size} bytes)"
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
