"""GET_ALL_DELAY_OFFSET: how far delayed messages are delivered, for replicas and tools.

Quick: answered on the loop.
"""

from __future__ import annotations

from pyromq.broker.routes import Route, Routes
from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.connection import Connection


class DelayAdminHandlers:
    """Tells of delay levels."""

    def __init__(self, offsets: DelayOffsetTable) -> None:
        self._offsets = offsets

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.GET_ALL_DELAY_OFFSET, self.all_delay_offsets),
        )

    def all_delay_offsets(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """The next queue offset of each delay level, as in `config/delayOffset.json`."""
        del connection
        return request.answer(body=self._offsets.table().encode())
