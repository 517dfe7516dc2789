"""Process-wide tuning for dedicated servers.

Not for a broker embedded in another program. The server commands call `allow_open_files` before
and `settle` after they start their servers, once.
"""

from __future__ import annotations

import gc
import resource
import sys
from typing import Final

from pyromq.base.process_memory import keep_memory

#: The key index and the flush thread hold the GIL only briefly; with Python's default of 5 ms, a
#: send would wait that long for them to release it.
_SWITCH_INTERVAL: Final = 0.0005
#: Reference counting frees the objects of the hot path, so the cycle collector can run rarely.
_GC_THRESHOLDS: Final = (100_000, 50, 100)


def allow_open_files() -> None:
    """Raise the open-file limit to its hard limit, for connections and mapped files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle() -> None:
    """Exempt start-up objects from garbage collection; keep freed memory for bulk pulls."""
    keep_memory()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
