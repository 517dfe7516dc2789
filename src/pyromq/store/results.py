"""Results and errors of the store: enums and small values without logic.

`PutStatus` and `GetStatus` have RocketMQ's names; handlers map them to response codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto


class StoreError(Exception):
    """The store cannot start or continue. The text says why, where, and what to do."""


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
    #: Not RocketMQ's, whose broker checks the pool of buffers before it handles a send.
    NO_BUFFER = auto()


class PutError(Exception):
    """A message was refused; no part of it is stored."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.status.name}: {self.reason}"


class LargeBatchError(PutError):
    """A batch has too many messages for one loop iteration and must be put in slices.

    No part of it is stored.
    """

    def __init__(self) -> None:
        super().__init__(
            PutStatus.MESSAGE_ILLEGAL, "the batch has too many messages to be put at once"
        )


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
    #: Not RocketMQ's: call `GetResult.bring_in` on a thread, then repeat the get.
    NOT_IN_MEMORY = auto()


@dataclass(slots=True)
class GetResult:
    """The outcome of a get. Each buffer in `pieces` holds whole records."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    count: int = 0
    #: The consumer is so far behind that a replica should serve it.
    suggest_replica: bool = False
    #: With NOT_IN_MEMORY: reads the missing pages; slow, for a worker thread.
    bring_in: Callable[[], None] | None = None
