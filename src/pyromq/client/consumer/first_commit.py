"""Track which offset tables exist, because a group's first commit must be sent alone.

A broker keeps one table of offsets for each group and topic, and creates it on the first commit.
Java's broker handles commits on several threads without a lock: first commits that arrive
together each create a table, and all but one are lost although each was acknowledged. A client
therefore sends one commit, waits for the response, and only then sends the others.

Pure bookkeeping, without I/O: `queue_access` uses it on its event loop, Spark's broker origin on
its thread. An instance is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

#: Broker (its name or address), group and topic.
OffsetTable = tuple[str, str, str]
_QueueT = TypeVar("_QueueT")


class KnownOffsetTables:
    """The offset tables that a broker has confirmed."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: set[OffsetTable] = set()

    def __contains__(self, table: OffsetTable) -> bool:
        return table in self._tables

    def add(self, table: OffsetTable) -> None:
        """Record that a table exists: its broker acknowledged a commit or returned an offset."""
        self._tables.add(table)

    def forget(self, broker: str) -> None:
        """Drop the tables of a broker that was away: it may have lost some of them."""
        self._tables = {table for table in self._tables if table[0] != broker}

    def split_first(
        self, offsets: Mapping[_QueueT, int], table_of: Callable[[_QueueT], OffsetTable]
    ) -> tuple[dict[_QueueT, int], dict[_QueueT, int]]:
        """Split commits into those to send first, one per unknown table, and all others.

        The caller waits for the responses to the first ones, adds their tables, and then sends
        the rest.
        """
        first: dict[OffsetTable, _QueueT] = {}
        rest: dict[_QueueT, int] = {}
        for queue, offset in offsets.items():
            table = table_of(queue)
            if table in self._tables or table in first:
                rest[queue] = offset
            else:
                first[table] = queue
        return {queue: offsets[queue] for queue in first.values()}, rest
