"""TRANSFER_LEADERSHIP: let another node of the raft group lead.

Not RocketMQ's; `pyromq raft transfer` sends it. The answer comes when the other node has won, or
failed to. The state of the group is in GET_REPLICATION_STATUS (`handlers.admin.replication`).

Runs on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from pyromq.acl import classification as access
from pyromq.broker.routes import Route, Routes
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.leadership import TransferLeadershipRequestHeader

logger = logging.getLogger(__name__)


class RaftAdminHandlers:
    """Gives orders to the node of this broker."""

    def __init__(self, transfer: Callable[[str], Awaitable[str | None]]) -> None:
        """`transfer` returns why a node did not take over, or None if it did."""
        self._transfer = transfer

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(Route(RequestCode.TRANSFER_LEADERSHIP, access.ADMIN, self.transfer))

    async def transfer(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """TRANSFER_LEADERSHIP: respond once the other node leads."""
        node = TransferLeadershipRequestHeader.decode(request.ext_fields).node_id
        logger.info("transfer to node %.40s requested by %s", node, connection.remote_address)
        problem = await self._transfer(node)
        if problem is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"not transferred: {problem}")
        return request.answer()
