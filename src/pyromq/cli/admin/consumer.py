"""The commands of `pyromq admin` about consumer groups and the connections of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from pyromq.admin.errors import AdminError
from pyromq.admin.groups.connections import ClientConnection
from pyromq.admin.groups.groups import (
    GroupAtBroker,
    GroupProgress,
    GroupSettings,
    GroupStatus,
    GroupSummary,
)
from pyromq.admin.groups.monitoring import Monitor, MonitorRound
from pyromq.admin.groups.running_info import RunningInfo
from pyromq.base.clock import now_ms
from pyromq.cli.admin.options import (
    flag_value_option,
    target_options,
    text_option,
    topic_option,
)
from pyromq.cli.admin.output import cell, plain, second_text, time_text
from pyromq.cli.admin.running import Run, admin_command, showing_partial_results
from pyromq.protocol.names import dead_letter_topic, retry_topic
from pyromq.protocol.wire.bodies import ConsumeType, MessageQueue
from pyromq.protocol.wire.bodies_consumer import ProcessQueueInfo

_CLIENT_COLUMNS: Final = ("#ClientId", "#ClientAddr", "#Language", "#Version")
#: Java's order and names of a group's settings.
_SETTINGS: Final = (
    "groupName",
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeBroadcastEnable",
    "retryQueueNums",
    "retryMaxTimes",
    "brokerId",
    "whichBrokerWhenConsumeSlowly",
    "notifyConsumerIdsChangedEnable",
)


# Connections


@admin_command("consumerConnection", watch=True)
@text_option("-g", "--consumerGroup", "group", "Show the members of this group.", required=True)
@text_option("-b", "--brokerAddr", "broker", "Ask only this broker.", metavar="ADDRESS")
async def consumer_connection(run: Run, group: str, broker: str | None) -> None:
    """Show the connected members of a consumer group and its subscriptions.

    \b
    Examples
        pyromq admin consumerConnection -g billing
    """
    found = await run.admin.connections.consumers(group, broker=broker)
    run.result(found)
    run.table(_CLIENT_COLUMNS, map(_client_row, found.clients))
    run.line()
    run.line("Below is subscription:")
    run.table(
        ("#Topic", "#SubExpression"),
        [(each.topic, each.expression) for each in found.subscriptions],
    )
    run.line()
    run.line(f"ConsumeType: {_name(found.consume_type)}")
    run.line(f"MessageModel: {_name(found.message_model)}")
    run.line(f"ConsumeFromWhere: {_name(found.consume_from_where)}")


@admin_command("producerConnection", watch=True)
@text_option("-g", "--producerGroup", "group", "Show the members of this group.", required=True)
@topic_option("Ask the brokers of this topic.")
async def producer_connection(run: Run, group: str, topic: str) -> None:
    """Show the connected members of a producer group.

    \b
    Examples
        pyromq admin producerConnection -g shop -t orders
    """
    clients = await run.admin.connections.producers(group, topic)
    run.result(clients)
    run.table(
        ("#Number", *_CLIENT_COLUMNS),
        [(f"{number:04}", *_client_row(each)) for number, each in enumerate(clients, 1)],
        header=False,
    )


# Settings


@admin_command("updateSubGroup")
@target_options()
@text_option("-g", "--groupName", "group", "Create or change this group.", required=True)
@flag_value_option(
    "-s", "--consumeEnable", "consume", "Allow its members to consume.", default="true"
)
@flag_value_option(
    "-m",
    "--consumeFromMinEnable",
    "from_min",
    "Let a new group start at the first message.",
    default="false",
)
@flag_value_option(
    "-d",
    "--consumeBroadcastEnable",
    "broadcast",
    "Allow broadcasting consumers.",
    default="false",
)
@click.option(
    "-q",
    "--retryQueueNums",
    "retry_queues",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Give its retry topic this many queues.",
)
@click.option(
    "-r",
    "--retryMaxTimes",
    "max_retries",
    type=int,
    default=16,
    show_default=True,
    help="Make a message a dead letter after this many retries.",
)
@click.option(
    "-i",
    "--brokerId",
    "broker_id",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Let it consume from the broker with this id; 0 is the master.",
)
@click.option(
    "-w",
    "--whichBrokerWhenConsumeSlowly",
    "slow_broker_id",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Send it to the broker with this id if it lags far behind.",
)
@flag_value_option(
    "-a",
    "--notifyConsumerIdsChanged",
    "notify",
    "Tell its members at once when one joins or leaves.",
    default="true",
)
async def update_sub_group(
    run: Run,
    broker: str | None,
    cluster: str | None,
    group: str,
    consume: bool,
    from_min: bool,
    broadcast: bool,
    retry_queues: int,
    max_retries: int,
    broker_id: int,
    slow_broker_id: int,
    notify: bool,
) -> None:
    """Create a consumer group or change it, at a broker or at all masters of a cluster.

    As in mqadmin, options that are not given set their defaults.

    \b
    Examples
        pyromq admin updateSubGroup -c DefaultCluster -g billing -r 5
    """
    settings = GroupSettings(
        group,
        consume,
        from_min,
        broadcast,
        retry_queues,
        max_retries,
        broker_id,
        slow_broker_id,
        notify,
    )
    done = await run.admin.groups.update(settings, broker=broker, cluster=cluster)
    run.result({"brokers": done, "settings": settings})
    for address in done:
        run.line(f"create subscription group to {address} success.")
    run.line(f"SubscriptionGroupConfig [{', '.join(_pairs(settings))}]")


@admin_command("deleteSubGroup", destructive=True)
@target_options()
@text_option("-g", "--groupName", "group", "Delete this group.", required=True)
@flag_value_option(
    "-r", "--removeOffset", "remove_offsets", "Delete its offsets, too.", default="false"
)
async def delete_sub_group(
    run: Run, broker: str | None, cluster: str | None, group: str, remove_offsets: bool
) -> None:
    """Delete a consumer group, at a broker or at all masters of a cluster.

    At a cluster, its retry topic and its dead letters are deleted, too.

    \b
    Examples
        pyromq admin deleteSubGroup -c DefaultCluster -g billing --dry-run
    """
    await run.admin.groups.settings(group)  # fails for an unknown one before any question
    where = f"broker {broker}" if broker is not None else f"cluster {cluster}"
    topics = "" if cluster is None else " with its retry topic and its dead letters"
    if not run.confirmed(f"Delete group {group}{topics} from {where}"):
        return
    done = await run.admin.groups.delete(
        group, broker=broker, cluster=cluster, remove_offsets=remove_offsets
    )
    run.result({"group": group, "brokers": done})
    inside = f" in cluster [{cluster}]" if cluster is not None else ""
    for address in done:
        run.line(f"delete subscription group [{group}] from broker [{address}]{inside} success.")
    if cluster is not None:
        for topic in (retry_topic(group), dead_letter_topic(group)):
            run.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
            run.line(f"delete topic [{topic}] from NameServer success.")


@admin_command("getConsumerConfig")
@text_option("-g", "--groupName", "group", "Show the settings of this group.", required=True)
async def get_consumer_config(run: Run, group: str) -> None:
    """Show the settings of a consumer group at each broker.

    \b
    Examples
        pyromq admin getConsumerConfig -g billing
    """

    def show(found: Sequence[GroupAtBroker]) -> None:
        run.result(found)
        for each in found:
            line = "=" * 29
            run.line(f"{line}{each.cluster}:{each.broker_name}{line}")
            values = dict(zip(_SETTINGS, _values(each.settings), strict=True))
            run.pairs(values, "{:<40}=  {}")

    with showing_partial_results(show):
        show(await run.admin.groups.settings(group))


# Progress


@admin_command("consumerProgress", watch=True)
@text_option("-g", "--groupName", "group", "Show the queues of this group.")
@flag_value_option(
    "-s",
    "--showClientIP",
    "show_clients",
    "Show the address of the member that consumes each queue.",
    default="false",
)
async def consumer_progress(run: Run, group: str | None, show_clients: bool) -> None:
    """Show how far consumer groups are: all groups, or the queues of one.

    Diff is the number of messages that are not consumed yet; LastTime is when the last consumed
    message was stored.

    \b
    Examples
        pyromq admin consumerProgress -g billing --watch 5
    """
    if group is None:
        summaries = await run.admin.groups.summaries()
        run.result(summaries)
        _show_summaries(run, summaries)
        problems = {each.group: each.problem for each in summaries if each.problem}
        if problems:
            first = next(iter(problems.values()))
            raise AdminError(f"figures of {', '.join(problems)} are not complete: {first}")
        return

    def show(found: Sequence[GroupProgress]) -> None:
        for progress in found:
            run.result(progress)
            _show_progress(run, progress, show_clients=show_clients)

    with showing_partial_results(show):
        show([await run.admin.groups.progress(group, owners=show_clients)])


def _show_summaries(run: Run, summaries: list[GroupSummary]) -> None:
    run.table(
        ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"),
        [
            (
                each.group,
                each.count,
                each.version or "OFFLINE",
                _type_text(each),
                each.message_model
                if each.count and each.consume_type is ConsumeType.CONSUME_PASSIVELY
                else "",
                int(each.consume_tps),
                each.diff_total,
            )
            for each in summaries
        ],
        numbers=("#Count", "#TPS", "#Diff Total"),
    )


def _type_text(each: GroupSummary) -> str:
    if not each.count:
        return ""
    return "PULL" if each.consume_type is ConsumeType.CONSUME_ACTIVELY else "PUSH"


def _show_progress(run: Run, progress: GroupProgress, *, show_clients: bool) -> None:
    clients = ("#Client IP",) if show_clients else ()
    run.table(
        (
            "#Topic",
            "#Broker Name",
            "#QID",
            "#Broker Offset",
            "#Consumer Offset",
            *clients,
            "#Diff",
            "#LastTime",
        ),
        [
            (
                each.queue.topic,
                each.queue.broker_name,
                each.queue.queue_id,
                each.broker_offset,
                each.consumer_offset,
                *((each.client_ip or "N/A",) if show_clients else ()),
                each.diff,
                second_text(each.last_timestamp) if each.last_timestamp else "N/A",
            )
            for each in progress.queues
        ],
        numbers=("#QID", "#Broker Offset", "#Consumer Offset", "#Diff"),
    )
    run.line()
    run.line(f"Consume TPS: {progress.consume_tps:.2f}")
    run.line(f"Diff Total: {progress.diff_total}")


# Members


@admin_command("consumerStatus")
@text_option("-g", "--consumerGroup", "group", "Show the members of this group.", required=True)
@text_option("-i", "--clientId", "client_id", "Show only the member with this id.")
@text_option("-b", "--brokerAddr", "broker", "Ask this broker for the members.", metavar="ADDRESS")
@click.option("-s", "--jstack", "stacks", is_flag=True, help="Show the stacks of its threads, too.")
async def consumer_status(
    run: Run, group: str, client_id: str | None, broker: str | None, stacks: bool
) -> None:
    """Show what the members of a group report about themselves, and what is wrong.

    As in mqadmin, the report of each member is written to a file in the working directory, unless
    -i names one member or --json is given.

    \b
    Examples
        pyromq admin consumerStatus -g billing -s
    """
    if client_id is not None:
        info = await run.admin.groups.running_info(group, client_id, stacks=stacks)
        run.result(_info_json(info))
        run.line(_info_text(info))
        return
    status = await run.admin.groups.status(group, broker=broker, stacks=stacks)
    run.result(
        {
            "group": status.group,
            "same_subscription": status.same_subscription,
            "problems": status.problems,
            "members": [
                {
                    "connection": each.connection,
                    "info": None if each.info is None else _info_json(each.info),
                    "problem": each.problem,
                }
                for each in status.members
            ],
        }
    )
    if not run.as_json:
        _show_status(run, status)


def _show_status(run: Run, status: GroupStatus) -> None:
    folder = Path(str(now_ms()))
    rows: list[tuple[object, ...]] = []
    for each in status.members:
        if each.info is None:
            run.note(f"{each.connection.client_id}: {each.problem}")
            continue
        folder.mkdir(exist_ok=True)
        path = folder / each.connection.client_id.replace("/", "_")
        path.write_text(_info_text(each.info))
        rows.append((len(rows) + 1, each.connection.client_id, each.connection.version_name, path))
    run.table(("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"), rows)
    if not rows:
        return
    run.line()
    if not status.same_subscription:
        run.line("WARN: Different subscription in the same group of consumer!!!")
        return
    run.line("Same subscription in the same group of consumer")
    run.line()
    run.line("Rebalance OK")
    for problem in status.problems:
        run.line(problem)


@admin_command("startMonitoring")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    help="Examine the cluster at this interval, in seconds.",
)
@click.option("--rounds", type=click.IntRange(1), help="End after this many rounds.")
async def start_monitoring(run: Run, interval: float, rounds: int | None) -> None:
    """Examine all groups again and again: lags, members, lost messages. Ends with Ctrl-C.

    Each round prints lines with the prefix [MONITOR], or with --json one JSON value.

    \b
    Examples
        pyromq admin startMonitoring --interval 30
    """
    monitor = Monitor(run.admin.session)
    number = 0
    while True:
        found = await monitor.examine()
        run.result(
            {
                "undone": found.undone,
                "moved": found.moved,
                "failures": found.failures,
                "groups": [
                    {
                        "group": each.group,
                        "same_subscription": each.same_subscription,
                        "problems": each.problems,
                    }
                    for each in found.groups
                ],
            }
        )
        _show_round(run, found)
        number += 1
        if number == rounds:
            return
        await asyncio.sleep(interval)


def _show_round(run: Run, found: MonitorRound) -> None:
    run.line(f"[MONITOR] {'=' * 41}beginRound")
    for each in found.undone:
        run.line(
            f"[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup={each.group}, "
            f"topic={each.topic}, undoneMsgsTotal={each.total}, "
            f"undoneMsgsSingleMQ={each.single_queue}, undoneMsgsDelayTimeMills={each.delay_ms}]"
        )
    for state in found.groups:
        start = f"[MONITOR] [NOTIFY] reportConsumerRunningInfo: ConsumerGroup: {state.group}"
        if not state.same_subscription:
            run.line(f"{start}, Subscription different")
        for problem in state.problems:
            run.line(f"{start}, {problem}")
    for event in found.moved:
        run.line(
            f"[MONITOR] reportDeleteMsgsEvent: DeleteMsgsEvent [offsetMovedEvent={event.event}, "
            f"eventTimestamp={event.timestamp}]"
        )
    for group, problem in found.failures.items():
        run.line(f"[MONITOR] group {group} was not examined: {problem}")
    run.line(f"[MONITOR] {'=' * 41}endRound")


# Texts


def _client_row(client: ClientConnection) -> tuple[str, ...]:
    return client.client_id, client.address, client.language, client.version_name


def _name(value: object) -> str:
    return cell(value) or "null"


def _values(settings: GroupSettings) -> list[str]:
    return [cell(getattr(settings, field)) for field in GroupSettings.__dataclass_fields__]


def _pairs(settings: GroupSettings) -> list[str]:
    values = zip(_SETTINGS, _values(settings), strict=True)
    return [f"{name}={value}" for name, value in values]


def _info_json(info: RunningInfo) -> dict[str, Any]:
    return {
        "client_id": info.client_id,
        "properties": info.properties,
        "subscriptions": [
            {"topic": topic, "expression": expression} for topic, expression in info.subscriptions
        ],
        "queues": [{"queue": queue, **plain(state)} for queue, state in info.queues.items()],
        "rates": info.rates,
        "stacks": info.stacks,
    }


def _info_text(info: RunningInfo) -> str:
    """Return a report as Java prints it."""
    lines = ["#Consumer Properties#"]
    lines += [f"{name:<40}: {value}" for name, value in info.properties.items()]
    lines += ["", "", "#Consumer Subscription#"]
    lines += [
        f"{number:03} Topic: {topic:<40} ClassFilter: {'false':<8} SubExpression: {expression}"
        for number, (topic, expression) in enumerate(info.subscriptions, 1)
    ]
    head = f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  "
    lines += ["", "", "#Consumer Offset#", f"{head}#Consumer Offset"]
    lines += [
        f"{_queue_text(queue)}{state.commit_offset:<20}" for queue, state in info.queues.items()
    ]
    lines += ["", "", "#Consumer MQ Detail#", f"{head}#ProcessQueueInfo"]
    lines += [
        f"{_queue_text(queue)}{_process_queue_text(state)}" for queue, state in info.queues.items()
    ]
    titles = ("#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS")
    lines += ["", "", "#Consumer RT&TPS#"]
    lines.append(
        f"{'#Topic':<64}  {' '.join(f'{title:>14}' for title in titles)} "
        f"{'#ConsumeFailed TPS':>18} {'#ConsumeFailedMsgsInHour':>25}"
    )
    lines += [
        f"{topic:<32}  {each.pull_rt:14.2f} {each.pull_tps:14.2f} {each.consume_rt:14.2f} "
        f"{each.consume_ok_tps:14.2f} {each.consume_failed_tps:18.2f} "
        f"{each.consume_failed_msgs:25}"
        for topic, each in info.rates.items()
    ]
    if info.stacks is not None:
        lines += ["", "", "#Consumer jstack#", info.stacks]
    return "\n".join(lines)


def _queue_text(queue: MessageQueue) -> str:
    return f"{queue.topic:<64}  {queue.broker_name:<32}  {queue.queue_id:<4}  "


def _process_queue_text(state: ProcessQueueInfo) -> str:
    return (
        f"ProcessQueueInfo [commitOffset={state.commit_offset}, "
        f"cachedMsgMinOffset={state.cached_msg_min_offset}, "
        f"cachedMsgMaxOffset={state.cached_msg_max_offset}, "
        f"cachedMsgCount={state.cached_msg_count}, "
        f"cachedMsgSizeInMiB={state.cached_msg_size_in_mib}, "
        f"transactionMsgMinOffset={state.transaction_msg_min_offset}, "
        f"transactionMsgMaxOffset={state.transaction_msg_max_offset}, "
        f"transactionMsgCount={state.transaction_msg_count}, locked={cell(state.locked)}, "
        f"tryUnlockTimes={state.try_unlock_times}, "
        f"lastLockTimestamp={_compact_time(state.last_lock_timestamp)}, "
        f"droped={cell(state.droped)}, "
        f"lastPullTimestamp={_compact_time(state.last_pull_timestamp)}, "
        f"lastConsumeTimestamp={_compact_time(state.last_consume_timestamp)}]"
    )


def _compact_time(milliseconds: int) -> str:
    """Return a time as 20240131120000000."""
    return "".join(filter(str.isdigit, time_text(milliseconds)))
