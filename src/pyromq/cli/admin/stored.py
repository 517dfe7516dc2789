"""The commands of `pyromq admin` about dead letters, half messages and delayed messages.

mqadmin has none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from pyromq.admin.errors import AdminError
from pyromq.admin.messages.dead_letters import (
    DeadLetter,
    DeadLetterGroup,
    ResendProgress,
    ResendResult,
    dead_letter,
)
from pyromq.admin.messages.messages import MAX_TIMESTAMP
from pyromq.base.progress import count_progress
from pyromq.cli.admin.message_text import (
    body_text,
    message_json,
    note_more,
    properties_text,
)
from pyromq.cli.admin.options import text_option, topic_option
from pyromq.cli.admin.output import time_text
from pyromq.cli.admin.running import Run, admin_command, showing_partial_results
from pyromq.cli.admin.times import Timestamp

_MAX_FAILURES_SHOWN: Final = 5

_limit_option = click.option(
    "--limit",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Show at most this many.",
)
_group_option = text_option(
    "-g", "--groupName", "group", "Take the dead letters of this consumer group.", required=True
)
_begin_option = click.option(
    "-b",
    "--beginTimestamp",
    "begin",
    type=Timestamp(),
    default=0,
    help="Take those stored at or after this time: milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS.",
)
_end_option = click.option(
    "-e",
    "--endTimestamp",
    "end",
    type=Timestamp(),
    default=MAX_TIMESTAMP,
    help="Take those stored up to this time.",
)


# Dead letters


@admin_command("dlqList", watch=True)
async def dlq_list(run: Run) -> None:
    """List the consumer groups that have dead letters, those with most first.

    \b
    Examples
        pyromq admin dlqList --watch 10
    """

    def show(groups: Sequence[DeadLetterGroup]) -> None:
        run.result(groups)
        run.table(
            ("#Group", "#Count", "#Last Stored", "#Brokers"),
            [
                (
                    each.group,
                    each.count,
                    time_text(each.last_stored) if each.last_stored > 0 else "N/A",
                    ", ".join(f"{queue.broker_name}: {queue.count}" for queue in each.queues),
                )
                for each in groups
            ],
            numbers=("#Count",),
        )

    with showing_partial_results(show):
        show(await run.admin.dead_letters.groups())


@admin_command("dlqShow")
@_group_option
@_begin_option
@_end_option
@_limit_option
@click.option("--full", is_flag=True, help="Show properties and bodies, too.")
async def dlq_show(run: Run, group: str, begin: int, end: int, limit: int, full: bool) -> None:
    """Show dead letters of a consumer group, the oldest first.

    A note on stderr says so if there are more.

    \b
    Examples
        pyromq admin dlqShow -g billing --full
    """
    found = await run.admin.dead_letters.find(group, begin=begin, end=end, limit=limit)
    letters = [dead_letter(message) for message in found.messages]
    run.result(
        {
            "dead_letters": [_letter_json(each) for each in letters],
            "complete": found.complete,
            "reason": found.reason,
        }
    )
    more = ("#Properties", "#Body") if full else ()
    run.table(
        (
            "#Message ID",
            "#Offset ID",
            "#Broker Name",
            "#Offset",
            "#Stored",
            "#Origin Topic",
            "#Retries",
            "#Tags",
            "#Keys",
            *more,
        ),
        [_letter_row(each, full=full) for each in letters],
        numbers=("#Offset", "#Retries"),
    )
    note_more(run, complete=found.complete, reason=found.reason)


def _letter_json(letter: DeadLetter) -> dict[str, object]:
    return {
        "origin_topic": letter.origin_topic,
        "origin_msg_id": letter.origin_msg_id,
        "message": message_json(letter.message),
    }


def _letter_row(letter: DeadLetter, *, full: bool) -> tuple[object, ...]:
    message = letter.message
    row = (
        message.msg_id,
        message.offset_msg_id,
        message.broker_name,
        message.queue_offset,
        time_text(message.store_timestamp),
        letter.origin_topic,
        message.reconsume_times,
        message.tags,
        message.keys,
    )
    return (*row, properties_text(message), body_text(message, "utf-8")) if full else row


@admin_command("dlqResend", destructive=True)
@_group_option
@topic_option("Send them to this topic instead of their original ones.", required=False)
@click.option(
    "--retry",
    "to_retry_topic",
    is_flag=True,
    help="Send them to the group's retry topic, which no other group consumes.",
)
@_begin_option
@_end_option
@click.option("--limit", type=click.IntRange(1), help="Resend at most this many, the first ones.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Send at most this many messages per second.",
)
@click.option(
    "--run",
    "run_name",
    default="",
    metavar="NAME",
    help="Name this resend. Each dead letter is resent once under the same name.",
)
async def dlq_resend(
    run: Run,
    group: str,
    topic: str | None,
    to_retry_topic: bool,
    begin: int,
    end: int,
    limit: int | None,
    rate: float | None,
    run_name: str,
) -> None:
    """Send copies of the dead letters of a consumer group, which need not be online.

    Copies go to the topic of each original message, where every group that subscribes to it gets
    them, to another topic (-t), or to the group's retry topic (--retry). The dead letters stay.

    Each dead letter is resent once, however often the command is repeated or killed: a copy
    carries the identity of its dead letter, and a repeated run finds the copies again. To resend
    dead letters a second time, give the run another name (--run). --dry-run counts both.

    \b
    Examples
        pyromq admin dlqResend -g billing --dry-run
        pyromq admin dlqResend -g billing --rate 200
        pyromq admin dlqResend -g billing --retry -b '2026-11-17#08:00:00:000'
    """
    target = "the retry topic" if to_retry_topic else topic or "their original topics"
    if not run.dry_run and not run.confirmed(f"Resend dead letters of group {group} to {target}"):
        return
    with _progress_bar(run) as report:
        result = await run.admin.dead_letters.resend(
            group,
            to=topic,
            to_retry_topic=to_retry_topic,
            run=run_name,
            rate=rate,
            begin=begin,
            end=end,
            limit=limit,
            dry_run=run.dry_run,
            on_progress=report,
        )
    run.result(result)
    _show_resend(run, result)
    if result.failures:
        raise AdminError(f"{len(result.failures)} dead letters were not resent")


@contextmanager
def _progress_bar(run: Run) -> Iterator[Callable[[ResendProgress], None]]:
    """Show a progress bar on a terminal's stderr; yields the function that takes reports."""
    with count_progress(is_transient=True) as bar:
        task = bar.add_task("dead letters", total=None)
        is_waiting = False

        def report(progress: ResendProgress) -> None:
            nonlocal is_waiting
            if progress.waiting and not is_waiting:
                is_waiting = True
                run.note(
                    "waiting for another resend of these dead letters to end; after a killed one, "
                    "brokers of Apache RocketMQ keep its lock for 60 s"
                )
            bar.update(task, completed=progress.done, total=progress.total)

        yield report


