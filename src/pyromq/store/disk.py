"""How full a disk is, as RocketMQ counts it.

Pure but for one system call. Called by `retention` on a worker thread, since a hanging
disk makes even this wait.
"""

from __future__ import annotations

import os
from pathlib import Path


def used_percent(path: Path) -> int:
    """The percent of the disk under `path` that is in use, rounded up; raises OSError.

    What only the superuser could use counts neither as used nor as free. A directory that
    is not there yet is measured where it will be made.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    disk = os.statvfs(path)
    used = disk.f_blocks - disk.f_bfree
    usable = used + disk.f_bavail
    return -(-used * 100 // usable) if usable else 0
