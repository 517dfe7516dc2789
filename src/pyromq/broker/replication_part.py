"""The part of a broker that copies the log to replicas, or from a master, as the broker sees it.

The broker starts and stops it, and tells it when the role changes (`broker.role_switch`). On the
loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ReplicationPart(Protocol):
    """Serves replicas while the broker is a master, follows the master while it is a replica."""

    async def start(self) -> None:
        """Begin, in the role that the broker has."""

    async def stop(self) -> None:
        """End every connection. Called before the store stops."""

    async def become_master(self) -> None:
        """Stop following, and return when no more bytes of the old master will be appended."""

    async def become_replica(self) -> None:
        """Stop serving replicas and follow a master. The broker writes nothing itself any more."""

    def is_following(self) -> bool:
        """Return whether a connection to a master is alive."""

    def status(self) -> Sequence[object]:
        """Return one object for each connection."""
