"""The commands of `pyromq admin` about offsets of consumer groups."""

from __future__ import annotations

import re
from typing import Final

import click

from pyromq.admin.groups.groups import unknown_group
from pyromq.admin.groups.offsets import END, OffsetChanges
from pyromq.cli.admin.options import flag_value_option, text_option, topic_option
from pyromq.cli.admin.output import cell
from pyromq.cli.admin.running import Run, admin_command
from pyromq.cli.admin.times import Timestamp

_QUEUE_OFFSET: Final = re.compile(r"([^:=]+):(\d{1,9})=(\d{1,18})", re.ASCII)
_force_option = flag_value_option(
    "-f",
    "--force",
    "force",
    "With false, queues are only moved back, never forward.",
    default="true",
)


@admin_command("resetOffsetByTime", destructive=True)
@text_option("-g", "--group", "group", "Move this group.", required=True)
@topic_option("Move it in this topic.")
@click.option(
    "-s",
    "--timestamp",
    "time_text",
    metavar="TIME",
    required=True,
    help="Move it to this time: now (the end), currentTimeMillis, milliseconds since the epoch, or "
    "yyyy-MM-dd#HH:mm:ss:SSS.",
)
@_force_option
@click.option("-c", "--cplus", "for_cpp", is_flag=True, help="Move a group of C++ clients.")
async def reset_offset_by_time(
    run: Run, group: str, topic: str, time_text: str, force: bool, for_cpp: bool
) -> None:
    """Move a consumer group to a time, in all queues of a topic.

    Members that are online move by themselves within seconds; the offsets of an offline group are
    written to the brokers. --dry-run shows the offsets before and after.

    \b
    Examples
        pyromq admin resetOffsetByTime -g billing -t orders -s '2026-11-17#08:00:00:000'
    """
    time_text = time_text.strip()
    timestamp = Timestamp(allow_now=True).convert(time_text, None, None)
    change = f"Move group {group} in topic {topic} to {time_text}"
    if not run.dry_run and not run.confirmed(change):
        return
    changes = await run.admin.offsets.reset_to_time(
        group, topic, timestamp, force=force, dry_run=run.dry_run, for_cpp=for_cpp
    )
    name = "group" if changes.online else "consumerGroup"
    line = (
        f"rollback consumer offset by specified {name}[{group}], topic[{topic}], "
        f"force[{cell(force)}], timestamp(string)[{time_text}], timestamp(long)[{timestamp}]"
    )
    _show(run, changes, line)


@admin_command("skipAccumulatedMessage", destructive=True)
@text_option("-g", "--group", "group", "Move this group.", required=True)
@topic_option("Move it in this topic.")
@_force_option
async def skip_accumulated_message(run: Run, group: str, topic: str, force: bool) -> None:
    """Move a consumer group to the end: it will not consume what has accumulated.

    \b
    Examples
        pyromq admin skipAccumulatedMessage -g billing -t orders --dry-run
    """
    if not run.dry_run and not run.confirmed(
        f"Let group {group} skip all messages of topic {topic} that it has not consumed"
    ):
        return
    changes = await run.admin.offsets.reset_to_time(
        group, topic, END, force=force, dry_run=run.dry_run
    )
    _show(run, changes)


@admin_command("cloneGroupOffset", destructive=True)
@text_option("-s", "--srcGroup", "source", "Copy the offsets of this group.", required=True)
@text_option("-d", "--destGroup", "target", "Give them to this group.", required=True)
@topic_option("Copy the offsets in this topic.")
@flag_value_option(
    "-o",
    "--offline",
    "offline",
    "With true, fail if members of the target group are connected: they would overwrite the "
    "offsets.",
)
async def clone_group_offset(
    run: Run, source: str, target: str, topic: str, offline: bool | None
) -> None:
    """Give a consumer group the offsets of another one in a topic.

    mqadmin 4.9.7 copies the offsets in all topics of the group, whatever -t says; this command
    copies those in the topic.

    \b
    Examples
        pyromq admin cloneGroupOffset -s billing -d audit -t orders
    """
    if not run.dry_run and not run.confirmed(
        f"Give group {target} the offsets of group {source} in topic {topic}"
    ):
        return
    changes = await run.admin.offsets.clone(
        source, target, topic, even_if_online=not offline, dry_run=run.dry_run
    )
    if run.dry_run or run.is_terminal:
        _show(run, changes)
        return
    run.result(changes)
    run.line(
        f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
    )


