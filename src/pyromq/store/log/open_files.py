"""Which files of a store are mapped: those used last, and no more than a limit.

Each mapping costs a descriptor and one of the mappings that the kernel allows a process, so a
store with 100,000 queues cannot keep all of them mapped. A file that is read or written while
it is not mapped asks here for its mapping; another one that was not used for a while gives up
its own. Bytes are never lost by that: they are the kernel's.

Invariants
1. Files are mapped for good, and unmapped, on one thread only: the one that starts the store. So
   a file cannot be unmapped between two steps of a put. Others get a mapping of their own, which
   goes with the last reference to it.
2. A file whose holder has something to write stays mapped (`FileHolder.let_go`); the limit is
   exceeded then rather than a message refused, until the chunk is sealed.
3. Nothing is unmapped under a reader: who took the mapping keeps it.

Second chance instead of a strict order: a use sets a flag, and only a search for a victim clears
it, so that a use costs nearly nothing.
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from typing import Final, Protocol

from pyromq.base import descriptors
from pyromq.base.descriptors import ShortageError

#: A search for a victim ends after so many files that must stay.
_MAX_BUSY: Final = 64


class FileHolder(Protocol):
    """What a file belongs to."""

    def let_go(self) -> bool:
        """Whether a file may be unmapped now; the holder asks for it again before it writes."""


class Mappable(Protocol):
    """A file that can be mapped and unmapped."""

    #: Used since it was mapped, or last looked at: what is used once goes first.
    used: bool

    def new_mapping(self) -> mmap.mmap:
        """Map the file; raises OSError."""

    def set_mapping(self, mapping: mmap.mmap) -> None:
        """Use this mapping from now on."""

    def unmap(self) -> bool:
        """Drop the mapping; False when it is needed."""


class OpenFiles:
    """The mapped files of one store, in the order in which they are looked at."""

    def __init__(self, limit: int = descriptors.MAX_MAPPED) -> None:
        self.limit = limit
        self._owner = threading.get_ident()
        self._mapped: OrderedDict[Mappable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._mapped)

    def adopt(self) -> None:
        """The calling thread is the one that maps and unmaps from now on."""
        self._owner = threading.get_ident()

    def map(self, file: Mappable) -> mmap.mmap:
        """Map a file that is not mapped; raises OSError."""
        if threading.get_ident() != self._owner:
            return file.new_mapping()
        mapped = self._mapped
        while len(mapped) >= self.limit and self._unmap_one():
            pass
        try:
            mapping = file.new_mapping()
        except ShortageError:
            # Mappings are ours to give up, and one less is one descriptor more.
            if not self._unmap_one():
                raise
            mapping = file.new_mapping()
        if not descriptors.top_up() and self._unmap_one():
            descriptors.top_up()
        file.set_mapping(mapping)
        mapped[file] = None
        return mapping

    def add(self, file: Mappable) -> None:
        """Count a file that is mapped, and let it be unmapped when others need its place."""
        self._mapped[file] = None

    def remove(self, file: Mappable) -> None:
        """Forget a file; its mapping, if any, is its own."""
        self._mapped.pop(file, None)

    def _unmap_one(self) -> bool:
        """Unmap a file that was not used for long; False when all must stay."""
        mapped = self._mapped
        busy = 0
        while mapped and busy < _MAX_BUSY:
            file = next(iter(mapped))
            if file.used:
                file.used = False
            elif file.unmap():
                del mapped[file]
                return True
            else:
                busy += 1
            mapped.move_to_end(file)
        return False
