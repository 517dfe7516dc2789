"""The `pyromq` command: a table of subcommands, each imported only when it runs.

This module imports no subcommand, so `pyromq --help` is fast and a client never loads the broker.
"""

from __future__ import annotations

import click

from pyromq import __version__
from pyromq.cli.lazy_group import LazyGroup
from pyromq.protocol import kernel

#: Name to the command's module and attribute, and its line in `pyromq --help`.
COMMANDS = {
    "standalone": (
        "pyromq.cli.standalone:standalone",
        "Run a NameServer and one or more brokers.",
    ),
    "namesrv": ("pyromq.cli.namesrv:namesrv", "Run a NameServer."),
    "broker": ("pyromq.cli.broker:broker", "Run a broker."),
    "raft": ("pyromq.cli.raft.command:raft", "Show, steer and check raft groups."),
    "admin": ("pyromq.cli.admin.command:admin", "Administer a cluster with mqadmin's commands."),
    "send": ("pyromq.cli.send:send", "Send messages to a topic."),
    "consume": ("pyromq.cli.consume:consume", "Print the messages of a topic as they arrive."),
    "bench": ("pyromq.cli.bench.command:bench", "Load a cluster and measure rates and latencies."),
    "store": ("pyromq.cli.store:store", "Inspect, check and back up the files of a store."),
    "doctor": ("pyromq.cli.doctor.command:doctor", "Examine a machine and running servers."),
    "tls": ("pyromq.cli.tls:tls", "Make certificates for tests."),
    "acl": ("pyromq.cli.acl:acl", "Make and check the files of access control."),
    "spark": ("pyromq.cli.spark:spark", "Archive, replay, audit and rebuild with Spark."),
}


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"pyromq, version {__version__}, {kernel.describe()}")
        context.exit()


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and whether the compiled kernel runs, and exit.",
)
def main() -> None:
    """Apache RocketMQ's system in Python: servers, clients and tools.

    \b
    Start with
        pyromq standalone                 in one shell, and in another
        pyromq send greetings 'hello'
        pyromq consume greetings --from first
    """
