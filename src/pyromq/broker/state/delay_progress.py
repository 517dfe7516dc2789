"""How far each delay level has come, to the message, for a broker that is killed.

`config/delayOffset.json` is written every ten seconds, and only of what is on the disk: a
broker that goes by it after a kill would deliver the messages since then once more. What
was delivered is the kernel's, though, and outlives the process, and so does this note: a
few numbers in a mapped page, written after each turn of deliveries, never synced.

    slot     2,048 bytes, two of them, written in turn
    crc      u32   CRC-32 of the rest
    sequence u64   the slot with the higher one counts
    log end  u64   the deliveries that are counted here end below
    boot     16    which boot of the machine wrote it
    count    u16
    level    i32, next queue offset i64   as often as `count` says

The note is believed only where everything that it counts must be there: on the same boot
(a cut of the power may keep the note and lose the log's end), with a log that reaches as
far, after a broker that was killed. Otherwise delayOffset.json counts, as in RocketMQ.

Called by `delay_offsets` on the loop. RocketMQ does not know the file and leaves it alone.
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
    """What a note says."""

    log_end: int
    offsets: dict[int, int]


class ProgressNote:
    """The note in its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._boot = _boot_id()
        self._sequence = 0
        self._page: mmap.mmap | None = None

    def read(self) -> Progress | None:
        """What was noted last on this boot; None when nothing of it can be relied on."""
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
        """Begin an empty note. Where that is not possible, there is none."""
        if self._boot is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, 0o644)
            try:
                # Without its blocks, a write to the page could end the process on a full disk.
                os.posix_fallocate(descriptor, 0, 2 * _SLOT_SIZE)
                self._page = mmap.mmap(descriptor, 2 * _SLOT_SIZE)
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.warning(
                "%s cannot be made: %s; if the broker is killed, delayed messages of the last "
                "seconds will be delivered again",
                self.path,
                error,
            )

    def write(self, progress: Progress) -> None:
        """Note how far the levels have come."""
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
        """After a clean stop there is nothing to note."""
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
    """Which boot of the machine this is; None where the system does not tell."""
    try:
        return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return None
