"""Memory of megabytes is kept by a process for the next such piece instead of given back.

    keep_memory()                              # once, by who owns the process

Bulk pulls, and the tasks of Spark that read them, take and drop blocks of megabytes. glibc asks
the kernel for each of them and gives it back behind it, and the kernel clears and maps every
page anew: 0.07 to 0.15 page faults a message, 250 to 400 ns of the 2 µs that a message of 256
bytes costs a task, and 130 of the 600 ns that it costs the broker. After `keep_memory` a process
keeps up to `KEPT_BYTES` that it does not use, and the faults are gone. Where there is another C
library, nothing is done.

glibc keeps free memory below blocks that are in use as well, however much that is: a server whose
peers held 256 MiB for a moment would never be small again. `return_excess` gives it back; servers
call it from time to time.

A setting of the whole process: not for a broker inside of somebody's program.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Final

#: Free memory at the end of the heap that is not given back.
KEPT_BYTES: Final = 64 * 1024 * 1024
#: Pieces up to this size come from the heap; glibc takes no larger number.
_LARGEST_PIECE: Final = 32 * 1024 * 1024

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


class _HeapInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


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


def return_excess() -> bool:
    """Give free memory back to the kernel if there is more than `KEPT_BYTES`; whether it did.

    The look costs microseconds, giving back 0.06 ms for each MiB, in the calling thread.
    """
    functions = _heap_functions()
    if functions is None:
        return False
    info, trim = functions
    return info().fordblks > KEPT_BYTES and trim(0) == 1


@functools.cache
def _heap_functions() -> tuple[Callable[[], _HeapInfo], Callable[[int], int]] | None:
    """mallinfo2 (glibc 2.33 or newer) and malloc_trim."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    info, trim = getattr(library, "mallinfo2", None), getattr(library, "malloc_trim", None)
    if info is None or trim is None:
        return None
    info.restype = _HeapInfo
    trim.argtypes = (ctypes.c_size_t,)
    return info, trim
