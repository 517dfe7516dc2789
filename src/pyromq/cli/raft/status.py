"""`pyromq raft status`: show every node of a raft group.

The exit code is 0 only if there is a leader that a quorum follows, so that scripts and monitors can
use it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime

import click
import orjson
from rich.console import Console
from rich.table import Table

from pyromq.base.command_options import namesrv_option
from pyromq.cli.client_options import Identity, identity_options
from pyromq.cli.raft.group import DLEDGER, GroupView, NodeView, Search


@click.command()
@click.argument("group", required=False)
@namesrv_option
@identity_options
@click.option("--json", "as_json", is_flag=True, help="Print the state as one JSON object.")
@click.option(
    "--watch",
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    help="Print the state again and again, at this interval.",
)
def status(
    group: str | None, namesrv: str, identity: Identity, as_json: bool, watch: float | None
) -> None:
    """Show every node of a raft GROUP: its role, term and entries, and how far it is behind.

    GROUP is the name of a broker or of a group, or the address (host:port) of one of its brokers.
    It may be left out if the NameServer knows one group only. RocketMQ's own nodes do not tell
    their term and entries. The exit code is 0 only if there is a leader that a quorum follows.

    \b
    Examples
        pyromq raft status
        pyromq raft status broker-a --namesrv 10.0.0.1:9876
        pyromq raft status 10.0.0.2:10911 --watch 1
        pyromq raft status broker-a --json
    """
    while True:
        view = asyncio.run(_look(namesrv, identity, group))
        if as_json:
            click.echo(orjson.dumps(view.to_value()).decode())
        else:
            _print(view)
        if watch is None:
            break
        time.sleep(watch)
    if not view.is_working:
        sys.exit(1)


async def _look(namesrv: str, identity: Identity, group: str | None) -> GroupView:
    async with Search(namesrv, identity) as search:
        return await search.find(group)


def _print(view: GroupView) -> None:
    leader = view.leader
    size = len(view.nodes)
    who = "has no leader" if leader is None else f"is led by {leader.id}"
    click.echo(
        f"group {view.name} (broker {view.broker_name}) {who}; {view.agreeing} of {size} nodes "
        f"follow, {view.quorum} are a quorum"
    )
    table = Table("node", "raft address", "broker", "kind", "role", "term", "leader")
    for name in ("entries", "committed", "lag", "connected"):
        table.add_column(name, justify="right")
    for node in view.nodes.values():
        table.add_row(
            node.id,
            node.address,
            node.broker_address or "?",
            _text(node.kind),
            _text(node.role) if node.is_up else "down",
            _text(node.term),
            _text(node.leader),
            _entries(node),
            _text(node.committed_index),
            _text(node.lag),
            {True: "yes", False: "no", None: "?"}[node.connected],
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    for node in view.nodes.values():
        if node.changed_at is not None:
            changed = datetime.fromtimestamp(node.changed_at / 1000, UTC)
            click.echo(f"{node.id}: {node.role} since {changed:%Y-%m-%d %H:%M:%S}Z: {node.reason}")
        elif node.reason is not None:
            click.echo(f"{node.id}: {node.reason}")
        elif not node.is_up:
            click.echo(f"{node.id}: answers neither as a broker nor at {node.address}")
        elif node.kind == DLEDGER:
            end = node.committed_position
            known = "" if end is None else f"; its committed messages end at {end}"
            click.echo(f"{node.id}: RocketMQ's own; its term and entries are not to be had{known}")
    if leader is not None and not view.is_working:
        click.echo(f"{leader.id} has no quorum: it refuses messages, or will soon")


def _entries(node: NodeView) -> str:
    if node.end_index is None:
        return "?"
    return "none" if node.end_index < 0 else f"{node.begin_index}..{node.end_index}"


def _text(value: object) -> str:
    return "?" if value is None else str(value)
