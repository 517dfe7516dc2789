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
    "topicStatus": (f"{_PACKAGE}.topic:topic_status", "Show the offsets of a topic's queues."),
}

_CLIENT_COMMANDS: dict[str, tuple[str, str]] = {}

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

    \b
    Examples
        pyromq admin clusterList -n 10.0.0.1:9876
        pyromq admin updateTopic -c DefaultCluster -t orders -r 8 -w 8
        pyromq admin topicStatus -t orders --json
        pyromq admin help updateTopic
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
