"""Memory of megabytes is kept by a process for the next such piece instead of given back.

    keep_memory()                              # once, by who owns the process

Bulk pulls, and the tasks of Spark that read them, take and drop blocks of megabytes. glibc asks
the kernel for each of them and gives it back behind it, and the kernel clears and maps every
page anew: 0.07 to 0.15 page faults a message, 250 to 400 ns of the 2 µs that a message of 256
bytes costs a task, and 130 of the 600 ns that it costs the broker. After `keep_memory` a process
keeps up to `KEPT_BYTES` that it does not use, and the faults are gone. Where there is another C
library, nothing is done.

A setting of the whole process: not for a broker inside of somebody's program.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Final

#: Free memory at the end of the heap that is not given back.
KEPT_BYTES: Final = 64 * 1024 * 1024
#: Pieces up to this size come from the heap; glibc takes no larger number.
_LARGEST_PIECE: Final = 32 * 1024 * 1024

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


@functools.cache
def keep_memory() -> bool:
    """Tell the C library; whether it could be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(
        mallopt(setting, value)
        for setting, value in (
            (_M_MMAP_THRESHOLD, _LARGEST_PIECE),
            (_M_TRIM_THRESHOLD, KEPT_BYTES),
        )
    )
