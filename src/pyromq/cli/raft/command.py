"""`pyromq raft`: a table of subcommands, each imported only when it runs."""

from __future__ import annotations

import click

from pyromq.cli.lazy_group import LazyGroup

#: Name to the command's module and attribute, and its line in `pyromq raft --help`.
COMMANDS = {
    "status": ("pyromq.cli.raft.status:status", "Show every node of a raft group."),
    "transfer": ("pyromq.cli.raft.transfer:transfer", "Let another node of a raft group lead."),
    "check": ("pyromq.cli.raft.check:check", "Check the files of a raft node."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def raft() -> None:
    """Show, steer and check raft groups: brokers that elect their master.

    \b
    Examples
        pyromq raft status
        pyromq raft transfer n1
        pyromq raft check /var/lib/pyromq/store
    """
