"""The statistics commands of `pyromq admin`."""

from __future__ import annotations

import click

from pyromq.cli.admin.options import text_option, topic_option
from pyromq.cli.admin.running import Run, admin_command


@admin_command(
    "statsAll",
    watch=True,
    examples=(
        "-a --watch 10",
        "-t orders --json",
    ),
)
@click.option(
    "-a",
    "--activeTopic",
    "active",
    is_flag=True,
    help="Show only topics with messages during the last day.",
)
@topic_option("Show this topic instead of all.", required=False)
async def stats_all(run: Run, active: bool, topic: str | None) -> None:
    """Show rates and counts of topics and of the groups that consume them."""
    with run.counting("reading topics") as count:
        rows = await run.admin.statistics.topics(
            topic or None, active_only=active, on_progress=count
        )
    run.result(rows)
    numbers = ("#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour")
    run.table(
        ("#Topic", "#Consumer Group", *numbers),
        [
            (
                each.topic,
                each.group,
                each.lag,
                f"{each.in_tps:.2f}",
                "" if each.out_tps is None else f"{each.out_tps:.2f}",
                each.in_last_day,
                "NO_CONSUMER" if each.out_last_day is None else each.out_last_day,
            )
            for each in rows
        ],
        numbers=numbers,
    )


@admin_command(
    "brokerStats", watch=True, examples=("-b 10.0.0.1:10911 -s TOPIC_PUT_NUMS -k orders",)
)
@text_option(
    "-b",
    "--brokerAddr",
    "broker",
    "Ask the broker at this address.",
    metavar="ADDRESS",
    required=True,
)
@text_option(
    "-s",
    "--statsName",
    "name",
    "Show this statistic, such as TOPIC_PUT_NUMS.",
    metavar="NAME",
    required=True,
)
@text_option(
    "-k",
    "--statsKey",
    "key",
    "Show it for this key: a topic, or topic@group.",
    metavar="KEY",
    required=True,
)
async def broker_stats(run: Run, broker: str, name: str, key: str) -> None:
    """Show one statistic of a broker. mqadmin has no such command.

    Names are RocketMQ's: TOPIC_PUT_NUMS and TOPIC_PUT_SIZE by topic; GROUP_GET_NUMS,
    GROUP_GET_SIZE, GROUP_GET_LATENCY and SNDBCK_PUT_NUMS by topic@group; BROKER_PUT_NUMS and
    BROKER_GET_NUMS by cluster.
    """
    statistic = await run.admin.statistics.view(broker, name, key)
    run.result(statistic)
    numbers = ("#Sum", "#TPS", "#Average")
    run.table(
        ("#Period", *numbers),
        [
            (period, each.sum, f"{each.tps:.2f}", f"{each.average:.2f}")
            for period, each in (
                ("minute", statistic.minute),
                ("hour", statistic.hour),
                ("day", statistic.day),
            )
        ],
        numbers=numbers,
    )
