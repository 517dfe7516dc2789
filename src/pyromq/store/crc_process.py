"""CRC-32 of many spans of a file, held against what they should be: a program of its own.

`body_check` runs it beside a long recovery, because the CRC of a message keeps the
interpreter's lock and threads would take turns. It imports the standard library and what
`protocol.crc` has found, is run by its path, and is ready within a few hundredths of a second.

A request on the standard input, in the machine's byte order:

    path length   4   0: the same file as before
    base          8   where the piece begins in the file
    size          8   of the piece
    count         4   how many spans
    path          path length
    begins        4 * count   places in the piece
    ends          4 * count
    CRCs          4 * count   those that the spans should have, under the mask

The answer is the number of spans at the head of the list that are right, in 4 bytes. The
arguments are the mask and the directory of the library, empty for none. It ends with its input,
and at whatever goes wrong: who asked finds no answer then, and checks by itself.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from array import array
from collections.abc import Callable
from typing import IO, Final, TypeAlias

REQUEST: Final = struct.Struct("=IQQI")
ANSWER: Final = struct.Struct("=I")
NUMBER: Final = "I"
assert array(NUMBER).itemsize == 4


Crc32: TypeAlias = Callable[[memoryview], int]


def serve(requests: IO[bytes], answers: IO[bytes], mask: int, crc32: Crc32) -> None:
    """Answer until there are no more requests."""
    mapping: mmap.mmap | None = None
    while head := requests.read(REQUEST.size):
        path_length, base, size, count = REQUEST.unpack(head)
        if path_length:
            mapping = _map(requests.read(path_length))
        if mapping is None:
            raise ValueError("the first request names no file")
        numbers = array(NUMBER)
        numbers.frombytes(requests.read(3 * count * numbers.itemsize))
        if len(numbers) < 3 * count:
            raise EOFError("the request is not whole")
        with memoryview(mapping) as whole, whole[base : base + size] as piece:
            begins, ends, crcs = numbers[:count], numbers[count:-count], numbers[-count:]
            right = count_right(crc32, piece, begins, ends, crcs, mask)
        answers.write(ANSWER.pack(right))
        answers.flush()
        # The kernel keeps these pages; they need not count as this process's.
        mapping.madvise(mmap.MADV_DONTNEED)


def count_right(
    crc32: Crc32,
    piece: memoryview,
    begins: array[int],
    ends: array[int],
    crcs: array[int],
    mask: int,
) -> int:
    """How many of these spans, from the first on, have the CRC that they should have."""
    found = array(
        NUMBER,
        [crc32(piece[begin:end]) & mask for begin, end in zip(begins, ends, strict=True)],
    )
    if found == crcs:
        return len(found)
    return next(
        row for row, (one, other) in enumerate(zip(found, crcs, strict=True)) if one != other
    )


def _map(path: bytes) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def find_crc32(library: str) -> Crc32:
    """The library's in this directory; without, zlib's."""
    if library:
        sys.path.append(library)
        from isal.isal_zlib import crc32

        return crc32
    from zlib import crc32

    return crc32


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]), find_crc32(sys.argv[2]))
