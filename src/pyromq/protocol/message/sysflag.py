"""The bits of a message's sysFlag, of a pull's sysFlag and of permissions.

Pure. A message's sysFlag is part of the send request and of the commit-log record. The broker sets
the host bits and ignores the ones that a client sent.
"""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_NOT: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOST_MASK: Final = 0x30
#: The compression of a body. 0 also means zlib: clients before 4.9.4 set no bits.
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8

PERM_INHERIT: Final = 0x1
PERM_WRITE: Final = 0x2
PERM_READ: Final = 0x4


def transaction_type(sys_flag: int) -> int:
    """Return TRANSACTION_NOT, _PREPARED, _COMMIT or _ROLLBACK."""
    return sys_flag & TRANSACTION_MASK


def is_consumable(sys_flag: int) -> bool:
    """Return whether a record gets a consume-queue entry: not if prepared or rolled back."""
    return sys_flag & TRANSACTION_MASK in (TRANSACTION_NOT, TRANSACTION_COMMIT)


def is_readable(perm: int) -> bool:
    """Return whether a permission lets consumers read."""
    return perm & PERM_READ != 0


def is_writable(perm: int) -> bool:
    """Return whether a permission lets producers write."""
    return perm & PERM_WRITE != 0
