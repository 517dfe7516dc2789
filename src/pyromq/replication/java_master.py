"""What a replica can check of a Java master, which does not negotiate.

The master's remoting port tells the length of its log, and returns the record at an offset. So the
replica compares the ends of the two logs, and its last record with the master's. If they differ,
it bisects for the first record that does. Everything later is checked as it arrives: a frame must
start where this log ends, and its records must name the offsets at which they are.

A master whose remoting port cannot be reached is followed without these checks, with a log line.

Used by `replica`, on the loop; records are read in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.address import parse_address
from pyromq.remoting.errors import RemotingError
from pyromq.remoting.requester import Requester
from pyromq.replication.replica import DivergedError, diverged_text, expired_text
from pyromq.store.config import MessageStoreConfig
from pyromq.store.replication import StoreReplication

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS: Final = 3.0


class JavaMaster:
    """The remoting port of a Java master."""

    def __init__(
        self,
        config: MessageStoreConfig,
        store: StoreReplication,
        client: Requester,
        address: Callable[[], str | None],
    ) -> None:
        """`address` returns where clients reach the master, None if unknown."""
        self._config = config
        self._store = store
        self._client = client
        self._address = address

    async def examine(self, ha_address: str) -> None:
        """Raise DivergedError if the log cannot follow the master's."""
        address = self._address() or remoting_address(ha_address)
        try:
            await self._examine(address)
        except (RemotingError, ValueError) as error:
            logger.warning(
                "cannot compare the log with that of %s, following it unchecked: %s", address, error
            )

    async def _examine(self, address: str) -> None:
        log = self._store.log
        if log.is_empty:
            return
        table = await self._runtime_info(address)
        first, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        if log.end < first:
            then = "the replica starts with the master's newest segment"
            raise DivergedError(expired_text(self._config, log.end, first, then))
        common = await self._common_end(address, max(first, self._store.source.first), end)
        if common < log.end:
            raise DivergedError(diverged_text(self._config, log.end, end, common))

    async def _common_end(self, address: str, first: int, master_end: int) -> int:
        """Return the end of the last record that both logs have."""
        low, high = first, min(self._store.log.end, master_end)
        if await self._has_same_before(address, high, first):
            return high
        # The logs agree at `low` and disagree at `high`, both boundaries.
        while True:
            middle = await asyncio.to_thread(self._store.source.boundary_below, (low + high) // 2)
            if middle <= low:
                return low
            if await self._has_same_before(address, middle, first):
                low = middle
            else:
                high = middle

    async def _has_same_before(self, address: str, offset: int, first: int) -> bool:
        """Whether the record that ends at or before `offset` is the same on the master."""
        source = self._store.source
        while offset > first:
            offset = await asyncio.to_thread(source.boundary_below, offset - 1)
            record = await asyncio.to_thread(source.record, offset)
            if record is not None:
                return record == await self._record(address, offset)
            # A blank record: look at the one before.
        return True

    async def _record(self, address: str, offset: int) -> bytes:
        answer = await self._client.request(
            address,
            RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(offset)}),
            _TIMEOUT_SECONDS,
        )
        return bytes(answer.body) if answer.code == ResponseCode.SUCCESS else b""

    async def _runtime_info(self, address: str) -> dict[str, str]:
        answer = await self._client.request(
            address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), _TIMEOUT_SECONDS
        )
        if answer.code != ResponseCode.SUCCESS:
            raise ValueError(f"response code {answer.code}: {answer.remark}")
        table = dict(KVTable.decode(answer.body).table)
        if not {"commitLogMinOffset", "commitLogMaxOffset"} <= table.keys():
            raise ValueError("its runtime info does not tell the ends of its log")
        return table


def remoting_address(ha_address: str) -> str:
    """Return the remoting address of a broker; its replication port is the one above."""
    host, port = parse_address(ha_address)
    return format_address(host, port - 1)
