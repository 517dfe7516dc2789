"""`pyromq broker replicas`: show how far replicas are behind, or how a replica is doing."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import click
import orjson
from rich.console import Console
from rich.table import Table

from pyromq.cli.client_options import Identity, identity_options
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.address import AddressError, parse_address
from pyromq.remoting.errors import RemotingError

_TIMEOUT_SECONDS: Final = 5.0


@click.command()
@click.argument("address")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
@click.option(
    "--watch",
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    help="Print the figures again and again, at this interval.",
)
@identity_options
def replicas(
    address: str,
    as_json: bool,
    watch: float | None,
    identity: Identity,
) -> None:
    """Show the replication of the broker at ADDRESS (host:port, as clients use it).

    A master shows each replica with its lag in bytes and milliseconds. A replica shows which
    master it follows, and where its log ends.

    \b
    Examples
        pyromq broker replicas 10.0.0.1:10911
        pyromq broker replicas 10.0.0.1:10911 --watch 1
        pyromq broker replicas 10.0.0.1:10911 --json
    """
    try:
        parse_address(address)
    except AddressError as error:
        raise click.BadParameter(str(error), param_hint="ADDRESS") from error
    while True:
        figures = asyncio.run(_figures(address, identity))
        if as_json:
            click.echo(orjson.dumps(figures).decode())
        else:
            _print(address, figures)
        if watch is None:
            return
        time.sleep(watch)


async def _figures(address: str, identity: Identity) -> dict[str, Any]:
    client = identity.client()
    try:
        answer = await client.request(
            address, RemotingCommand(RequestCode.GET_REPLICATION_STATUS), _TIMEOUT_SECONDS
        )
    except RemotingError as error:
        raise click.ClickException(f"no answer from {address}: {error}") from error
    finally:
        await client.close()
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise click.ClickException(
            f"{address} does not tell: it is not a broker of pyromq. Compare commitLogMaxOffset of "
            "master and replica with mqadmin brokerStatus"
        )
    try:
        figures = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise click.ClickException(f"{address}: {answer.remark or error}") from error
    if not isinstance(figures, dict) or "role" not in figures:
        raise click.ClickException(f"{address} answered nonsense")
    return figures


def _print(address: str, figures: dict[str, Any]) -> None:
    log = f"its log is from {figures['logStart']} to {figures['logEnd']}"
    click.echo(f"{address} is {figures['role']}, broker id {figures['brokerId']}; {log}")
    following = figures["following"]
    if following is not None:
        master = following["master"] or "an unknown master"
        how = "follows" if following["is_connected"] else "does not reach"
        click.echo(following["stopped"] or f"it {how} {master}")
        return
    if not figures["replicas"]:
        click.echo("it has no replicas")
        return
    table = Table("replica", "kind", "broker id", "at", "lag, bytes", "lag, ms", "connected, s")
    for replica in figures["replicas"]:
        broker_id = replica["broker_id"]
        table.add_row(
            replica["address"],
            replica["kind"],
            "?" if broker_id is None else str(broker_id),
            str(replica["acked"]),
            f"{replica['lag_bytes']:,}",
            f"{replica['lag_millis']:,}",
            f"{replica['connected_seconds']:,.0f}",
        )
    Console().print(table)
