"""Maintenance: have brokers delete files and queues that are no longer needed.

Brokers do all of this by themselves at times; these requests do it now. Runs on the event loop of
the `Admin`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyromq.admin.errors import AdminError
from pyromq.admin.session import Area
from pyromq.protocol.wire.codes import RequestCode

#: Deleting files may take a while.
_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The brokers that were cleaned."""

    brokers: tuple[str, ...]


class Maintenance(Area):
    """Clean-up at the broker at an address, at all brokers of a cluster, or at all brokers."""

    async def clean_expired_queues(
        self, *, broker: str | None = None, cluster: str | None = None
    ) -> Cleaning:
        """Delete consume-queue files whose messages are no longer in the commit log."""
        return await self._clean(
            "cleaning consume queues", RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, broker, cluster
        )

    async def clean_unused_topics(
        self, *, broker: str | None = None, cluster: str | None = None
    ) -> Cleaning:
        """Delete the queues of topics that no longer exist."""
        return await self._clean(
            "cleaning unused topics", RequestCode.CLEAN_UNUSED_TOPIC, broker, cluster
        )

    async def delete_expired_logs(
        self, *, broker: str | None = None, cluster: str | None = None
    ) -> Cleaning:
        """Delete commit log files older than the retention time."""
        return await self._clean(
            "deleting expired commit logs", RequestCode.DELETE_EXPIRED_COMMITLOG, broker, cluster
        )

    async def targets(self, *, broker: str | None = None, cluster: str | None = None) -> list[str]:
        """Return the addresses that a clean-up would go to."""
        if broker is not None:
            return [broker]
        if cluster is not None:
            return await self._session.all_of_cluster(cluster)
        info = await self._session.cluster_info()
        return sorted(
            address
            for data in info.broker_addr_table.values()
            for address in data.broker_addrs.values()
        )

    async def _clean(
        self, what: str, code: RequestCode, broker: str | None, cluster: str | None
    ) -> Cleaning:
        addresses = await self.targets(broker=broker, cluster=cluster)
        if not addresses:
            raise AdminError(f"{what}: no broker is registered at the NameServer")
        await self._session.on_each(
            what,
            addresses,
            lambda address: self._session.ask(address, code, request_timeout=_SECONDS),
        )
        return Cleaning(tuple(addresses))
