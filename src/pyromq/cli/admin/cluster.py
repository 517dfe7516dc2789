"""The cluster commands of `pyromq admin`: brokers, send times, replication, raft."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

import click

from pyromq.admin.cluster import BrokerOverview, SendTimes
from pyromq.cli.admin.options import body_size_option, flag_value_option, text_option
from pyromq.cli.admin.output import cell
from pyromq.cli.admin.running import Run, admin_command

#: The zone of the times in clusterRT's log lines.
_CHINA: Final = timezone(timedelta(hours=8))


@admin_command(
    "clusterList",
    watch=True,
    examples=(
        "",
        "-m --json",
    ),
)
@click.option("-m", "--moreStats", "more", is_flag=True, help="Show the messages of two days.")
@click.option(
    "-i",
    "--interval",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="Repeat at this interval until interrupted.",
)
async def cluster_list(run: Run, more: bool, interval: int | None) -> None:
    """List the brokers of all clusters with their figures."""
    while True:
        brokers = await run.admin.cluster.overview()
        run.result(brokers)
        if more:
            _show_totals(run, brokers)
        else:
            _show_rates(run, brokers)
        for each in brokers:
            if each.problem is not None:
                run.note(each.problem)
        if interval is None:
            return
        await asyncio.sleep(interval)


def _show_totals(run: Run, brokers: Sequence[BrokerOverview]) -> None:
    numbers = ("#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
    run.table(
        ("#Cluster Name", "#Broker Name", *numbers),
        [
            (
                each.cluster,
                each.broker_name,
                each.in_yesterday,
                each.out_yesterday,
                each.in_today,
                each.out_today,
            )
            for each in brokers
        ],
        numbers=numbers,
    )


def _show_rates(run: Run, brokers: Sequence[BrokerOverview]) -> None:
    numbers = ("#InTPS(LOAD)", "#OutTPS(LOAD)", "#PCWait(ms)", "#Hour", "#SPACE")
    run.table(
        ("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", *numbers),
        [
            (
                each.cluster,
                each.broker_name,
                each.broker_id,
                each.address,
                each.version,
                f"{each.in_tps:.2f}({each.send_queue},{each.send_wait}ms)",
                f"{each.out_tps:.2f}({each.pull_queue},{each.pull_wait}ms)",
                each.page_cache_wait,
                f"{each.hours:.2f}",
                f"{each.disk_ratio:.4f}",
            )
            for each in brokers
        ],
        numbers=numbers,
    )


@admin_command("clusterRT", examples=("-a 100 -s 1024 --rounds 1",))
@click.option(
    "-a",
    "--amount",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Send this many messages to each broker.",
)
@body_size_option()
@text_option("-c", "--cluster", "cluster", "Measure this cluster instead of all.", metavar="NAME")
@flag_value_option(
    "-p",
    "--printLog",
    "as_log",
    "Print lines for a log: time|room|cluster|broker|ms.",
    default="false",
)
@text_option(
    "-m",
    "--machineRoom",
    "room",
    "Name the machine room in log lines.",
    default="noname",
    show_default=True,
)
@click.option(
    "-i",
    "--interval",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Repeat at this interval.",
)
@click.option(
    "--rounds", type=click.IntRange(1), help="End after this many rounds; the default is never."
)
async def cluster_rt(
    run: Run,
    amount: int,
    size: int,
    cluster: str | None,
    as_log: bool,
    room: str,
    interval: int,
    rounds: int | None,
) -> None:
    """Send test messages to every broker and show the average time, again and again."""
    titles = ("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount")
    done = 0
    while True:
        times = await run.admin.cluster.send_times(cluster, amount, size)
        run.result(times)
        if as_log:
            _log_times(run, room, times)
        else:
            rows = [
                (each.cluster, each.broker_name, f"{each.average:.2f}", each.sent, each.failed)
                for each in times
            ]
            run.table(titles, rows, numbers=titles[2:], header=not done)
        done += 1
        if done == rounds:
            return
        await asyncio.sleep(interval)


def _log_times(run: Run, room: str, times: Sequence[SendTimes]) -> None:
    now = datetime.now(_CHINA)
    for each in times:
        average = int(each.average + 0.5)
        run.line(f"{now:%Y-%m-%d %H:%M:%S}|{room}|{each.cluster}|{each.broker_name}|{average}")


@admin_command("haStatus", watch=True, examples=("--watch 5",))
@text_option("-c", "--clusterName", "cluster", "Show this cluster instead of all.", metavar="NAME")
async def ha_status(run: Run, cluster: str | None) -> None:
    """Show masters and replicas, and how far replicas are behind. mqadmin has no such command.

    RocketMQ's own brokers do not tell: their lags are computed from the ends of the logs, and the
    time is unknown.
    """
    states = await run.admin.cluster.replication(cluster)
    run.result(states)
    rows: list[tuple[object, ...]] = []
    for state in states:
        problem = state.problem or ""
        if state.is_connected is False and not problem:
            problem = "does not reach its master"
        rows.append(
            (
                state.cluster,
                state.broker_name,
                state.broker_id,
                state.role,
                state.address,
                state.log_end,
                "",
                "",
                problem,
            )
        )
        rows += [
            (
                state.cluster,
                state.broker_name,
                cell(each.broker_id) or "?",
                "REPLICA",
                each.address,
                each.position,
                each.lag_bytes,
                cell(each.lag_milliseconds) or "?",
                "",
            )
            for each in state.replicas
        ]
    numbers = ("#BID", "#Log End", "#Lag Bytes", "#Lag ms")
    run.table(
        (
            "#Cluster Name",
            "#Broker Name",
            "#BID",
            "#Role",
            "#Addr",
            "#Log End",
            "#Lag Bytes",
            "#Lag ms",
            "#Problem",
        ),
        rows,
        numbers=numbers,
    )


@admin_command("raftStatus", watch=True, examples=("-b broker-a",))
@text_option("-b", "--brokerName", "broker_name", "Show this broker's group.", metavar="NAME")
async def raft_status(run: Run, broker_name: str | None) -> None:
    """Show the nodes of raft groups. mqadmin has no such command.

    Only pyromq's brokers answer; `pyromq raft status` also asks RocketMQ's own nodes.
    """
    nodes = await run.admin.raft.nodes(broker_name)
    run.result(nodes)
    numbers = ("#Term", "#Begin", "#End", "#Committed")
    run.table(
        ("#Group", "#Broker Name", "#Node", "#Addr", "#Role", "#Leader", *numbers),
        [
            (
                each.group,
                each.broker_name,
                each.node,
                each.broker,
                each.role,
                each.leader,
                each.term,
                each.begin_index,
                each.end_index,
                each.committed_index,
            )
            for each in nodes
        ],
        numbers=numbers,
    )
