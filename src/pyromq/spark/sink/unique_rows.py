"""Generate unique keys for the rows of a task in bulk.

    prefix 20 hex digits | number 12 hex digits

All clients use this shape. Tools read a time from the middle (8 digits: milliseconds since the
start of the month) and search for the message from that time on. So the number counts rows from a
time on, 65,536 per millisecond.

Deterministic keys (`UniqueRows.of_task`) are the same when Spark retries a task: the prefix is a
digest of the task's identity, and the time is the start of the month. Random ones
(`UniqueRows.random`) are like a producer's: a new prefix for each task, and the current time.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from pyromq.client.message import UniqueKeys
from pyromq.protocol.message.properties import NAME_VALUE_SEPARATOR, UNIQ_KEY

_PREFIX_DIGITS: Final = 20
_NUMBER_DIGITS: Final = 12
_NAME: Final = f"{UNIQ_KEY}{NAME_VALUE_SEPARATOR}".encode()
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS: Final = np.arange(4 * (_NUMBER_DIGITS - 1), -1, -4, dtype=np.uint64)


class UniqueRows:
    """The unique keys for rows 0, 1, 2, ... of one task."""

    def __init__(self, prefix: str, base: int) -> None:
        assert len(prefix) == _PREFIX_DIGITS
        self._head = _NAME + prefix.encode()
        self._base = base

    @classmethod
    def of_task(cls, *names: object) -> Self:
        """Return deterministic keys: the same names give the same keys."""
        text = "\0".join(map(str, names)).encode()
        digest = hashlib.blake2b(text, digest_size=_PREFIX_DIGITS // 2)
        return cls(digest.hexdigest().upper(), 0)

    @classmethod
    def random(cls) -> Self:
        """Return keys that no other task generates, with the current time."""
        elapsed = int(UniqueKeys()()[_PREFIX_DIGITS : _PREFIX_DIGITS + 8], 16)
        return cls(os.urandom(_PREFIX_DIGITS // 2).hex().upper(), elapsed << 16)

    def properties(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return the encoded unique key property of `count` rows, one row of bytes each."""
        numbers = np.arange(first, first + count, dtype=np.uint64) + np.uint64(self._base)
        rows = np.empty((count, len(self._head) + _NUMBER_DIGITS), np.uint8)
        rows[:, : len(self._head)] = np.frombuffer(self._head, np.uint8)
        rows[:, len(self._head) :] = _DIGITS[(numbers[:, None] >> _SHIFTS) & np.uint64(15)]
        return rows
