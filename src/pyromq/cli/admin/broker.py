"""The broker commands of `pyromq admin`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from pyromq.admin.cluster import RuntimeInfo
from pyromq.admin.configuration import ServerSettings
from pyromq.admin.maintenance import Cleaning
from pyromq.cli.admin.options import (
    body_size_option,
    flag_value_option,
    target_options,
    text_option,
)
from pyromq.cli.admin.output import second_text
from pyromq.cli.admin.running import Run, admin_command, showing_partial_results


@admin_command(
    "brokerStatus",
    watch=True,
    examples=(
        "-b 10.0.0.1:10911",
        "-c DefaultCluster --json",
    ),
)
@target_options()
async def broker_status(run: Run, broker: str | None, cluster: str | None) -> None:
    """Show the runtime figures of a broker, or of all brokers of a cluster."""

    def show(runtimes: Sequence[RuntimeInfo]) -> None:
        run.result(runtimes if broker is None else runtimes[0])
        for each in runtimes:
            if run.is_terminal:
                run.line(each.address)
                run.pairs(each.values)
            else:
                prefix = f"{each.address:<24} " if broker is None else ""
                run.pairs(each.values, prefix + "{:<32}: {}")

    if broker is not None:
        show([await run.admin.cluster.runtime(broker)])
        return
    assert cluster is not None
    with showing_partial_results(show):
        show(await run.admin.cluster.runtimes(cluster))


@admin_command("brokerConsumeStats", watch=True, examples=("-b 10.0.0.1:10911 -l 1000",))
@text_option(
    "-b",
    "--brokerAddr",
    "broker",
    "Ask the broker at this address.",
    metavar="ADDRESS",
    required=True,
)
@click.option(
    "-t",
    "--timeoutMillis",
    "timeout_ms",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    help="Wait this long for the answer.",
)
@click.option(
    "-l",
    "--level",
    type=int,
    default=0,
    show_default=True,
    help="Show only queues with at least this lag.",
)
@flag_value_option("-o", "--order", "order", "Read only topics with strict order.", default="false")
async def broker_consume_stats(
    run: Run, broker: str, timeout_ms: int, level: int, order: bool
) -> None:
    """Show the lags of all groups at a broker, queue by queue."""
    lags = await run.admin.statistics.broker_lags(
        broker, order=order, request_timeout=timeout_ms / 1000
    )
    shown = [each for each in lags.queues if each.lag >= level and each.last_consumed > 0]
    run.result({"broker": broker, "queues": shown, "total": lags.total})
    numbers = ("#QID", "#Broker Offset", "#Consumer Offset", "#Diff")
    run.table(
        (
            "#Topic",
            "#Group",
            "#Broker Name",
            "#QID",
            "#Broker Offset",
            "#Consumer Offset",
            "#Diff",
            "#LastTime",
        ),
        [
            (
                each.queue.topic,
                each.group,
                each.queue.broker_name,
                each.queue.queue_id,
                each.broker_offset,
                each.consumer_offset,
                each.lag,
                second_text(each.last_consumed),
            )
            for each in shown
        ],
        numbers=numbers,
    )
    run.line()
    run.line(f"Diff Total: {lags.total}")


@admin_command(
    "getBrokerConfig",
    examples=(
        "-b 10.0.0.1:10911",
        "-c DefaultCluster",
    ),
)
@target_options()
async def get_broker_config(run: Run, broker: str | None, cluster: str | None) -> None:
    """Show the settings of a broker, or of all brokers of a cluster."""

    def show(found: Sequence[ServerSettings]) -> None:
        run.result(found if broker is None else found[0])
        for each in found:
            run.line(f"============{_title(each, broker)}============")
            run.pairs(each.settings)
            run.line()

    if broker is not None:
        show([await run.admin.configuration.broker(broker)])
        return
    assert cluster is not None
    with showing_partial_results(show):
        show(await run.admin.configuration.cluster(cluster))


def _title(found: ServerSettings, broker: str | None) -> str:
    if broker is not None:
        return found.address
    if found.master is None:
        return f"Master: {found.address}"
    return f"My Master: {found.master}=====Slave: {found.address}"


@admin_command("updateBrokerConfig", examples=("-c DefaultCluster -k fileReservedTime -v 48",))
@target_options()
@text_option("-k", "--key", "key", "Change this setting.", metavar="KEY", required=True)
@text_option("-v", "--value", "value", "Set this value.", metavar="VALUE", required=True)
async def update_broker_config(
    run: Run, broker: str | None, cluster: str | None, key: str, value: str
) -> None:
    """Change a setting of a broker, or of all masters of a cluster, and save it in their files."""
    brokers = await run.admin.configuration.update_broker(
        key, value, broker=broker, cluster=cluster
    )
    run.result({"key": key, "value": value, "brokers": brokers})
    for address in brokers:
        run.line(f"update broker config success, {address}")


def _any_target(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Add `-b` and `-c`, of which neither is required: the default is every broker."""
    function = text_option(
        "-c", "--cluster", "cluster", "Do so at all brokers of this cluster.", metavar="NAME"
    )(function)
    return text_option(
        "-b", "--brokerAddr", "broker", "Do so at the broker at this address.", metavar="ADDRESS"
    )(function)


