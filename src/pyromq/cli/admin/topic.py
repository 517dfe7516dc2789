"""The topic commands of `pyromq admin`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click
import orjson

from pyromq.admin.configuration import ORDER_NAMESPACE
from pyromq.admin.topics import QueueStatus, TopicConfiguration, TopicRoute
from pyromq.cli.admin.options import (
    flag_value_option,
    target_options,
    text_option,
    topic_option,
)
from pyromq.cli.admin.output import cell, time_text
from pyromq.cli.admin.running import Run, admin_command, showing_partial_results
from pyromq.protocol.message.sysflag import is_readable, is_writable

#: A permission of a topic.
_PERMISSION: Final = click.IntRange(0, 7)
#: A permission that topics take from the template when they are created.
_INHERITED: Final = 1
#: mqadmin's ruler above the totals.
_RULER: Final = "-" * 158


@admin_command(
    "topicList",
    watch=True,
    examples=(
        "",
        "-c --json",
    ),
)
@click.option(
    "-c", "--clusterModel", "cluster_model", is_flag=True, help="Show clusters and groups, too."
)
async def topic_list(run: Run, cluster_model: bool) -> None:
    """List the topics that a NameServer knows."""
    if not cluster_model:
        names = await run.admin.topics.names()
        run.result(names)
        run.table(("Topic",), [(name,) for name in names], header=False)
        return
    with run.counting("reading topics") as count:
        topics = await run.admin.topics.overview(count)
    run.result(topics)
    run.table(
        ("#Cluster Name", "#Topic", "#Consumer Group"),
        [(each.cluster, each.topic, group) for each in topics for group in each.groups or ("",)],
    )


@admin_command(
    "topicRoute",
    watch=True,
    examples=(
        "-t orders",
        "-t orders -l",
    ),
)
@topic_option("Show the route of this topic.")
@click.option("-l", "--list", "as_list", is_flag=True, help="Show a table instead of JSON.")
async def topic_route(run: Run, topic: str, as_list: bool) -> None:
    """Show the brokers and queues of a topic."""
    route = await run.admin.topics.route(topic)
    run.result(route)
    if not as_list and not run.is_terminal:
        run.line(orjson.dumps(_java_route(route), option=orjson.OPT_INDENT_2).decode())
        return
    queues = {each.broker_name: each for each in route.queues}
    rows = [
        (
            broker.cluster,
            broker.broker_name,
            _java_map(broker.addresses),
            *(
                (found.read_queues, found.write_queues, found.permission)
                if (found := queues.get(broker.broker_name))
                else ("", "", "")
            ),
        )
        for broker in route.brokers
    ]
    titles = ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    run.table(titles, rows, numbers=titles[3:])
    reads = sum(each.read_queues for each in route.queues)
    writes = sum(each.write_queues for each in route.queues)
    if not run.is_terminal:
        run.line(_RULER)
    run.line(f"Total: {len(queues)}  {reads}  {writes}")
    if route.order_configuration and run.is_terminal:
        run.line(f"Order: {route.order_configuration}")


def _java_route(route: TopicRoute) -> dict[str, object]:
    """Return a route under the names of Java's class."""
    value: dict[str, object] = {
        "brokerDatas": [
            {
                "brokerAddrs": {str(key): address for key, address in each.addresses.items()},
                "brokerName": each.broker_name,
                "cluster": each.cluster,
            }
            for each in route.brokers
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": each.broker_name,
                "perm": each.permission,
                "readQueueNums": each.read_queues,
                "topicSysFlag": each.system_flag,
                "writeQueueNums": each.write_queues,
            }
            for each in route.queues
        ],
    }
    if route.order_configuration:
        value["orderTopicConf"] = route.order_configuration
    return value


def _java_map(values: Mapping[int, str]) -> str:
    return "{" + ", ".join(f"{key}={value}" for key, value in values.items()) + "}"


@admin_command("topicStatus", watch=True, examples=("-t orders --watch 5",))
@topic_option("Show the queues of this topic.")
async def topic_status(run: Run, topic: str) -> None:
    """Show the offsets of a topic's queues."""

    def show(queues: Sequence[QueueStatus]) -> None:
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

    with showing_partial_results(show):
        show(await run.admin.topics.status(topic))


