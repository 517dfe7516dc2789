"""The commands of `pyromq admin` that print the messages of a topic or a queue."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

import click

from pyromq.admin.errors import NotFoundError
from pyromq.admin.message_view import MessageView
from pyromq.admin.queue_reader import PullStatus
from pyromq.base.clock import now_ms
from pyromq.base.progress import count_progress
from pyromq.cli.admin.message import end_option, expression_option
from pyromq.cli.admin.message_text import message_json, message_line, queue_text
from pyromq.cli.admin.options import flag_value_option, text_option, topic_option
from pyromq.cli.admin.running import Run, admin_command
from pyromq.cli.admin.times import Timestamp
from pyromq.protocol.wire.bodies import MessageQueue

#: The number of messages that mqadmin reads.
_CONSUME_COUNT: Final = 128


class _Charset(click.ParamType[str]):
    """The name of a character set."""

    name = "charset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return codecs.lookup(value.strip()).name
        except LookupError:
            self.fail(
                f"{value!r} is not a character set: give UTF-8 or GBK, for example", param, ctx
            )


_charset_option = click.option(
    "-c",
    "--charsetName",
    "charset",
    type=_Charset(),
    default="UTF-8",
    help="Print bodies in this character set.",
)
_begin_option = click.option(
    "-b", "--beginTimestamp", "begin", type=Timestamp(), help="Begin at this time."
)


@admin_command("printMsg")
@topic_option("Print the messages of this topic.")
@_charset_option
@expression_option
@_begin_option
@end_option
@flag_value_option("-d", "--printBody", "bodies", "Print bodies.", default="true")
async def print_msg(
    run: Run,
    topic: str,
    charset: str,
    expression: str | None,
    begin: int | None,
    end: int | None,
    bodies: bool,
) -> None:
    """Print the messages of a topic, queue by queue.

    With --json, one JSON value per message is printed.

    \b
    Examples
        pyromq admin printMsg -t orders -s 'new || paid'
    """
    for queue, _ in await run.admin.messages.queues(topic):
        first, last = await run.admin.messages.bounds(queue, begin, end)
        run.line(f"minOffset={first}, maxOffset={last}, {queue_text(queue)}")
        async for message in _with_bar(
            run,
            run.admin.messages.read(queue, first, last, subscription=expression or "*"),
            first,
            last,
        ):
            run.result(message_json(message))
            run.line(message_line(message, charset, body=bodies))
        run.line("-" * 56)


@admin_command("printMsgByQueue")
@topic_option("Print a queue of this topic.")
@text_option("-a", "--brokerName", "broker_name", "Read it at this broker.", required=True)
@click.option(
    "-i", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="Read this queue."
)
@_charset_option
@expression_option
@_begin_option
@end_option
@flag_value_option("-p", "--printMsg", "messages", "Print the messages.", default="false")
@flag_value_option("-d", "--printBody", "bodies", "Print bodies, too.", default="false")
@flag_value_option("-f", "--calculate", "count_tags", "Count the tags.", default="false")
async def print_msg_by_queue(
    run: Run,
    topic: str,
    broker_name: str,
    queue_id: int,
    charset: str,
    expression: str | None,
    begin: int | None,
    end: int | None,
    messages: bool,
    bodies: bool,
    count_tags: bool,
) -> None:
    """Print the messages of one queue, or count their tags.

    With --json, one JSON value per message and one with the counts is printed.

    \b
    Examples
        pyromq admin printMsgByQueue -t orders -a broker-a -i 0 -f true
    """
    queue = MessageQueue(topic, broker_name, queue_id)
    first, last = await run.admin.messages.bounds(queue, begin, end)
    counts: Counter[str] = Counter()
    async for message in _with_bar(
        run,
        run.admin.messages.read(queue, first, last, subscription=expression or "*"),
        first,
        last,
    ):
        if message.tags.strip():
            counts[message.tags] += 1
        if messages:
            run.result(message_json(message))
            run.line(message_line(message, charset, body=bodies))
    if count_tags:
        run.result({"tags": dict(counts.most_common())})
        for tag, count in counts.most_common():
            run.line(f"Tag: {tag:<30} Count: {count}")


@admin_command("consumeMessage")
@topic_option("Read this topic.")
@text_option("-b", "--brokerName", "broker_name", "Read a queue of this broker.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="Read this queue.")
@click.option("-o", "--offset", type=click.IntRange(0), help="Begin at this queue offset.")
@text_option("-g", "--consumerGroup", "group", "Read in the name of this group.")
@click.option("-s", "--beginTimestamp", "begin", type=Timestamp(), help="Begin at this time.")
@end_option
@click.option(
    "-c",
    "--MessageNumber",
    "count",
    type=click.IntRange(1),
    default=_CONSUME_COUNT,
    show_default=True,
    help="Read at most this many messages.",
)
async def consume_message(
    run: Run,
    topic: str,
    broker_name: str | None,
    queue_id: int | None,
    offset: int | None,
    group: str | None,
    begin: int | None,
    end: int | None,
    count: int,
) -> None:
    """Read messages of a topic, or of one queue from an offset on; no offset is committed.

    With --json, one JSON value per message is printed.

    \b
    Examples
        pyromq admin consumeMessage -t orders -b broker-a -i 0 -o 1200 -c 5
    """
    if queue_id is not None and broker_name is None:
        raise click.UsageError("Give -b/--brokerName together with -i/--queueId.")
    if offset is not None and queue_id is None:
        raise click.UsageError("Give -i/--queueId together with -o/--offset.")
    _check_times(begin, end)
    if queue_id is not None and broker_name is not None:
        queue = MessageQueue(topic, broker_name, queue_id)
        first, last = await run.admin.messages.bounds(queue, begin, end)
        if offset is not None and offset > last:
            raise NotFoundError(f"{queue_text(queue)} no matched msg, offset={offset}")
        first = max(first, offset or 0)
        if last - first > count:
            run.line(f"The oldler {count} message will be provided")
            last = first + count - 1
        await _consume(run, queue, first, last, group)
        return
    left = count
    for queue, _ in await run.admin.messages.queues(topic):
        if left <= 0:
            return
        first, last = await run.admin.messages.bounds(queue, begin, end)
        if last - first > left:
            run.line(f"The older {left} message of the {queue.queue_id} queue will be provided")
            last = first + left - 1
            left = 0
        else:
            left -= last - first
        await _consume(run, queue, first, last, group)


async def _consume(run: Run, queue: MessageQueue, first: int, last: int, group: str | None) -> None:
    """Pull as mqadmin does: up to `last`, and once more to see the end of the queue."""
    offset = first
    while offset <= last:
        pulled = await run.admin.messages.pull(queue, offset, last - offset + 1, group=group)
        if pulled.status is PullStatus.FOUND:
            run.line("Consume ok")
            for message in pulled.messages:
                run.result(message_json(message))
                run.line(message_line(message, "utf-8", body=True))
        elif pulled.status is PullStatus.NO_MATCHED_MSG:
            run.line(
                f"{queue_text(queue)} no matched msg. status={pulled.status.name}, "
                f"offset={pulled.next_offset}"
            )
        else:
            run.line(
                f"{queue_text(queue)} print msg finished. status={pulled.status.name}, "
                f"offset={pulled.next_offset}"
            )
            return
        if pulled.next_offset <= offset:
            return
        offset = pulled.next_offset


def _check_times(begin: int | None, end: int | None) -> None:
    now = now_ms()
    if begin is not None and begin > now:
        raise click.UsageError("The time of -s/--beginTimestamp is in the future.")
    if end is not None and end > now:
        raise click.UsageError("The time of -e/--endTimestamp is in the future.")
    if begin is not None and end is not None and begin > end:
        raise click.UsageError("-s/--beginTimestamp is after -e/--endTimestamp.")


async def _with_bar(
    run: Run, messages: AsyncIterator[MessageView], first: int, last: int
) -> AsyncIterator[MessageView]:
    """Show a progress bar on a terminal's stderr while messages go elsewhere."""
    if run.is_terminal:
        async for message in messages:
            yield message
        return
    with count_progress(is_transient=True) as bar:
        task = bar.add_task("messages", total=max(0, last - first))
        async for message in messages:
            bar.update(task, completed=message.queue_offset - first + 1)
            yield message