def _show_resend(run: Run, result: ResendResult) -> None:
    if result.dry_run:
        run.line(
            f"dry run, nothing is sent: {result.selected - result.already_sent} dead letters would "
            f"be resent, {result.already_sent} have been"
        )
        run.table(
            ("#Origin Topic", "#Count"),
            [(topic or "unknown", count) for topic, count in sorted(result.by_topic.items())],
            numbers=("#Count",),
        )
        return
    run.line(
        f"{result.selected} dead letters: {result.sent} resent, {result.already_sent} had been "
        f"resent before, {len(result.failures)} failed"
    )
    if not result.complete:
        run.line("there are more: --limit ended the resend")
    for msg_id, problem in list(result.failures.items())[:_MAX_FAILURES_SHOWN]:
        run.note(f"{msg_id}: {problem}")


# Transactions


@admin_command("halfMessages", watch=True)
@topic_option("Show only transactions of this topic.", required=False)
@text_option("-g", "--producerGroup", "group", "Show only transactions of this producer group.")
@click.option("--abandoned", is_flag=True, help="Show those that brokers have given up.")
@text_option(
    "-r",
    "--resume",
    "resumed",
    "Have the broker ask about the abandoned message with this id again.",
    metavar="ID",
)
@_limit_option
async def half_messages(
    run: Run,
    topic: str | None,
    group: str | None,
    abandoned: bool,
    resumed: str | None,
    limit: int,
) -> None:
    """Show transactions that are neither committed nor rolled back, the oldest first.

    \b
    Examples
        pyromq admin halfMessages -g shop
    """
    if resumed is not None:
        await run.admin.half_messages.resume(resumed)
        run.result({"resumed": resumed})
        run.line(f"resume check of half message [{resumed}] success.")
        return
    if abandoned:
        found = await run.admin.half_messages.abandoned(limit=limit)
        run.result(
            {
                "messages": [message_json(each) for each in found.messages],
                "complete": found.complete,
                "reason": found.reason,
            }
        )
        run.table(
            ("#Message ID", "#Offset ID", "#Broker Name", "#Stored", "#Properties"),
            [
                (
                    each.msg_id,
                    each.offset_msg_id,
                    each.broker_name,
                    time_text(each.store_timestamp),
                    properties_text(each),
                )
                for each in found.messages
            ],
        )
        note_more(run, complete=found.complete, reason=found.reason)
        return
    halves = await run.admin.half_messages.find(topic=topic, producer_group=group, limit=limit)
    run.result(
        {
            "messages": [
                {
                    "topic": each.topic,
                    "queue_id": each.queue_id,
                    "producer_group": each.producer_group,
                    "checks": each.checks,
                    "age_ms": each.age_ms,
                    "message": message_json(each.message),
                }
                for each in halves.messages
            ],
            "complete": halves.complete,
            "reason": halves.reason,
        }
    )
    run.table(
        ("#Message ID", "#Topic", "#QID", "#Producer Group", "#Checks", "#Age ms", "#Broker Name"),
        [
            (
                each.message.msg_id,
                each.topic,
                each.queue_id,
                each.producer_group,
                each.checks,
                each.age_ms,
                each.message.broker_name,
            )
            for each in halves.messages
        ],
        numbers=("#QID", "#Checks", "#Age ms"),
    )
    note_more(run, complete=halves.complete, reason=halves.reason)