@admin_command("topicClusterList", examples=("-t orders",))
@topic_option("Show the clusters of this topic.")
async def topic_cluster_list(run: Run, topic: str) -> None:
    """Show the clusters that serve a topic."""
    names = await run.admin.topics.clusters(topic)
    run.result(names)
    run.table(("Cluster",), [(name,) for name in names], header=False)


@admin_command("getTopicConfig", examples=("-t orders --json",))
@topic_option("Show the configuration of this topic.")
@click.option(
    "-b",
    "--brokerAddr",
    "broker",
    metavar="ADDRESS",
    help="Read it at this broker; by default at every master of the topic.",
)
async def get_topic_config(run: Run, topic: str, broker: str | None) -> None:
    """Show the configuration of a topic at its brokers. mqadmin has no such command."""
    route = await run.admin.topics.route(topic)
    addresses = (
        [each.addresses[min(each.addresses)] for each in route.brokers if each.addresses]
        if broker is None
        else [broker]
    )
    found = {address: await run.admin.topics.configuration(topic, address) for address in addresses}
    run.result(found)
    run.table(
        ("#Broker Addr", "#ReadQueue", "#WriteQueue", "#Perm", "#Order", "#SysFlag"),
        [
            (
                address,
                each.read_queues,
                each.write_queues,
                permission_text(each.permission),
                each.order,
                each.system_flag,
            )
            for address, each in found.items()
        ],
        numbers=("#ReadQueue", "#WriteQueue", "#SysFlag"),
    )


@admin_command("allocateMQ", examples=("-t orders -i 10.0.0.1,10.0.0.2",))
@topic_option("Allocate the queues of this topic.")
@text_option(
    "-i", "--ipList", "clients", "Allocate to these clients, separated by commas.", required=True
)
async def allocate_mq(run: Run, topic: str, clients: str) -> None:
    """Show which queues each of several clients would get by the default strategy."""
    allocation = await run.admin.topics.allocate(topic, clients.split(","))
    run.result(allocation)
    if run.is_terminal:
        run.table(
            ("#Client", "#Broker Name", "#QID"),
            [
                (client, queue.broker_name, queue.queue_id)
                for client, queues in allocation.items()
                for queue in queues
            ],
            numbers=("#QID",),
        )
        return
    result = {
        client: [
            {"brokerName": each.broker_name, "queueId": each.queue_id, "topic": each.topic}
            for each in queues
        ]
        for client, queues in allocation.items()
    }
    run.line(orjson.dumps({"result": result}).decode())


@admin_command(
    "updateTopic",
    examples=(
        "-c DefaultCluster -t orders -r 8 -w 8",
        "-b 10.0.0.1:10911 -t orders -p 4",
    ),
)
@target_options()
@topic_option("Create or change this topic.")
@click.option(
    "-r",
    "--readQueueNums",
    "read_queues",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Let consumers read this many queues of a broker.",
)
@click.option(
    "-w",
    "--writeQueueNums",
    "write_queues",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Let producers write to this many queues of a broker.",
)
@click.option(
    "-p",
    "--perm",
    "permission",
    type=_PERMISSION,
    default=6,
    show_default=True,
    help="Set the permission: 2 is write, 4 is read, 6 is both.",
)
@flag_value_option(
    "-o",
    "--order",
    "order",
    "Keep the order of messages even while brokers are down.",
    default="false",
)
@flag_value_option(
    "-u", "--unit", "unit", "Mark the topic as one of several units.", default="false"
)
@flag_value_option(
    "-s",
    "--hasUnitSub",
    "unit_subscription",
    "Mark that other units subscribe to it.",
    default="false",
)
async def update_topic(
    run: Run,
    broker: str | None,
    cluster: str | None,
    topic: str,
    read_queues: int,
    write_queues: int,
    permission: int,
    order: bool,
    unit: bool,
    unit_subscription: bool,
) -> None:
    """Create a topic or change it, at a broker or at all masters of a cluster.

    With -o true the order configuration at the NameServers is written, too. As in mqadmin, options
    that are not given set their defaults.
    """
    configuration = TopicConfiguration(
        topic, read_queues, write_queues, permission, order, unit, unit_subscription
    )
    change = await run.admin.topics.update(configuration, broker=broker, cluster=cluster)
    run.result(change)
    for address in change.brokers:
        run.line(f"create topic to {address} success.")
    if change.order_configuration is not None:
        where = "broker" if broker is not None else "cluster"
        run.line(f"set {where} orderConf. isOrder=true, orderConf=[{change.order_configuration}]")
    run.line(_config_text(configuration))


