"""Check that the files of a running store are complete: in sequence, present, of the right size.

RocketMQ's checkSelf compares the bases of adjacent files. This check also looks at the disk, where
another process may have removed or cut a file that the broker has mapped: reads of its pages then
end the process (SIGBUS), or the messages are gone at the next start.

`faults` runs on any thread. Files that expire meanwhile are not faults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.segments import Segments

_ADVICE: Final = "stop the broker, run `pyromq store check`, and restore the file from a replica"


def faults(streams: Iterable[Segments]) -> list[str]:
    """Return a sentence for each fault: what is wrong, and where."""
    found = []
    for stream in streams:
        before: MappedFile | None = None
        for file in list(stream.files):
            fault = _fault(stream, before, file)
            if fault is not None and file in stream.files:
                found.append(fault)
            before = file
    return found


def _fault(stream: Segments, before: MappedFile | None, file: MappedFile) -> str | None:
    if before is not None and file.base - before.base != stream.segment_size:
        return (
            f"{file.path} does not follow {before.path.name} of {stream.segment_size} bytes: "
            f"{_ADVICE}"
        )
    try:
        size = file.path.stat().st_size
    except FileNotFoundError:
        return f"{file.path} was removed by another process: {_ADVICE}"
    if size != stream.segment_size:
        return f"{file.path} has {size} bytes instead of {stream.segment_size}: {_ADVICE}"
    return None