@admin_command("setOffset", destructive=True)
@text_option("-g", "--group", "group", "Move this group.", required=True)
@topic_option("Move it in this topic.")
@click.option(
    "-o",
    "--offset",
    "offsets",
    metavar="BROKER:QUEUE=OFFSET",
    multiple=True,
    required=True,
    help="Set the offset of a queue. Repeat the option for several queues.",
)
@click.option(
    "--even-if-online",
    is_flag=True,
    help="Set offsets although members of the group are connected and may overwrite them.",
)
async def set_offset(
    run: Run, group: str, topic: str, offsets: tuple[str, ...], even_if_online: bool
) -> None:
    """Set exact offsets of a consumer group, queue by queue. mqadmin has no such command.

    The group must be offline, because connected members overwrite offsets within seconds.

    \b
    Examples
        pyromq admin setOffset -g billing -t orders -o broker-a:0=1200 -o broker-a:1=1180
    """
    wanted = dict(map(_queue_offset, offsets))
    if not run.dry_run and not run.confirmed(
        f"Set {len(wanted)} offset{'s' if len(wanted) > 1 else ''} of group {group} in {topic}"
    ):
        return
    changes = await run.admin.offsets.set_exact(
        group, topic, wanted, even_if_online=even_if_online, dry_run=run.dry_run
    )
    _show(run, changes)


@admin_command("previewOffsets", watch=True)
@text_option("-g", "--group", "group", "Look at this group.", required=True)
@topic_option("Look at this topic.")
@text_option(
    "-s",
    "--timestamp",
    "time_text",
    "Show where a reset to this time would move it: now, currentTimeMillis, milliseconds, or "
    "yyyy-MM-dd#HH:mm:ss:SSS.",
    metavar="TIME",
)
async def preview_offsets(run: Run, group: str, topic: str, time_text: str | None) -> None:
    """Show the offsets of a group in a topic, and where a reset would move them.

    Nothing is changed. mqadmin has no such command.

    \b
    Examples
        pyromq admin previewOffsets -g billing -t orders -s now
    """
    if time_text is not None:
        timestamp = Timestamp(allow_now=True).convert(time_text, None, None)
        _show(run, await run.admin.offsets.reset_to_time(group, topic, timestamp, dry_run=True))
        return
    offsets = await run.admin.offsets.committed(group, topic)
    if all(each.offset is None for each in offsets):
        problem = f"has no offsets in topic {topic!r}"
        raise await unknown_group(run.admin.session, group, problem)
    run.result(offsets)
    run.table(
        ("#brokerName", "#queueId", "#minOffset", "#maxOffset", "#offset"),
        [
            (
                each.queue.broker_name,
                each.queue.queue_id,
                each.min_offset,
                each.max_offset,
                "none" if each.offset is None else each.offset,
            )
            for each in offsets
        ],
        numbers=("#queueId", "#minOffset", "#maxOffset", "#offset"),
    )


def _show(run: Run, changes: OffsetChanges, line: str = "") -> None:
    """Print changes: mqadmin's columns for a change, before and after for a preview."""
    run.result(changes)
    if changes.dry_run:
        run.line("dry run, nothing is changed")
    elif line:
        run.line(line)
    if changes.online and not changes.dry_run and not run.is_terminal:
        run.table(
            ("#brokerName", "#queueId", "#offset"),
            [(each.queue.broker_name, each.queue.queue_id, each.after) for each in changes.changes],
        )
        return
    numbers = (
        "#queueId",
        "#brokerOffset",
        "#consumerOffset",
        "#timestampOffset",
        "#rollbackOffset",
    )
    run.table(
        ("#brokerName", *numbers),
        [
            (
                each.queue.broker_name,
                each.queue.queue_id,
                each.max_offset,
                # As in Java, a group without an offset counts as one at the first message.
                each.min_offset if each.before is None else each.before,
                each.wanted,
                each.after,
            )
            for each in changes.changes
        ],
        numbers=numbers,
    )


def _queue_offset(text: str) -> tuple[tuple[str, int], int]:
    found = _QUEUE_OFFSET.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(
            f"{text!r}: write the broker's name, the queue id and the offset as broker-a:0=1200",
            param_hint="--offset",
        )
    return (found[1], int(found[2])), int(found[3])
