"""The topic commands of `pyromq admin`."""

from __future__ import annotations

import click

from pyromq.cli.admin.options import topic_option
from pyromq.cli.admin.output import time_text
from pyromq.cli.admin.running import Run, admin_command


@admin_command("topicList", watch=True)
@click.option(
    "-c", "--clusterModel", "cluster_model", is_flag=True, help="Show clusters and groups, too."
)
async def topic_list(run: Run, cluster_model: bool) -> None:
    """List the topics that a NameServer knows."""
    del cluster_model
    names = await run.admin.topics.names()
    run.result(names)
    run.table(("#Topic",), [(name,) for name in names], header=False)


@admin_command("topicStatus", watch=True)
@topic_option("Show the queues of this topic.")
async def topic_status(run: Run, topic: str) -> None:
    """Show the offsets of a topic's queues."""
    queues = await run.admin.topics.status(topic)
    run.result(queues)
    run.table(
        ("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"),
        [
            (
                each.queue.broker_name,
                each.queue.queue_id,
                each.min_offset,
                each.max_offset,
                time_text(each.last_updated) if each.last_updated > 0 else "",
            )
            for each in queues
        ],
        numbers=("#QID", "#Min Offset", "#Max Offset"),
    )
