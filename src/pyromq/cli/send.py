"""`pyromq send`: messages from the command line."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyromq.cli.client_options import Cluster, client_options
from pyromq.cli.running import run_client

if TYPE_CHECKING:
    from pyromq.client import Message

#: How many sends are under way at once.
_WINDOW = 64
#: As `pyromq.client.message` has it, which is not loaded for a help text.
_MAX_DELAY_LEVEL = 18


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--file", "file", metavar="FILE", help="Send the content of FILE; - is stdin.")
@click.option("--size", type=click.IntRange(1), help="Send a made-up body of so many bytes.")
@click.option("--tags", default="", help="What consumers can select by.")
@click.option("--keys", default="", help="Words by which the message can be found, with blanks.")
@click.option("--property", "properties", metavar="NAME=VALUE", multiple=True, help="Repeatable.")
@click.option(
    "--delay-level",
    metavar="LEVEL",
    type=click.IntRange(1, _MAX_DELAY_LEVEL),
    default=None,
    help=f"Deliver it later: a level from 1 to {_MAX_DELAY_LEVEL} (1s 5s 10s 30s 1m ... 2h, unless "
    "brokers are configured otherwise).",
)
@click.option(
    "--ordering-key",
    metavar="KEY",
    default="",
    help="Messages with the same key go to the same queue, where they stay in order.",
)
@click.option("--count", type=click.IntRange(1), default=1, help="Send it so many times.")
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
    cluster: Cluster,
) -> None:
    """Send a message to TOPIC and print its id, queue and offset.

    BODY is the message's text; - reads it from stdin. A topic that does not exist is created,
    unless its brokers were told not to.

    \b
    Examples
        pyromq send greetings 'hello'
        pyromq send orders --file order.json --tags new --keys 'order-17 customer-4'
        date | pyromq send clock - --property source=cron
        pyromq send reminders 'wake up' --delay-level 5
        pyromq send orders --file order.json --ordering-key order-17
        pyromq send load --size 1024 --count 10000
    """
    from pyromq.client import Message

    message = Message(
        topic,
        _content(body, file, size),
        tags=tags,
        keys=keys,
        properties=dict(map(_property, properties)),
        delay_level=delay_level or 0,
        ordering_key=ordering_key,
    )
    run_client(_send(cluster, message, count))


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
            raise click.ClickException(f"{file} cannot be read: {error.strerror}") from error
    assert body is not None
    return body.encode(errors="surrogateescape")


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise click.UsageError(f"--property {text!r}: expected NAME=VALUE")
    return name, value


async def _send(cluster: Cluster, message: Message, count: int) -> None:
    from pyromq.client import Producer

    started = time.perf_counter()
    async with Producer(cluster.namesrv, **cluster.options) as producer:
        for first in range(0, count, _WINDOW):
            window = range(min(_WINDOW, count - first))
            for result in await asyncio.gather(*(producer.send(message) for _ in window)):
                queue = result.queue
                click.echo(
                    f"msgId={result.msg_id} queue={queue.broker_name}:{queue.queue_id} "
                    f"offset={result.queue_offset} {result.status.name}"
                )
    if count > 1:
        elapsed = time.perf_counter() - started
        click.echo(f"{count} messages in {elapsed:.2f} s, {count / elapsed:,.0f}/s", err=True)
