# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""Entries of a raft group's log: bytes in; their number, the last term and their index units out.

`entry_units` checks entries as `raft.format` and `raft.placement` do, for those that continue a log
within one file: nearly all that a leader writes and a follower receives. Anything else is left to
the Python code.
"""

import cython
from cython.cimports.cpython.buffer import PyBuffer_Release
from cython.cimports.pyromq.protocol.kernel.raw import (
    area_of,
    faults,
    read32_signed,
    read64,
    view_of_buffer,
    write32,
    write64,
)

from pyromq.protocol.message import entry

MAGIC = entry.ENTRY_MAGIC
HEADER_SIZE = entry.ENTRY_HEADER_SIZE
MAX_SIZE = entry.MAX_ENTRY_SIZE
UNIT_SIZE = entry.INDEX_UNIT_SIZE


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


def entry_units(data: object, index: int, term: int, position: int):
    """Check entries from `index` on, at `position`, after one of `term`.

    Return their number, the term of the last one and the units of all; None unless `data` is such
    entries, one after the other.
    """
    buffer: Py_buffer
    last_term: cython.longlong = term
    view = view_of_buffer(data, cython.address(buffer))
    try:
        count = check_all(view, index, position, cython.address(last_term))
        if count == 0:
            return None
        units = bytearray(count * UNIT_SIZE)
        write_units(view, area_of(units))
    finally:
        PyBuffer_Release(cython.address(buffer))
    return count, last_term, units


def check_all(data, index, position, term):
    """Return the number of entries, 0 if one is not what it should be; `term` rises to the last."""
    at: cython.longlong = 0
    count: cython.longlong = 0
    while at < data.size:
        if data.size - at < HEADER_SIZE:
            return 0
        size = read32_signed(data, at + 4)
        entry_term = read64(data, at + 16)
        if (
            read32_signed(data, at) != MAGIC
            or size <= HEADER_SIZE
            or size > MAX_SIZE
            or size > data.size - at
            or read64(data, at + 8) != index + count
            or entry_term < term[0]
            or read64(data, at + 24) != position + at
            or read64(data, at + 32) != 0
            or read32_signed(data, at + 40) != 0
            or read32_signed(data, at + 44) != size - HEADER_SIZE
        ):
            return 0
        term[0] = entry_term
        at += size
        count += 1
    return count


def write_units(data, units):
    """Write the units of entries that were checked."""
    at: cython.longlong = 0
    end: cython.longlong = 0
    while at < data.size:
        size = read32_signed(data, at + 4)
        end = write32(units, end, MAGIC)
        end = write64(units, end, read64(data, at + 24))
        end = write32(units, end, size)
        end = write64(units, end, read64(data, at + 8))
        end = write64(units, end, read64(data, at + 16))
        at += size