async def _clean(
    run: Run,
    what: str,
    broker: str | None,
    cluster: str | None,
    clean: Callable[..., Awaitable[Cleaning]],
) -> None:
    targets = await run.admin.maintenance.targets(broker=broker, cluster=cluster)
    if not run.confirmed(f"{what} at {', '.join(targets) or 'no broker'}"):
        return
    run.result(await clean(broker=broker, cluster=cluster))
    run.line("success")


@admin_command("cleanExpiredCQ", destructive=True, examples=("-c DefaultCluster",))
@_any_target
async def clean_expired_cq(run: Run, broker: str | None, cluster: str | None) -> None:
    """Delete consume-queue files whose messages are gone. The default is every broker."""
    clean = run.admin.maintenance.clean_expired_queues
    await _clean(run, "Delete expired consume-queue files", broker, cluster, clean)


@admin_command("cleanUnusedTopic", destructive=True, examples=("-b 10.0.0.1:10911",))
@_any_target
async def clean_unused_topic(run: Run, broker: str | None, cluster: str | None) -> None:
    """Delete the queues of topics that no longer exist. The default is every broker."""
    clean = run.admin.maintenance.clean_unused_topics
    await _clean(run, "Delete the queues of unused topics", broker, cluster, clean)


@admin_command("deleteExpiredCommitLog", destructive=True, examples=("-b 10.0.0.1:10911",))
@_any_target
async def delete_expired_commit_log(run: Run, broker: str | None, cluster: str | None) -> None:
    """Delete commit log files older than the retention time. The default is every broker."""
    clean = run.admin.maintenance.delete_expired_logs
    await _clean(run, "Delete expired commit log files", broker, cluster, clean)


@admin_command("sendMsgStatus", examples=("-b broker-a -c 10",))
@text_option(
    "-b", "--brokerName", "broker_name", "Send to this broker.", metavar="NAME", required=True
)
@body_size_option("--messageSize")
@click.option(
    "-c",
    "--count",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Send this many messages.",
)
async def send_msg_status(run: Run, broker_name: str, size: int, count: int) -> None:
    """Send test messages to a broker and show how long each one takes."""
    results = []
    async for each in run.admin.cluster.probe(broker_name, count, size):
        results.append(each)
        run.line(
            f"rt={each.milliseconds}ms, SendResult=SendResult [sendStatus={each.status}, "
            f"msgId={each.message_id}, offsetMsgId={each.offset_message_id}, "
            f"messageQueue=MessageQueue [topic={broker_name}, brokerName={each.broker_name}, "
            f"queueId={each.queue_id}], queueOffset={each.queue_offset}]"
        )
    run.result(results)


@admin_command("producer", watch=True, examples=("-b 10.0.0.1:10911",))
@text_option(
    "-b", "--broker", "broker", "Ask the broker at this address.", metavar="ADDRESS", required=True
)
async def producer(run: Run, broker: str) -> None:
    """List the producers that are connected to a broker."""
    producers = await run.admin.cluster.producers(broker)
    run.result(producers)
    if run.is_terminal:
        run.table(
            ("#Group", "#Client", "#Address", "#Language", "#Version", "#Last Heartbeat"),
            [
                (
                    each.group,
                    each.client_id,
                    each.remote_ip,
                    each.language,
                    each.version,
                    second_text(each.last_updated),
                )
                for each in producers
            ],
        )
        return
    for each in producers:
        run.line(
            f"producer group ({each.group}) instance : clientId={each.client_id},"
            f"remoteIP={each.remote_ip}, language={each.language}, version={each.version}, "
            f"lastUpdateTimestamp={each.last_updated}"
        )
