"""Tell glibc to keep freed multi-megabyte blocks instead of returning them to the kernel.

    keep_memory()                              # once, by the owner of the process

Bulk pulls, and the Spark tasks that read them, allocate and free buffers of megabytes. By default
glibc maps each of them and unmaps it afterwards, and the kernel clears and maps every page again:
0.07 to 0.15 page faults per message, 250 to 400 ns of the 2 µs that a message of 256 bytes costs a
task, and 130 of the 600 ns that it costs the broker. After `keep_memory`, a process keeps up to
`KEPT_BYTES` of free memory, and the faults are gone. With another C library it does nothing.

glibc also keeps all free memory that lies below a block in use. A server whose peers once held
256 MiB would never shrink. `return_excess` returns that memory; servers call it periodically.

This is a setting of the whole process, so a broker embedded in another program must not use it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Final

from pyromq.base.sizes import MIB

#: Free memory at the end of the heap that is kept.
KEPT_BYTES: Final = 64 * MIB
#: Blocks up to this size come from the heap; the largest value that glibc accepts.
_MMAP_THRESHOLD: Final = 32 * MIB

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
    """Configure the C library; return whether that succeeded."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(
        mallopt(setting, value)
        for setting, value in (
            (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD),
            (_M_TRIM_THRESHOLD, KEPT_BYTES),
        )
    )


def return_excess() -> bool:
    """Return free memory above `KEPT_BYTES` to the kernel; return whether there was any.

    The check costs microseconds, returning memory 0.06 ms per MiB, on the calling thread.
    """
    functions = _heap_functions()
    if functions is None:
        return False
    info, trim = functions
    return info().fordblks > KEPT_BYTES and trim(0) == 1


@functools.cache
def _heap_functions() -> tuple[Callable[[], _HeapInfo], Callable[[int], int]] | None:
    """Return mallinfo2 (glibc 2.33 or newer) and malloc_trim, or None."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    info, trim = getattr(library, "mallinfo2", None), getattr(library, "malloc_trim", None)
    if info is None or trim is None:
        return None
    info.restype = _HeapInfo
    trim.argtypes = (ctypes.c_size_t,)
    return info, trim
