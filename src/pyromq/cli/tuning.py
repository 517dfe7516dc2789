"""What a process that is a server for good does to itself, and an embedded one must not.

Called once by the server commands, when everything is started.
"""

from __future__ import annotations

import gc
import resource
import sys
from typing import Final

from pyromq.base.process_memory import keep_memory

#: The key index and the flush thread hold the interpreter for moments only; a send must
#: not wait five milliseconds, Python's default, until one of them lets it go.
_SWITCH_INTERVAL: Final = 0.0005
#: Objects made on the hot path die by themselves; looking for cycles is for the rest.
_GC_THRESHOLDS: Final = (100_000, 50, 100)


def allow_open_files() -> None:
    """Raise the limit of open files as far as it may be, for connections and mapped files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle() -> None:
    """Keep the collector away from what start-up made, and memory for the next bulk pull."""
    keep_memory()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
