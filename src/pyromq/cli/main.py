"""The command `pyromq`: a table of subcommands, each loaded only when it is asked for.

A subcommand's module imports what it needs (a broker, a client) only when the
subcommand runs, so that `pyromq --help` and every start are quick.
"""

from __future__ import annotations

import click

from pyromq import __version__
from pyromq.cli.lazy_group import LazyGroup

#: name -> module and attribute of the command, its line in `pyromq --help`
COMMANDS = {
    "standalone": (
        "pyromq.cli.standalone:standalone",
        "Run a NameServer and a broker in one process.",
    ),
    "namesrv": ("pyromq.cli.namesrv:namesrv", "Run a NameServer."),
    "broker": ("pyromq.cli.broker:broker", "Run a broker."),
    "send": ("pyromq.cli.send:send", "Send messages to a topic."),
    "consume": ("pyromq.cli.consume:consume", "Read a topic's messages as they come."),
    "bench": ("pyromq.cli.bench.command:bench", "Make load on a cluster and measure it."),
    "store": ("pyromq.cli.store:store", "Look into the files of a broker's store."),
    "spark": ("pyromq.cli.spark:spark", "Archive, replay, audit and rebuild with Spark."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="pyromq")
def main() -> None:
    """Apache RocketMQ's system in Python: servers, clients and tools.

    \b
    Begin with
        pyromq standalone                 in one shell, then in another
        pyromq send greetings 'hello'
        pyromq consume greetings --from first
    """