@admin_command("updateTopicPerm", examples=("-c DefaultCluster -t orders -p 4",))
@target_options()
@topic_option("Change the permission of this topic.")
@click.option(
    "-p",
    "--perm",
    "permission",
    type=_PERMISSION,
    required=True,
    help="Set the permission: 2 is write, 4 is read, 6 is both.",
)
async def update_topic_perm(
    run: Run, broker: str | None, cluster: str | None, topic: str, permission: int
) -> None:
    """Change the permission of a topic, at a broker or at all masters of a cluster."""
    changes = await run.admin.topics.set_permission(
        topic, permission, broker=broker, cluster=cluster
    )
    run.result(changes)
    for change in changes:
        if broker is not None and change.before == change.after:
            run.line("new perm equals to the old one!")
            return
        run.line(
            f"update topic perm from {change.before} to {change.after} in {change.broker} success."
        )
        if broker is not None:
            run.line(f"{_config_text(change.configuration)}.")


@admin_command("deleteTopic", destructive=True, examples=("-c DefaultCluster -t orders --dry-run",))
@topic_option("Delete this topic.")
@text_option(
    "-c", "--clusterName", "cluster", "Delete it from this cluster.", metavar="NAME", required=True
)
async def delete_topic(run: Run, topic: str, cluster: str) -> None:
    """Delete a topic and its messages from a cluster and from the NameServers."""
    if topic not in await run.admin.topics.names():
        raise await run.admin.session.unknown_topic(topic)
    await run.admin.cluster.brokers(cluster)  # fails for an unknown one before any question
    if not run.confirmed(f"Delete topic {topic} and its messages from cluster {cluster}"):
        return
    deletion = await run.admin.topics.delete(topic, cluster)
    run.result(deletion)
    run.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
    run.line(f"delete topic [{topic}] from NameServer success.")


@admin_command(
    "updateOrderConf",
    destructive=True,
    examples=(
        "-t orders -m put -v 'broker-a:4;broker-b:4'",
        "-t orders -m get",
    ),
)
@topic_option("Read or change the order configuration of this topic.")
@text_option("-v", "--orderConf", "order", "Set this: broker:queues[;broker:queues].")
@click.option(
    "-m",
    "--method",
    type=click.Choice(["put", "get", "delete"]),
    required=True,
    help="Set, show or delete it.",
)
async def update_order_conf(run: Run, topic: str, order: str | None, method: str) -> None:
    """Set, show or delete the order configuration of a topic at the NameServers."""
    orders = run.admin.configuration
    if method == "get":
        found = await orders.get_order(topic)
        run.result({"topic": topic, "order": found})
        run.line(f"get orderConf success. topic=[{topic}], orderConf=[{found}]")
    elif method == "put":
        if not order:
            raise click.UsageError("Set -v/--orderConf with -m put.")
        if not run.confirmed(f"Set the order of topic {topic} to {order}"):
            return
        await orders.put_order(topic, order)
        run.result({"topic": topic, "order": order})
        run.line(f"update orderConf success. topic=[{topic}], orderConf=[{order}]")
    else:
        if not run.confirmed(f"Delete the order of topic {topic} from {ORDER_NAMESPACE}"):
            return
        await orders.delete_order(topic)
        run.result({"topic": topic, "order": None})
        run.line(f"delete orderConf success. topic=[{topic}]")


def permission_text(permission: int) -> str:
    """Return a permission as RocketMQ prints it: RW-."""
    return (
        ("R" if is_readable(permission) else "-")
        + ("W" if is_writable(permission) else "-")
        + ("X" if permission & _INHERITED else "-")
    )


def _config_text(configuration: TopicConfiguration) -> str:
    """Return a configuration as Java's class prints it."""
    return (
        f"TopicConfig [topicName={configuration.topic}, "
        f"readQueueNums={configuration.read_queues}, "
        f"writeQueueNums={configuration.write_queues}, "
        f"perm={permission_text(configuration.permission)}, "
        f"topicFilterType={configuration.filter_type.name}, "
        f"topicSysFlag={configuration.system_flag}, "
        f"order={cell(configuration.order)}]"
    )
