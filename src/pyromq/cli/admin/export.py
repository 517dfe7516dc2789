"""The export commands of `pyromq admin`: JSON files in the shape of mqadmin's."""

from __future__ import annotations

import click

from pyromq.admin.export import Export
from pyromq.cli.admin.options import target_options, text_option
from pyromq.cli.admin.running import Run, admin_command

_cluster_option = text_option(
    "-c", "--clusterName", "cluster", "Export this cluster.", metavar="NAME", required=True
)
_folder_option = text_option(
    "-f",
    "--filePath",
    "folder",
    "Write the file to this folder.",
    metavar="DIR",
    default="/tmp/rocketmq/export",  # noqa: S108 mqadmin's default
    show_default=True,
)


@admin_command("exportConfigs", examples=("-c DefaultCluster -f /var/backups",))
@_cluster_option
@_folder_option
async def export_configs(run: Run, cluster: str, folder: str) -> None:
    """Write the important settings of a cluster's masters to configs.json."""
    _write(run, await run.admin.export.configs(cluster), folder)


@admin_command(
    "exportMetadata",
    examples=(
        "-c DefaultCluster -f /var/backups",
        "-b 10.0.0.1:10911 -t -f /var/backups",
    ),
)
@target_options()
@_folder_option
@click.option("-t", "--topic", "topics", is_flag=True, help="Export topics only.")
@click.option("-g", "--subscriptionGroup", "groups", is_flag=True, help="Export groups only.")
@click.option(
    "-s",
    "--specialTopic",
    "special",
    is_flag=True,
    help="Include the topics of retries and dead letters.",
)
async def export_metadata(
    run: Run,
    broker: str | None,
    cluster: str | None,
    folder: str,
    topics: bool,
    groups: bool,
    special: bool,
) -> None:
    """Write topics and groups to metadata.json, topic.json or subscriptionGroup.json.

    The queues of a topic are summed up over the brokers of a cluster.
    """
    exports = run.admin.export
    if broker is not None and topics:
        export = await exports.topics(broker, special=special)
    elif broker is not None and groups:
        export = await exports.groups(broker)
    else:
        export = await exports.metadata(
            broker=broker,
            cluster=cluster,
            topics=topics or not groups,
            groups=not topics,
            special=special,
        )
    _write(run, export, folder)


@admin_command("exportMetrics", examples=("-c DefaultCluster -f /var/backups",))
@_cluster_option
@_folder_option
async def export_metrics(run: Run, cluster: str, folder: str) -> None:
    """Write rates, counts, disk use and client versions of a cluster to metrics.json."""
    _write(run, await run.admin.export.metrics(cluster), folder)


def _write(run: Run, export: Export, folder: str) -> None:
    path = export.write(folder)
    run.result({"path": str(path), "content": export.content})
    run.line(f"export {path} success")
