"""Where a group's offsets are kept: at the brokers, or in a file of this machine.

Members of a group share its offsets through the brokers. In broadcasting each member has its
own, in a file where Java's clients have it, too (so a consumer can be moved from one to the
other):

    ~/.rocketmq_offsets/<client id>/<group>/offsets.json    and the one before it, .json.bak

`{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"orders"}:12}}`, as fastjson writes it.

No two consumers share a file: each holds a lock beside it (`offsets.json.lock`) from `open` to
`close`. By default the instance in the client's id is DEFAULT, as in Java; if another consumer of
the group on this machine has that, DEFAULT-2, DEFAULT-3 and so on, the first that is free: so a
member that restarts while the others run gets its own offsets again. An instance name of the
application's own is never changed: a second consumer with it does not start. (Java's processes
share the file, and each goes on from what the others consumed.)

Used by the push and the lite pull consumer, on their event loop; files are read and written in
a thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.errors import ClientError, OptionError
from pyromq.client.file_lock import FileLock
from pyromq.client.session.session import Session
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.java.wire_types import Int64
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.body_codec import Body
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

DIRECTORY = Path("~/.rocketmq_offsets")
#: The instance name of consumers in broadcasting that were told none, as Java's.
DEFAULT_INSTANCE = "DEFAULT"


class ConsumerOffsets(Protocol):
    """How far a group has come."""

    async def open(self) -> None:
        """Get ready; raises OptionError when another consumer has the same offsets."""

    def close(self) -> None:
        """Let others have them."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The offset of a queue, None for a newcomer; raises ClientError or RemotingError."""

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep those that have changed; a failure is logged, the next time tries again."""

    async def idle(self) -> None:
        """Wait until no `store` is under way."""

    def forget(self, queue: MessageQueue) -> None:
        """The queue is another member's, or is asked for anew."""


class RemoteOffsets:
    """Offsets at the brokers."""

    def __init__(self, access: QueueAccess) -> None:
        self._access = access
        self._stored: dict[MessageQueue, int] = {}
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Brokers need no preparation."""

    def close(self) -> None:
        """All members have them."""

    async def load(self, queue: MessageQueue) -> int | None:
        """What the queue's broker knows."""
        offset = await self._access.committed(queue)
        if offset is not None:
            self._stored[queue] = offset
        return offset

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Tell each queue's broker.

        One at a time: brokers do not keep the order of commits that are under way together.
        """
        async with self._one_at_a_time:
            changed = [
                (queue, offset)
                for queue, offset in offsets.items()
                if self._stored.get(queue) != offset
            ]
            await asyncio.gather(*(self._store_one(queue, offset) for queue, offset in changed))

    async def idle(self) -> None:
        """Wait for brokers that were told something."""
        async with self._one_at_a_time:
            pass

    def forget(self, queue: MessageQueue) -> None:
        """Others may set it from now on."""
        self._stored.pop(queue, None)

    async def _store_one(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._access.commit(queue, offset)
        except (ClientError, RemotingError) as error:
            logger.warning("offset %d of %s not committed: %s", offset, queue, error)
        else:
            self._stored[queue] = offset


@dataclass(slots=True)
class OffsetFile(Body):
    """The file's content; topics have their names as servers know them."""

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)


class LocalOffsets:
    """Offsets in a file."""

    def __init__(self, session: Session, group: str, directory: Path | None = None) -> None:
        self._session = session
        self._group = group
        self._root = (directory or DIRECTORY).expanduser()
        self.path = self._path(session.client_id)
        self._lock: FileLock | None = None
        self._table: dict[MessageQueue, int] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Find a file that no other consumer has; the client's id is that of its directory."""
        if self._lock is None:
            await asyncio.to_thread(self._acquire)
            self.path = self._path(self._session.client_id)

    def close(self) -> None:
        """Let another consumer go on from here."""
        if self._lock is not None:
            self._lock.release()

    async def load(self, queue: MessageQueue) -> int | None:
        """What the file says; a file that cannot be read is as good as none."""
        if self._table is None:
            table = await asyncio.to_thread(self._read)
            self._table = self._table or table
        return self._table.get(self._on_disk(queue))

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write the file anew if something has changed."""
        table = self._table = self._table or {}
        changed = {
            self._on_disk(queue): offset
            for queue, offset in offsets.items()
            if table.get(self._on_disk(queue)) != offset
        }
        if not changed:
            return
        table.update(changed)
        async with self._one_at_a_time:
            try:
                await asyncio.to_thread(self._write, OffsetFile(dict(table)).encode())
            except OSError as error:
                for queue in changed:
                    del table[queue]  # so that the next time tries again
                logger.warning("offsets not written to %s: %s", self.path, error)

    async def idle(self) -> None:
        """Wait for a file that is being written."""
        async with self._one_at_a_time:
            pass

    def forget(self, queue: MessageQueue) -> None:
        """Nobody else sets it: kept."""

    def _on_disk(self, queue: MessageQueue) -> MessageQueue:
        return replace(queue, topic=self._session.wrap(queue.topic))

    def _path(self, client_id: str) -> Path:
        return self._root / client_id / self._session.wrap(self._group) / "offsets.json"

    # In a thread.

    def _acquire(self) -> None:
        name = self._session.settings.instance_name
        for number in itertools.count(1):
            if number > 1:
                self._session.become_instance(f"{name}-{number}")
            path = self._path(self._session.client_id)
            lock = self._lock = FileLock(path.with_name(path.name + ".lock"))
            try:
                if lock.acquire():
                    return
            except OSError as error:
                logger.warning(
                    "%s cannot be locked: give other consumers of group %s on this machine another "
                    "instance_name; %s",
                    lock.path,
                    self._group,
                    error,
                )
                return
            if name != DEFAULT_INSTANCE:
                self._lock = None
                raise OptionError(
                    f"instance_name={name!r} is in use: {lock.owner()} consumes group "
                    f"{self._group!r} in broadcasting with it, and keeps its offsets in {path}; "
                    "give each consumer on this machine a name of its own, or none"
                )

    def _read(self) -> dict[MessageQueue, int]:
        for path in (self.path, self._backup):
            try:
                return OffsetFile.decode(path.read_bytes()).offset_table
            except FileNotFoundError:
                continue
            except (OSError, BodyError) as error:
                logger.warning("offsets in %s cannot be read: %s", path, error)
        return {}

    def _write(self, content: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(self.path.name + ".tmp")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            self.path.replace(self._backup)
        new.replace(self.path)

    @property
    def _backup(self) -> Path:
        return self.path.with_name(self.path.name + ".bak")
