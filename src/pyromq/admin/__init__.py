"""The admin API: examine and change a cluster of pyromq or Apache RocketMQ (4.9 and 5.x).

`Admin` is for asyncio, `Admin.sync(...)` for programs without an event loop. Results are frozen
dataclasses, errors `AdminError`s.
"""

from __future__ import annotations

from pyromq.admin.admin import Admin, AdminOptions
from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    NotPermittedError,
    PartialFailureError,
    RefusedError,
    UnknownBrokerError,
    UnknownClusterError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
    UnreadableAnswerError,
    UnsupportedRequestError,
)
from pyromq.admin.sync import SyncAdmin
from pyromq.admin.topics import QueueStatus, Topics

__all__ = [
    "Admin",
    "AdminError",
    "AdminOptions",
    "NotFoundError",
    "NotPermittedError",
    "PartialFailureError",
    "QueueStatus",
    "RefusedError",
    "SyncAdmin",
    "Topics",
    "UnknownBrokerError",
    "UnknownClusterError",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnreachableError",
    "UnreadableAnswerError",
    "UnsupportedRequestError",
]
