"""`pyromq consume`: a topic's messages on the screen or in a pipe, as they come."""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click
import orjson

from pyromq.cli.running import namesrv_option, run_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyromq.client import PullConsumer, ReceivedMessage

_TOPIC_PAUSE_SECONDS = 1.0
_RATE_SECONDS = 1.0


@click.command()
@click.argument("topic")
@click.option("--group", help="Read as a member of this consumer group and commit its offsets.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["first", "last"]),
    default="last",
    show_default=True,
    help="Begin with the first message, or with those that come from now on. "
    "A group with committed offsets goes on from those.",
)
@click.option("--tags", default="*", help="Only messages with these tags, as 'a || b'.")
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@namesrv_option
def consume(
    topic: str,
    group: str | None,
    start: str,
    tags: str,
    count: int | None,
    as_json: bool,
    namesrv: str,
) -> None:
    """Print the messages of TOPIC as they come; Ctrl-C ends.

    Without --group every message of every queue is printed and nothing is remembered. With
    --group the topic's queues are divided among all members of the group, whatever program
    they are, and what was printed is not printed again.

    \b
    Examples
        pyromq consume greetings --from first
        pyromq consume orders --tags 'new || paid' --group audit
        pyromq consume orders --json --count 100 > orders.jsonl
    """
    run_client(_consume(namesrv, topic, group, start, tags, count, as_json))


async def _consume(
    namesrv: str,
    topic: str,
    group: str | None,
    start: str,
    tags: str,
    count: int | None,
    as_json: bool,
) -> None:
    from pyromq.client import PullConsumer, StartFrom

    seen = 0
    async with PullConsumer(
        namesrv, topic, group=group, tags=tags, start_from=StartFrom(start)
    ) as consumer:
        await _take_queues(consumer)
        with _printing() as write:
            async for message in consumer:
                write(_as_json(message) if as_json else _as_text(message))
                seen += 1
                if seen == count:
                    break


async def _take_queues(consumer: PullConsumer) -> None:
    """Begin to read, as soon as there is such a topic."""
    from pyromq.client import TopicNotFoundError

    waiting = False
    while True:
        try:
            if consumer.group is None:
                await consumer.assign(await consumer.queues())
            else:
                await consumer.subscribe()
        except TopicNotFoundError:
            if not waiting:
                click.echo(f"Topic {consumer.topic} does not exist yet: waiting for it.", err=True)
            waiting = True
            await asyncio.sleep(_TOPIC_PAUSE_SECONDS)
        else:
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
        stored.strftime("%H:%M:%S.") + f"{message.store_timestamp % 1000:03d}",
        f"{message.queue.broker_name}:{message.queue.queue_id}#{message.queue_offset}",
    ]
    parts += [f"tags={message.tags}"] if message.tags else []
    parts += [f"keys={message.keys}"] if message.keys else []
    return f"{' '.join(parts)} {message.body.decode(errors='backslashreplace')}"


def _as_json(message: ReceivedMessage) -> str:
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyBase64": base64.b64encode(message.body).decode()}
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
            **body,
        }
    ).decode()
