"""The records of a batch request, made message by message: at once, or in slices.

Most batches are encoded where they will stand. One of very many messages would keep the loop
for too long: it is encoded in slices, as if it stood at the log's and the queue's beginning, and
moved to its real place at the end (`move_to`), which takes a fraction of the time. So it is in
the log as a whole or not at all, with consecutive offsets, like any other.

Pure but for the arrays it makes; called by `message_store`, on the loop.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from pyromq.protocol.filter.tags import TagsCodes
from pyromq.protocol.message.bulk import BATCH_HEAD_DTYPE
from pyromq.protocol.message.crc import CRC_MASK, crc32
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import (
    BATCH_HEAD,
    INNER_BODY_LENGTH,
    INNER_HEAD,
    INNER_HEAD_SIZE,
    MESSAGE_MAGIC,
)
from pyromq.protocol.message.units import CONSUME_QUEUE_DTYPE, CONSUME_QUEUE_ENTRY
from pyromq.store.even_batch import Place
from pyromq.store.results import PutError, PutStatus

_pack_head = BATCH_HEAD.pack
_unpack_inner = INNER_HEAD.unpack_from
_pack_entry = CONSUME_QUEUE_ENTRY.pack
_unpack_short = struct.Struct(">H").unpack_from

#: Pieces of a record: the first two change when it is moved.
_PIECES: Final = 7
_HEAD, _SHARED = 0, 1


class BatchEncoder:
    """Makes a batch's records and consume-queue entries."""

    __slots__ = (
        "_batch",
        "_place",
        "_position",
        "_shared_tags_code",
        "_tags",
        "entries",
        "offsets",
        "parts",
        "physical",
        "queue_offset",
    )

    def __init__(
        self, batch: bytes, place: Place, tags: TagsCodes[bytes], shared_tags_code: int
    ) -> None:
        """`shared_tags_code` is of the batch's own tags, which count before a message's."""
        self._batch = batch
        self._place = place
        self._position = 0
        self._tags = tags
        self._shared_tags_code = shared_tags_code
        #: Where the next record will stand.
        self.queue_offset = place.queue_offset
        self.physical = place.physical_offset
        #: What was made so far: pieces of records, entries, and physical offsets.
        self.parts: list[bytes] = []
        self.entries: list[bytes] = []
        self.offsets: list[int] = []

    def encode(self, max_count: int) -> bool:
        """Encode the next messages; return whether there are more. Raises PutError."""
        place = self._place
        shared, topic, queue_id, fixed = (
            place.shared,
            place.topic,
            place.queue_id,
            place.fixed_size,
        )
        joined_properties = place.properties
        properties = joined_properties[1:]
        shared_tags_code = self._shared_tags_code
        batch, position, end = self._batch, self._position, len(self._batch)
        physical = self.physical
        first = self.queue_offset
        add, add_entry, add_offset = self.parts.extend, self.entries.append, self.offsets.append
        tags_codes, find_tags = self._tags.by_last_property, self._tags.find
        pack, pack_entry, unpack, unpack_length = (
            _pack_head,
            _pack_entry,
            _unpack_inner,
            _unpack_short,
        )
        try:
            for offset in range(first, first + max_count):
                if position >= end:
                    break
                inner_size, flag, body_length = unpack(batch, position)
                body_start = position + INNER_HEAD_SIZE
                body_end = body_start + body_length
                following = position + inner_size
                if body_length < 0 or body_end + 2 > following or following > end:
                    raise _torn(position)
                own = batch[body_end + 2 : following]
                properties_length = len(own)
                if unpack_length(batch, body_end)[0] != properties_length:
                    raise _torn(position)
                # A separator joins the two, unless there are no own ones or they end with it.
                rest = joined_properties if own and own[-1] != 2 else properties
                properties_length += len(rest)
                if properties_length > MAX_PROPERTIES:
                    raise PutError(
                        PutStatus.PROPERTIES_SIZE_EXCEEDED,
                        f"properties of {properties_length} bytes, at most {MAX_PROPERTIES}",
                    )
                size = fixed + body_length + properties_length
                add(
                    (
                        pack(
                            size,
                            MESSAGE_MAGIC,
                            crc32(batch[body_start:body_end]) & CRC_MASK,
                            queue_id,
                            flag,
                            offset,
                            physical,
                        ),
                        shared,
                        batch[position + INNER_BODY_LENGTH : body_end],
                        topic,
                        properties_length.to_bytes(2, "big"),
                        own,
                        rest,
                    )
                )
                tags_code = shared_tags_code or tags_codes.get(own.rpartition(b"\x02")[2])
                if tags_code is None:
                    tags_code = find_tags(own)
                add_entry(pack_entry(physical, size, tags_code))
                add_offset(physical)
                physical += size
                position = following
        except struct.error:
            raise _torn(position) from None
        if not self.entries:
            raise PutError(PutStatus.MESSAGE_ILLEGAL, "the batch is empty")
        self._position, self.physical = position, physical
        self.queue_offset = self._place.queue_offset + len(self.offsets)
        return position < end

    @property
    def size(self) -> int:
        """Bytes of the records that were made."""
        return self.physical - self._place.physical_offset

    def move_to(self, place: Place) -> None:
        """Let the first record stand there, with the shared fields of there."""
        parts = self.parts
        further = place.physical_offset - self._place.physical_offset
        later = place.queue_offset - self._place.queue_offset
        heads = np.frombuffer(b"".join(parts[_HEAD::_PIECES]), BATCH_HEAD_DTYPE).copy()
        heads["queue_offset"] += later
        heads["physical_offset"] += further
        data, size = heads.tobytes(), BATCH_HEAD.size
        parts[_HEAD::_PIECES] = [data[at : at + size] for at in range(0, len(data), size)]
        parts[_SHARED::_PIECES] = [place.shared] * heads.size
        entries = np.frombuffer(b"".join(self.entries), CONSUME_QUEUE_DTYPE).copy()
        entries["physical_offset"] += further
        self.entries = [entries.tobytes()]
        self.offsets = heads["physical_offset"].tolist()
        self.queue_offset += later
        self.physical += further
        self._place = place


def _torn(position: int) -> PutError:
    return PutError(PutStatus.MESSAGE_ILLEGAL, f"message at byte {position} of the batch is torn")
