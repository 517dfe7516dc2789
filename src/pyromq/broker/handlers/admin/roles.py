"""PROMOTE_BROKER: turn a replica into a master.

Not RocketMQ's; `pyromq broker promote` sends it. A refused promotion is a SYSTEM_ERROR whose remark
names the failed checks and whose body is the whole report (`protocol.wire.promotion`).

Runs on the loop; waits for NameServers and for the old master.
"""

from __future__ import annotations

import logging

from pyromq.acl import classification as access
from pyromq.base.settings import ConfigError
from pyromq.broker.role import RoleError
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.promotion import Promotion, master_role
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.java.properties import PropertiesError
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.promotion import PromoteBrokerRequestHeader

logger = logging.getLogger(__name__)


class RoleAdminHandlers:
    """Changes the role of the broker."""

    def __init__(self, promotion: Promotion) -> None:
        self._promotion = promotion

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(Route(RequestCode.PROMOTE_BROKER, access.ADMIN, self.promote))

    async def promote(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """PROMOTE_BROKER: respond once the broker is a master and the NameServers know it."""
        header = PromoteBrokerRequestHeader.decode(request.ext_fields)
        logger.info(
            "promotion to %.100s%s requested by %s",
            header.role,
            ", forced," if header.force else "",
            connection.remote_address,
        )
        try:
            report = await self._promotion.promote(master_role(header.role), force=header.force)
        except (RoleError, ConfigError, PropertiesError, OSError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"not promoted: {error}") from error
        if report.promoted:
            return request.answer(body=report.encode())
        failed = "; ".join(check.detail for check in report.checks if not check.passed)
        return request.answer(
            ResponseCode.SYSTEM_ERROR, f"not promoted: {failed}", body=report.encode()
        )
