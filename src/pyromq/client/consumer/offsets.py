"""Store a group's offsets: at the brokers, or in a local file when broadcasting.

The members of a clustering group share its offsets through the brokers. In broadcasting, each
member keeps its own in the file that Java's clients use, so either client can take over from the
other:

    ~/.rocketmq_offsets/<client id>/<group>/offsets.json    previous content: offsets.json.bak

`{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"orders"}:12}}`, as fastjson writes it.

Two consumers never share a file: each locks `offsets.json.lock` beside it from `open` to `close`.
The default instance name is DEFAULT, as in Java. If another consumer of the group on this machine
holds it, the next one takes the first free name of DEFAULT-2, DEFAULT-3 and so on, so a member
that restarts while the others run gets its own offsets back. An instance name chosen by the
application is never changed: a second consumer with that name fails to start. (Java's processes
share the file, and each resumes from offsets that the others wrote.)

Used by the push and the lite pull consumer, on their event loop; file I/O runs in a thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from pyromq.base.atomic_file import backup_of, read_file, write_file
from pyromq.client.consumer.queue_access import QueueAccess, name_of
from pyromq.client.errors import ClientError, OptionError
from pyromq.client.file_lock import FileLock
from pyromq.client.session.session import Session
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.java.wire_types import Int64
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.body_codec import Body
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

DIRECTORY: Final = Path("~/.rocketmq_offsets")
#: The instance name of broadcasting consumers by default, as in Java.
DEFAULT_INSTANCE: Final = "DEFAULT"


class ConsumerOffsets(Protocol):
    """The offsets that a group has consumed up to."""

    async def open(self) -> None:
        """Prepare for use. Raises OptionError if another consumer uses the same offsets."""

    def close(self) -> None:
        """Release the offsets to other consumers."""

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue, or None for a newcomer.

        Raises ClientError or RemotingError.
        """

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the offsets that changed. Failures are logged; the next call retries them."""

    async def idle(self) -> None:
        """Wait until no `store` is in flight."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is cached of a queue that another member may take over."""


class RemoteOffsets:
    """Offsets stored at the brokers."""

    def __init__(self, access: QueueAccess) -> None:
        self._access = access
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Do nothing: brokers need no preparation."""

    def close(self) -> None:
        """Do nothing: all members share these offsets."""

    async def load(self, queue: MessageQueue) -> int | None:
        """Query the queue's broker."""
        return await self._access.committed(queue)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit what each queue's master does not have yet, one call at a time.

        Brokers may apply commits of one queue out of order if several are in flight. While there
        is only a replica, every call commits all offsets, until the master is back to take them.
        """
        async with self._one_at_a_time:
            changed = [
                (queue, offset)
                for queue, offset in offsets.items()
                if not self._access.is_stored(queue, offset)
            ]
            await asyncio.gather(*(self._store_one(queue, offset) for queue, offset in changed))

    async def idle(self) -> None:
        """Wait until no commit is in flight."""
        async with self._one_at_a_time:
            pass

    def forget(self, queue: MessageQueue) -> None:
        """Commit the next offset of this queue even if it equals the last: others may set it."""
        self._access.forget(queue)

    async def _store_one(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._access.commit(queue, offset)
        except (ClientError, RemotingError) as error:
            logger.warning("commit failed: offset %d of %s: %s", offset, name_of(queue), error)


@dataclass(slots=True)
class OffsetFile(Body):
    """The content of the file; topics carry their names on the wire."""

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)


class LocalOffsets:
    """Offsets stored in a file."""

    def __init__(self, session: Session, group: str, directory: Path | None = None) -> None:
        self._session = session
        self._group = group
        self._root = (directory or DIRECTORY).expanduser()
        self.path = self._path(session.client_id)
        self._lock: FileLock | None = None
        self._table: dict[MessageQueue, int] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Lock a file that no other consumer uses; the client takes the id of its directory."""
        if self._lock is None:
            await asyncio.to_thread(self._acquire)
            self.path = self._path(self._session.client_id)

    def close(self) -> None:
        """Unlock the file, so that another consumer can resume from it."""
        if self._lock is not None:
            self._lock.release()

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the file's offset of a queue; an unreadable file counts as missing."""
        if self._table is None:
            table = await asyncio.to_thread(self._read)
            self._table = self._table or table
        return self._table.get(self._on_disk(queue))

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the file atomically if an offset changed."""
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
            content = OffsetFile(dict(table)).encode()
            try:
                await asyncio.to_thread(write_file, self.path, content, backup=True)
            except OSError as error:
                for queue in changed:
                    del table[queue]  # so that the next call retries
                logger.warning("offsets not written to %s: %s", self.path, error)

    async def idle(self) -> None:
        """Wait until no write is in flight."""
        async with self._one_at_a_time:
            pass

    def forget(self, queue: MessageQueue) -> None:
        """Do nothing: no other member writes these offsets."""

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
                    "cannot lock %s: %s; set a different instance_name for each consumer of group "
                    "%s on this machine",
                    lock.path,
                    error,
                    self._group,
                )
                return
            if name != DEFAULT_INSTANCE:
                self._lock = None
                raise OptionError(
                    f"instance_name={name!r} is in use: {lock.owner()} consumes group "
                    f"{self._group!r} in broadcasting and stores its offsets in {path}; give each "
                    "consumer on this machine its own instance_name, or none"
                )

    def _read(self) -> dict[MessageQueue, int]:
        for path in (self.path, backup_of(self.path)):
            try:
                content = read_file(path)
                if content is not None:
                    return OffsetFile.decode(content).offset_table
            except (OSError, BodyError) as error:
                logger.warning("cannot read offsets from %s: %s", path, error)
        return {}
