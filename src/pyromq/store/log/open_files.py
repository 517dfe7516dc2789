"""Cap the number of mapped files of a store, and unmap the least recently used.

A mapping costs a descriptor and counts against the kernel's limit per process, so a store with
100,000 queues cannot keep all its files mapped. A file that is used while it is not mapped gets
its mapping here, and another one that was idle loses its own. No bytes are lost, as they are in
the kernel's page cache.

Invariants
1. Files are mapped and unmapped on one thread only, the one that starts the store, so no file is
   unmapped in the middle of a put. Other threads get private mappings, which live until the last
   reference is dropped.
2. A file with pending writes stays mapped (`FileHolder.let_go`). The cap is exceeded until the
   chunk is sealed rather than a message refused.
3. Nothing is unmapped under a reader, who holds a reference to the mapping.

Second-chance replacement: a use only sets a flag, which the search for a victim clears, so a use
costs nearly nothing.
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from typing import Final, Protocol

from pyromq.base import descriptors
from pyromq.base.descriptors import ShortageError

#: The search for a victim ends after this many files that must stay mapped.
_MAX_BUSY: Final = 64


class FileHolder(Protocol):
    """The owner of a file."""

    def let_go(self) -> bool:
        """Whether the file may be unmapped now; the owner maps it again before it writes."""


class Mappable(Protocol):
    """A file that can be mapped and unmapped."""

    #: Used since it was mapped, or since the last search for a victim.
    used: bool

    def new_mapping(self) -> mmap.mmap:
        """Map the file. Raises OSError."""

    def set_mapping(self, mapping: mmap.mmap) -> None:
        """Use this mapping from now on."""

    def unmap(self) -> bool:
        """Drop the mapping; return False if it is needed."""


class OpenFiles:
    """The mapped files of one store, in search order."""

    def __init__(self, limit: int = descriptors.MAX_MAPPED) -> None:
        self.limit = limit
        self._owner = threading.get_ident()
        self._mapped: OrderedDict[Mappable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._mapped)

    def adopt(self) -> None:
        """Make the calling thread the one that maps and unmaps."""
        self._owner = threading.get_ident()

    def map(self, file: Mappable) -> mmap.mmap:
        """Map a file that is not mapped. Raises OSError."""
        if threading.get_ident() != self._owner:
            return file.new_mapping()
        mapped = self._mapped
        while len(mapped) >= self.limit and self._unmap_one():
            pass
        try:
            mapping = file.new_mapping()
        except ShortageError:
            # Unmapping another file frees a descriptor.
            if not self._unmap_one():
                raise
            mapping = file.new_mapping()
        if not descriptors.top_up() and self._unmap_one():
            descriptors.top_up()
        file.set_mapping(mapping)
        mapped[file] = None
        return mapping

    def add(self, file: Mappable) -> None:
        """Count a mapped file, which may be unmapped from now on."""
        self._mapped[file] = None

    def remove(self, file: Mappable) -> None:
        """Stop counting a file; it keeps its mapping, if any."""
        self._mapped.pop(file, None)

    def _unmap_one(self) -> bool:
        """Unmap the file that was idle longest; return False if all must stay."""
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
