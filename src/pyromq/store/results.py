"""How a put or a get on the store ended: enums and small values, no logic.

`PutStatus` and `GetStatus` carry RocketMQ's own names; handlers map them to
response codes. Used by every caller of `message_store`, on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto


class StoreError(Exception):
    """The store cannot start or go on: says what, where and what to do."""


class PutStatus(Enum):
    """How a put ended."""

    PUT_OK = auto()
    FLUSH_DISK_TIMEOUT = auto()
    FLUSH_SLAVE_TIMEOUT = auto()
    SLAVE_NOT_AVAILABLE = auto()
    SERVICE_NOT_AVAILABLE = auto()
    CREATE_MAPEDFILE_FAILED = auto()
    MESSAGE_ILLEGAL = auto()
    PROPERTIES_SIZE_EXCEEDED = auto()
    OS_PAGECACHE_BUSY = auto()
    UNKNOWN_ERROR = auto()
    #: Not RocketMQ's: its broker looks at the pool of buffers before it looks at a send.
    NO_BUFFER = auto()


class PutError(Exception):
    """A message that was not stored: nothing of it is in the log."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.status.name}: {self.reason}"


class LargeBatchError(PutError):
    """A batch of so many messages that it should be put in slices: nothing of it is in the log."""

    def __init__(self) -> None:
        super().__init__(PutStatus.MESSAGE_ILLEGAL, "the batch has too many messages at once")


class GetStatus(Enum):
    """How a get ended."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MATCHED_LOGIC_QUEUE = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    #: Not RocketMQ's: `GetResult.bring_in` waits for the disk, then the get finds it all.
    NOT_IN_MEMORY = auto()


@dataclass(slots=True)
class GetResult:
    """What a get found: whole records, one behind the other in each piece."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    count: int = 0
    #: The reader is so far behind that a replica should serve it.
    suggest_replica: bool = False
    #: With NOT_IN_MEMORY: brings in what is missing; for a thread, not for the loop.
    bring_in: Callable[[], None] | None = None
