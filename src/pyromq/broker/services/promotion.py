"""Promotes a replica to a master, after checks that its old master is gone.

Two masters of one name would both accept messages, and neither log could follow the other again. So
a promotion is refused while

- a broker that was this one's master answers as a master, or
- the connection to the master is alive.

A forced promotion reports the same checks and ignores their outcome. A broker that is a master is
never promoted.

Masters are asked over a new connection, because a known one may be half open. Their addresses come
from the NameServers, which are asked again, from the last answer that named a master, and from the
replication addresses: the port for clients is the one below.

Used by `handlers.admin.roles`, on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from pyromq.broker.role import Role, RoleError
from pyromq.protocol.java.properties import PropertiesError, parse_properties
from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.wire.acl import Signer
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.promotion import PromotionCheck, PromotionReport
from pyromq.remoting.address import AddressError, parse_address
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError
from pyromq.store.config import BrokerRole
from pyromq.tls.client import ClientTls

logger = logging.getLogger(__name__)

#: How long an old master may take to answer.
MASTER_TIMEOUT_SECONDS: Final = 3.0
#: Errors of a TLS handshake with a server that is alive.
_REFUSALS: Final = (ssl.SSLError, ConnectionResetError, ConnectionAbortedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedBroker:
    """The broker, as a promotion sees it."""

    name: str
    address: str
    role: Role
    #: Asks the NameServers for the master.
    refresh: Callable[[], Awaitable[None]]
    #: Addresses for clients, and replication addresses, of brokers that may be the master.
    master_addresses: Callable[[], Iterable[str]]
    replication_addresses: Callable[[], Iterable[str]]
    is_following: Callable[[], bool]
    become_master: Callable[[BrokerRole], Awaitable[None]]
    log_end: Callable[[], int]
    #: Encrypts the connections to masters.
    tls: ClientTls | None = None
    #: Signs requests to masters.
    sign: Signer | None = None


class Promotion:
    """Checks and promotes one broker."""

    def __init__(
        self, broker: PromotedBroker, *, master_timeout: float = MASTER_TIMEOUT_SECONDS
    ) -> None:
        self._broker = broker
        self._master_timeout = master_timeout
        self._promoting = asyncio.Lock()

    async def promote(self, role: BrokerRole, *, force: bool = False) -> PromotionReport:
        """Promote the broker if all checks pass, or if `force` is set; report them either way.

        Raise RoleError, OSError, or whatever reading the log raises, if the change itself fails.
        """
        async with self._promoting:
            replica_id = self._broker.role.broker_id
            checks = [self._check_role()]
            promoted = False
            if checks[0].passed:
                checks += await self._check_masters()
                checks.append(self._check_connection())
                if force or all(check.passed for check in checks):
                    if not all(check.passed for check in checks):
                        logger.warning(
                            "promotion is forced although checks failed: %s", _failures(checks)
                        )
                    await self._broker.become_master(role)
                    promoted = True
            if not promoted:
                logger.warning(
                    "promotion refused, the broker stays a replica: %s", _failures(checks)
                )
            return self._report(checks, replica_id, promoted=promoted)

    def _check_role(self) -> PromotionCheck:
        role = self._broker.role
        if not role.is_replica:
            return PromotionCheck("role", False, f"the broker is a master, {role.current.name}")
        return PromotionCheck("role", True, f"the broker is replica {role.broker_id}")

    async def _check_masters(self) -> list[PromotionCheck]:
        """Ask every broker that may be the master."""
        await self._broker.refresh()
        addresses = self._candidates()
        if not addresses:
            return [PromotionCheck("master", True, "no NameServer knows a master of this name")]
        client = RemotingClient(
            connect_timeout=self._master_timeout,
            tls=self._broker.tls,
            before_request=self._broker.sign,
        )
        try:
            return list(await asyncio.gather(*(self._ask(client, each) for each in addresses)))
        finally:
            await client.close()

    def _candidates(self) -> list[str]:
        broker = self._broker
        found = list(broker.master_addresses())
        for address in broker.replication_addresses():
            try:
                host, port = parse_address(address)
            except AddressError:  # of a NameServer
                continue
            found.append(format_address(host, port - 1))
        return [address for address in dict.fromkeys(found) if address != broker.address]

    async def _ask(self, client: RemotingClient, address: str) -> PromotionCheck:
        request = RemotingCommand(RequestCode.GET_BROKER_CONFIG)
        try:
            answer = await client.request(address, request, self._master_timeout)
        except RemotingError as error:
            if self._broker.tls is not None and isinstance(error.__cause__, _REFUSALS):
                return PromotionCheck("master", False, f"{address} is alive, but refused: {error}")
            return PromotionCheck("master", True, f"{address} does not answer: {error}")
        try:
            settings = parse_properties(answer.body)
        except PropertiesError:
            settings = {}
        if answer.code != ResponseCode.SUCCESS or "brokerRole" not in settings:
            return PromotionCheck("master", False, f"{address} answers, with code {answer.code}")
        name, role = settings.get("brokerName", ""), settings["brokerRole"]
        if role == BrokerRole.SLAVE.name or name != self._broker.name:
            return PromotionCheck("master", True, f"{address} is {role} of broker {name:.255}")
        return PromotionCheck("master", False, f"{address} answers as {role:.100}")

    def _check_connection(self) -> PromotionCheck:
        if self._broker.is_following():
            return PromotionCheck("replication", False, "the connection to the master is alive")
        return PromotionCheck("replication", True, "there is no connection to a master")

    def _report(
        self, checks: list[PromotionCheck], replica_id: int, *, promoted: bool
    ) -> PromotionReport:
        broker = self._broker
        return PromotionReport(
            broker_name=broker.name,
            promoted=promoted,
            role=broker.role.current.name,
            replica_id=replica_id,
            log_end=broker.log_end(),
            checks=checks,
        )


def master_role(name: str) -> BrokerRole:
    """Return the role of this name. Raises RoleError unless it is a master's."""
    if name not in (BrokerRole.ASYNC_MASTER.name, BrokerRole.SYNC_MASTER.name):
        raise RoleError(f"role {name:.100}: expected ASYNC_MASTER or SYNC_MASTER")
    return BrokerRole[name]


def _failures(checks: list[PromotionCheck]) -> str:
    return "; ".join(check.detail for check in checks if not check.passed)
