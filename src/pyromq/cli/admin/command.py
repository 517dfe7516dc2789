"""`pyromq admin`: a table of commands, each imported only when it runs.

Every command of mqadmin is here under its own name. As in mqadmin, upper and lower case do not
matter in names, and `help NAME` shows the options of a command.
"""

from __future__ import annotations

import click

from pyromq.cli.lazy_group import LazyGroup

_PACKAGE = "pyromq.cli.admin"

#: Name to the command's module and attribute, and its line in `pyromq admin --help`.
_SERVER_COMMANDS = {
    # Topics
    "topicList": (f"{_PACKAGE}.topic:topic_list", "List the topics."),
    "topicRoute": (f"{_PACKAGE}.topic:topic_route", "Show the brokers and queues of a topic."),
    "topicStatus": (f"{_PACKAGE}.topic:topic_status", "Show the offsets of a topic's queues."),
    "topicClusterList": (
        f"{_PACKAGE}.topic:topic_cluster_list",
        "Show the clusters that serve a topic.",
    ),
    "getTopicConfig": (
        f"{_PACKAGE}.topic:get_topic_config",
        "Show the configuration of a topic at its brokers.",
    ),
    "allocateMQ": (f"{_PACKAGE}.topic:allocate_mq", "Show which queues each client would get."),
    "updateTopic": (f"{_PACKAGE}.topic:update_topic", "Create a topic or change it."),
    "updateTopicPerm": (f"{_PACKAGE}.topic:update_topic_perm", "Change the permission of a topic."),
    "updateOrderConf": (
        f"{_PACKAGE}.topic:update_order_conf",
        "Set, show or delete the order of a topic.",
    ),
    "deleteTopic": (f"{_PACKAGE}.topic:delete_topic", "Delete a topic and its messages."),
    # Statistics
    "statsAll": (f"{_PACKAGE}.stats:stats_all", "Show rates and counts of topics and groups."),
    "brokerStats": (f"{_PACKAGE}.stats:broker_stats", "Show one statistic of a broker."),
    # Clusters and brokers
    "clusterList": (f"{_PACKAGE}.cluster:cluster_list", "List the brokers with their figures."),
    "clusterRT": (
        f"{_PACKAGE}.cluster:cluster_rt",
        "Measure how long brokers take to store messages.",
    ),
    "haStatus": (f"{_PACKAGE}.cluster:ha_status", "Show masters, replicas and their lags."),
    "raftStatus": (f"{_PACKAGE}.cluster:raft_status", "Show the nodes of raft groups."),
    "brokerStatus": (f"{_PACKAGE}.broker:broker_status", "Show the runtime figures of a broker."),
    "brokerConsumeStats": (
        f"{_PACKAGE}.broker:broker_consume_stats",
        "Show the lags of all groups at a broker.",
    ),
    "producer": (f"{_PACKAGE}.broker:producer", "List the producers at a broker."),
    "getBrokerConfig": (f"{_PACKAGE}.broker:get_broker_config", "Show the settings of a broker."),
    "updateBrokerConfig": (
        f"{_PACKAGE}.broker:update_broker_config",
        "Change a setting of a broker.",
    ),
    "sendMsgStatus": (f"{_PACKAGE}.broker:send_msg_status", "Send test messages to a broker."),
    "cleanExpiredCQ": (
        f"{_PACKAGE}.broker:clean_expired_cq",
        "Delete consume-queue files whose messages are gone.",
    ),
    "cleanUnusedTopic": (
        f"{_PACKAGE}.broker:clean_unused_topic",
        "Delete the queues of topics that no longer exist.",
    ),
    "deleteExpiredCommitLog": (
        f"{_PACKAGE}.broker:delete_expired_commit_log",
        "Delete expired commit log files.",
    ),
    # NameServers
    "getNamesrvConfig": (
        f"{_PACKAGE}.namesrv:get_namesrv_config",
        "Show the settings of the NameServers.",
    ),
    "updateNamesrvConfig": (
        f"{_PACKAGE}.namesrv:update_namesrv_config",
        "Change a setting of the NameServers.",
    ),
    "getKvConfig": (f"{_PACKAGE}.namesrv:get_kv_config", "Show keys of the NameServers."),
    "updateKvConfig": (f"{_PACKAGE}.namesrv:update_kv_config", "Set a key of the NameServers."),
    "deleteKvConfig": (f"{_PACKAGE}.namesrv:delete_kv_config", "Delete a key of the NameServers."),
    "wipeWritePerm": (
        f"{_PACKAGE}.namesrv:wipe_write_perm",
        "Take write permission from a broker.",
    ),
    "addWritePerm": (
        f"{_PACKAGE}.namesrv:add_write_perm",
        "Give write permission back to a broker.",
    ),
    # Access control
    "getAclConfig": (f"{_PACKAGE}.acl:get_acl_config", "Show the accounts of a broker."),
    "clusterAclConfigVersion": (
        f"{_PACKAGE}.acl:cluster_acl_config_version",
        "Show the versions of the account files.",
    ),
    "updateAclConfig": (f"{_PACKAGE}.acl:update_acl_config", "Create an account or change it."),
    "deleteAclConfig": (f"{_PACKAGE}.acl:delete_acl_config", "Delete an account."),
    "updateGlobalWhiteAddr": (
        f"{_PACKAGE}.acl:update_global_white_addr",
        "Replace the list of addresses without an account.",
    ),
    # Export
    "exportConfigs": (f"{_PACKAGE}.export:export_configs", "Write settings to a file."),
    "exportMetadata": (f"{_PACKAGE}.export:export_metadata", "Write topics and groups to a file."),
    "exportMetrics": (f"{_PACKAGE}.export:export_metrics", "Write figures to a file."),
}
_CLIENT_COMMANDS = {
    # Connections
    "consumerConnection": (
        f"{_PACKAGE}.consumer:consumer_connection",
        "Show the connected members of a consumer group.",
    ),
    "producerConnection": (
        f"{_PACKAGE}.consumer:producer_connection",
        "Show the connected members of a producer group.",
    ),
    # Consumer groups
    "consumerProgress": (
        f"{_PACKAGE}.consumer:consumer_progress",
        "Show how far consumer groups are.",
    ),
    "consumerStatus": (
        f"{_PACKAGE}.consumer:consumer_status",
        "Show what the members of a group report.",
    ),
    "getConsumerConfig": (
        f"{_PACKAGE}.consumer:get_consumer_config",
        "Show the settings of a consumer group.",
    ),
    "updateSubGroup": (
        f"{_PACKAGE}.consumer:update_sub_group",
        "Create a consumer group or change it.",
    ),
    "deleteSubGroup": (f"{_PACKAGE}.consumer:delete_sub_group", "Delete a consumer group."),
    "startMonitoring": (
        f"{_PACKAGE}.consumer:start_monitoring",
        "Examine all groups again and again.",
    ),
    # Offsets
    "resetOffsetByTime": (
        f"{_PACKAGE}.offset:reset_offset_by_time",
        "Move a consumer group to a time.",
    ),
    "skipAccumulatedMessage": (
        f"{_PACKAGE}.offset:skip_accumulated_message",
        "Move a consumer group to the end.",
    ),
    "cloneGroupOffset": (
        f"{_PACKAGE}.offset:clone_group_offset",
        "Give a group the offsets of another one.",
    ),
    "setOffset": (f"{_PACKAGE}.offset:set_offset", "Set exact offsets of a consumer group."),
    "previewOffsets": (
        f"{_PACKAGE}.offset:preview_offsets",
        "Show offsets, and where a reset would move them.",
    ),
    # Messages
    "queryMsgById": (f"{_PACKAGE}.message:query_msg_by_id", "Show messages by offset message id."),
    "queryMsgByKey": (f"{_PACKAGE}.message:query_msg_by_key", "List messages by key."),
    "queryMsgByOffset": (
        f"{_PACKAGE}.message:query_msg_by_offset",
        "Show the message at a queue offset.",
    ),
    "queryMsgByTime": (
        f"{_PACKAGE}.message:query_msg_by_time",
        "List messages by the time they were stored.",
    ),
    "queryMsgByUniqueKey": (
        f"{_PACKAGE}.message:query_msg_by_unique_key",
        "Show a message by its producer's id.",
    ),
    "queryMsgTraceById": (
        f"{_PACKAGE}.message:query_msg_trace_by_id",
        "Show the traces of a message.",
    ),
    "printMsg": (f"{_PACKAGE}.message_reading:print_msg", "Print the messages of a topic."),
    "printMsgByQueue": (
        f"{_PACKAGE}.message_reading:print_msg_by_queue",
        "Print the messages of a queue.",
    ),
    "consumeMessage": (f"{_PACKAGE}.message_reading:consume_message", "Read messages of a topic."),
    "sendMessage": (f"{_PACKAGE}.message:send_message", "Send a message."),
    "checkMsgSendRT": (
        f"{_PACKAGE}.message:check_msg_send_rt",
        "Measure how long sends to a topic take.",
    ),
    "queryCq": (f"{_PACKAGE}.message:query_cq", "Show entries of a consume queue."),
    # Dead letters, transactions, delays
    "dlqList": (f"{_PACKAGE}.stored:dlq_list", "List the groups that have dead letters."),
    "dlqShow": (f"{_PACKAGE}.stored:dlq_show", "Show dead letters of a group."),
    "dlqResend": (f"{_PACKAGE}.stored:dlq_resend", "Resend dead letters of a group, each once."),
    "halfMessages": (f"{_PACKAGE}.stored:half_messages", "Show open transactions."),
    "delayedMessages": (
        f"{_PACKAGE}.stored:delayed_messages",
        "Show delayed messages and when they are due.",
    ),
}

