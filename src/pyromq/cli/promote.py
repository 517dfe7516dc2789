"""`pyromq broker promote`: turn a replica into a master.

Prints the broker's checks and what to do next. The exit code is 0 only if the broker is a master
now; 1 if it refused, failed or did not answer, 2 for a wrong command line.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import click
import orjson

from pyromq.cli.client_options import Identity, identity_options
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.promotion import PromoteBrokerRequestHeader, PromotionReport
from pyromq.remoting.address import AddressError, parse_address
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError

#: A promotion waits for NameServers, for the old master, and for open transactions to be read.
_TIMEOUT_SECONDS: Final = 120.0
_REFUSED: Final = """
Stop the old master first: two masters of one name accept messages that neither log can merge.
If it runs but is cut off from its clients, --force promotes this broker all the same."""
_NEXT: Final = """
Next
  1. Check that clients see the change: mqadmin clusterList -n NAMESERVER
  2. Bring the old master back as a replica: set brokerRole=SLAVE and brokerId={broker_id} in its
     file, then start it.
  3. If it stops because its log is different or longer, cut it as its message says, with
     pyromq store truncate, and start it again."""


@click.command()
@click.argument("address")
@click.option(
    "--role",
    type=click.Choice(["ASYNC_MASTER", "SYNC_MASTER"], case_sensitive=False),
    default="ASYNC_MASTER",
    show_default=True,
    help="Give the broker this role. A SYNC_MASTER answers SLAVE_NOT_AVAILABLE to sends until it "
    "has a replica.",
)
@click.option("--force", is_flag=True, help="Promote the broker even if its master is alive.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@identity_options
def promote(
    address: str,
    role: str,
    force: bool,
    as_json: bool,
    identity: Identity,
) -> None:
    """Turn the replica at ADDRESS (host:port, as clients use it) into a master.

    The broker checks first that its old master is gone: it refuses while a master of its name
    answers or while its connection to the master is alive. It saves the new role in its file, so a
    restart keeps it. The exit code is 0 only if the broker is a master now.

    \b
    Examples
        pyromq broker promote 10.0.0.2:10911
        pyromq broker promote 10.0.0.2:10911 --role SYNC_MASTER --json
    """
    try:
        parse_address(address)
    except AddressError as error:
        raise click.BadParameter(str(error), param_hint="ADDRESS") from error
    answer = asyncio.run(_promote(identity.client(), address, role.upper(), force=force))
    try:
        report = PromotionReport.decode(answer.body) if answer.body else None
    except BodyError as error:
        raise click.ClickException(f"{address} answered nonsense: {error}") from error
    if report is None:
        raise click.ClickException(_failure(address, answer))
    if as_json:
        click.echo(orjson.dumps(report.to_value()).decode())
    else:
        _print(address, report)
    if not report.promoted or answer.code != ResponseCode.SUCCESS:
        sys.exit(1)


async def _promote(
    client: RemotingClient, address: str, role: str, *, force: bool
) -> RemotingCommand:
    header = PromoteBrokerRequestHeader(role, force)
    request = RemotingCommand(RequestCode.PROMOTE_BROKER, ext_fields=header.encode())
    try:
        return await client.request(address, request, _TIMEOUT_SECONDS)
    except RemotingError as error:
        raise click.ClickException(f"no answer from {address}: {error}") from error
    finally:
        await client.close()


def _failure(address: str, answer: RemotingCommand) -> str:
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return f"{address} cannot be promoted: it is not a broker of pyromq"
    return f"{address}: {answer.remark or f'response code {answer.code}'}"


def _print(address: str, report: PromotionReport) -> None:
    for check in report.checks:
        outcome = "ok" if check.passed else "ignored" if report.promoted else "refused"
        click.echo(f"{outcome:8} {check.detail}")
    if not report.promoted:
        click.echo(f"not promoted: {address} is {report.role} of broker {report.broker_name}")
        if any(check.name != "role" and not check.passed for check in report.checks):
            click.echo(_REFUSED)
        return
    click.echo(
        f"promoted: {address} is {report.role} of broker {report.broker_name}; its log ends at "
        f"{report.log_end}"
    )
    click.echo(_NEXT.format(broker_id=report.replica_id))
