"""Exact progress of delay levels that survives a kill of the process.

`config/delayOffset.json` is written every ten seconds and covers only fsynced deliveries: after a
kill it alone would have the broker deliver the messages since then again. Written deliveries are in
the page cache and outlive the process. So does this note, a few numbers in a mapped page, written
after each batch of deliveries and never fsynced.

    slot     2,048 bytes, two of them, written alternately
    crc      u32   CRC-32 of the rest
    sequence u64   the slot with the higher one is valid
    log end  u64   the counted deliveries end before it
    boot     16    boot id of the machine that wrote it
    count    u16
    level    i32, next queue offset i64   `count` times

The note is valid only if everything that it counts must exist: same boot (after a power cut the
note may survive while the end of the log is lost), a log that reaches `log end`, and a process that
was killed. Otherwise delayOffset.json counts, as in RocketMQ.

Called by `delay_offsets` on the loop. RocketMQ ignores the file.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

_SLOT_SIZE: Final = 2048
_CRC = struct.Struct(">I")
_HEAD = struct.Struct(">QQ16sH")
_LEVEL = struct.Struct(">iq")
_MAX_LEVELS: Final = (_SLOT_SIZE - _CRC.size - _HEAD.size) // _LEVEL.size
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Progress(NamedTuple):
    """The content of a note."""

    log_end: int
    offsets: dict[int, int]


class ProgressNote:
    """A note and its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._boot = _boot_id()
        self._sequence = 0
        self._page: mmap.mmap | None = None

    def read(self) -> Progress | None:
        """Return the last note of this boot, or None."""
        try:
            content = self.path.read_bytes()
        except OSError:
            return None
        slots = (_decode(content[at : at + _SLOT_SIZE]) for at in (0, _SLOT_SIZE))
        valid = [slot for slot in slots if slot is not None]
        if not valid:
            return None
        _, boot, progress = max(valid)
        return progress if boot == self._boot else None

    def open(self) -> None:
        """Create an empty file. On failure, log it and do without notes."""
        if self._boot is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, 0o644)
            try:
                # Allocate its blocks: on a full disk a write to the page would raise SIGBUS.
                os.posix_fallocate(descriptor, 0, 2 * _SLOT_SIZE)
                self._page = mmap.mmap(descriptor, 2 * _SLOT_SIZE)
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.warning(
                "cannot create %s: %s; after a kill the broker will deliver delayed messages of "
                "the last seconds again",
                self.path,
                error,
            )

    def write(self, progress: Progress) -> None:
        """Write the offsets of all levels."""
        offsets: Mapping[int, int] = progress.offsets
        if self._page is None or len(offsets) > _MAX_LEVELS:
            return
        self._sequence += 1
        content = b"".join(
            (
                _HEAD.pack(self._sequence, progress.log_end, self._boot, len(offsets)),
                *(_LEVEL.pack(level, offset) for level, offset in offsets.items()),
            )
        )
        start = self._sequence % 2 * _SLOT_SIZE
        self._page[start : start + _CRC.size + len(content)] = (
            _CRC.pack(zlib.crc32(content)) + content
        )

    def remove(self) -> None:
        """Remove the file after a clean stop."""
        if self._page is not None:
            self._page.close()
            self._page = None
        self.path.unlink(missing_ok=True)


def _decode(slot: bytes) -> tuple[int, bytes, Progress] | None:
    if len(slot) < _CRC.size + _HEAD.size:
        return None
    sequence, log_end, boot, count = _HEAD.unpack_from(slot, _CRC.size)
    levels = slot[_CRC.size + _HEAD.size :][: count * _LEVEL.size]
    end = _CRC.size + _HEAD.size + len(levels)
    if (
        len(levels) != count * _LEVEL.size
        or zlib.crc32(slot[_CRC.size : end]) != _CRC.unpack_from(slot)[0]
    ):
        return None
    return sequence, boot, Progress(log_end, dict(_LEVEL.iter_unpack(levels)))


def _boot_id() -> bytes | None:
    """Return the boot id of the machine, or None if the system has none."""
    try:
        return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return None