COMMANDS = {**_SERVER_COMMANDS, **_CLIENT_COMMANDS}

#: Other names that mqadmin accepts.
ALIASES = {
    "deleteAccessConfig": "deleteAclConfig",
    "getAccessConfigSubCommand": "getAclConfig",
}


class AdminGroup(LazyGroup):
    """A group that finds commands as mqadmin does."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command by its name or alias, in any case."""
        lower = cmd_name.lower()
        if lower == "help":
            return _help
        for alias, name in ALIASES.items():
            if alias.lower() == lower:
                return super().get_command(ctx, name)
        for name in self.table:
            if name.lower() == lower:
                return super().get_command(ctx, name)
        return None


@click.group(cls=AdminGroup, table=COMMANDS)
def admin() -> None:
    """Administer a cluster of pyromq or Apache RocketMQ.

    Commands and options are those of mqadmin, so a script works after `mqadmin` is replaced by
    `pyromq admin`. Output to a terminal is a table, output to a pipe has mqadmin's lines and
    columns, and --json prints one JSON value. The exit code is 0 if the work was done, 1 if it
    failed, 2 for a wrong command line, 3 if something does not exist, 4 if a server does not
    answer, and 5 if it refuses the account.
    """


@click.command(name="help", add_help_option=False)
@click.argument("name", required=False)
@click.pass_context
def _help(context: click.Context, name: str | None) -> None:
    """Show the options of a command."""
    group = context.parent
    assert group is not None
    assert isinstance(group.command, AdminGroup)
    if name is None:
        click.echo(group.get_help())
        return
    _, command, _ = group.command.resolve_command(group, [name])
    assert command is not None
    with click.Context(command, info_name=command.name, parent=group) as own:
        click.echo(own.get_help())
