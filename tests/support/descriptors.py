"""What this process has open: other tests' things come and go meanwhile, in threads and when
the collector finds them, so only what a test itself opened may be counted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_OWN = Path("/proc/self/fd")


def open_below(directory: Path) -> int:
    """How many descriptors are of files below a directory, removed ones among them."""
    prefix = f"{directory}/"
    return sum(target.startswith(prefix) for target in _each(os.readlink))


def inodes() -> set[int]:
    """Those of all descriptors."""
    return set(_each(lambda path: os.stat(path).st_ino))


def _each(look: Callable[[Path], T]) -> Iterator[T]:
    for name in os.listdir(_OWN):
        with contextlib.suppress(FileNotFoundError):  # closed since
            yield look(_OWN / name)