# Delays


@admin_command("delayedMessages", watch=True)
@topic_option("Show only messages for this topic.", required=False)
@click.option("-l", "--level", type=click.IntRange(1), help="Show only this delay level.")
@click.option(
    "-e",
    "--endTimestamp",
    "until",
    type=Timestamp(),
    help="Show only messages that will be delivered up to this time.",
)
@click.option("--levels", is_flag=True, help="Show how many messages wait at each level.")
@_limit_option
async def delayed_messages(
    run: Run,
    topic: str | None,
    level: int | None,
    until: int | None,
    levels: bool,
    limit: int,
) -> None:
    """Show delayed messages, the next one to be delivered first.

    \b
    Examples
        pyromq admin delayedMessages -t orders --levels
    """
    if levels:
        states = await run.admin.delayed.levels()
        run.result(states)
        run.table(
            ("#Broker Name", "#Level", "#Delay", "#Waiting", "#Next Due", "#Last Due"),
            [
                (
                    each.broker_name,
                    each.level,
                    each.delay,
                    each.waiting,
                    time_text(each.next_due) if each.next_due else "N/A",
                    time_text(each.last_due) if each.last_due else "N/A",
                )
                for each in states
            ],
            numbers=("#Level", "#Waiting"),
        )
        return
    found = await run.admin.delayed.find(topic=topic, level=level, until=until, limit=limit)
    run.result(
        {
            "messages": [
                {
                    "due": each.due,
                    "level": each.level,
                    "delay": each.delay,
                    "topic": each.topic,
                    "queue_id": each.queue_id,
                    "message": message_json(each.message),
                }
                for each in found.messages
            ],
            "by_topic": found.by_topic,
            "complete": found.complete,
            "reason": found.reason,
        }
    )
    run.table(
        ("#Due", "#Level", "#Delay", "#Topic", "#QID", "#Message ID", "#Broker Name"),
        [
            (
                time_text(each.due),
                each.level,
                each.delay,
                each.topic,
                each.queue_id,
                each.message.msg_id,
                each.message.broker_name,
            )
            for each in found.messages
        ],
        numbers=("#Level", "#QID"),
    )
    note_more(run, complete=found.complete, reason=found.reason)
