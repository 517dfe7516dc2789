"""What follows the death of a broker that has replicas: `pyromq standalone --replicas`.

A replica that dies is restarted as one. A master is not restarted at once: the user may want to
promote a replica, and a master that is back prevents that. So it stays away for a minute. If a
replica is promoted meanwhile, the old master comes back as its replica; otherwise it comes back as
the master.

The promoted broker is found in the table of the NameServer, which drops a dead master when its
connection breaks. Used by `cli.brokers.processes` on the loop of the parent process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from pyromq.broker.config import MASTER_ID
from pyromq.cli.brokers import roles
from pyromq.cli.brokers.child import Order
from pyromq.cli.brokers.roles import Role
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.address import AddressError, parse_address
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError

logger = logging.getLogger(__name__)

#: How long a master stays away, so that one of its replicas can be promoted.
AWAY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
_ANSWER_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Member:
    """A broker of a group of replicas."""

    #: The name that it shares with the others.
    broker_name: str
    #: The role of its first start.
    role: Role
    #: Where a promotion saves its role.
    role_file: Path


class Failover:
    """Restarts the brokers of `members`, by the names of their processes."""

    def __init__(
        self,
        name_server: NameServer,
        members: Mapping[str, Member],
        *,
        away_seconds: float = AWAY_SECONDS,
    ) -> None:
        self._name_server = name_server
        self._members = members
        self._away_seconds = away_seconds

    def pause(self, name: str, pause: float) -> float:
        """Return the seconds before the restart of a process that died, at least `pause`."""
        return pause if self._role(name).is_replica else max(pause, self._away_seconds)

    async def wait(self, name: str, port: int, order: Order, pause: float) -> Order:
        """Wait before the restart of the broker at `port`; return the order with its role.

        Raises click.ClickException, OSError or PropertiesError if its role cannot be read or saved.
        """
        role = self._role(name)
        if role.is_replica:
            await asyncio.sleep(pause)
        else:
            logger.warning(
                "%s was the master: promote a replica now, with pyromq broker promote ADDRESS, or "
                "wait for its restart",
                name,
            )
            if await self._is_replaced(self._members[name].broker_name, port, pause):
                role = roles.replica(self._free_id(name))
                roles.save_role(self._members[name].role_file, role)
                logger.warning("%s was replaced and returns as replica %d", name, role.broker_id)
        return replace(order, properties={**order.properties, **role.properties()})

    def _role(self, name: str) -> Role:
        member = self._members[name]
        return roles.saved_role(member.role_file) or member.role

    async def _is_replaced(self, broker_name: str, port: int, seconds: float) -> bool:
        """Wait until another broker is the master; return False if none is in time."""
        deadline = time.monotonic() + seconds
        while not (masters := master_ports(self._name_server, [broker_name])) or port in (
            masters.values()
        ):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def _free_id(self, name: str) -> int:
        broker_name = self._members[name].broker_name
        used = {
            self._role(other).broker_id
            for other, member in self._members.items()
            if other != name and member.broker_name == broker_name
        }
        return next(number for number in range(1, len(self._members) + 1) if number not in used)


def master_ports(name_server: NameServer, names: Iterable[str]) -> dict[str, int]:
    """Return the port of each broker's master, if it is registered."""
    table = name_server.routes.cluster_info().broker_addr_table
    found = {}
    for name in names:
        address = table[name].broker_addrs.get(MASTER_ID) if name in table else None
        try:
            if address is not None:
                found[name] = parse_address(address)[1]
        except AddressError:  # anybody may register
            continue
    return found


async def until_following(
    addresses: Sequence[str], seconds: float, client: RemotingClient | None = None
) -> None:
    """Wait until the replicas at these addresses follow their masters, or time is over.

    Closes `client`, which may read the status of replication.
    The start does not depend on it: the log of a replica that does not follow says why.
    """
    client = client or RemotingClient(connect_timeout=_ANSWER_SECONDS)
    try:
        async with asyncio.timeout(seconds):
            for address in addresses:
                while not await _is_following(client, address):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        logger.warning("not all replicas follow their masters after %g s", seconds)
    finally:
        await client.close()


async def _is_following(client: RemotingClient, address: str) -> bool:
    command = RemotingCommand(RequestCode.GET_REPLICATION_STATUS)
    try:
        answer = await client.request(address, command, _ANSWER_SECONDS)
        return bool(orjson.loads(answer.body)["following"]["is_connected"])
    except (RemotingError, ValueError, KeyError, TypeError):
        return False
