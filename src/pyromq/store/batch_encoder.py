"""Encode the records of a batch request message by message, in one go or in slices.

Most batches are encoded directly for their place in the log. A batch of many thousand messages
would block the loop, so it is encoded in slices, over several loop iterations, as if it were
placed at offset 0, and relocated at the end (`move_to`), which takes a fraction of the time.
Such a batch is therefore stored as a whole or not at all, with consecutive offsets.

Does no I/O. Called by `chunk` on the loop's thread, which also writes the result.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

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
    PROPERTIES_LENGTH,
)
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from pyromq.store.results import PutError, PutStatus

_pack_head = BATCH_HEAD.pack
_unpack_inner = INNER_HEAD.unpack_from
_pack_entry = CONSUME_QUEUE_ENTRY.pack
_pack_length = PROPERTIES_LENGTH.pack
_unpack_length = PROPERTIES_LENGTH.unpack_from

#: Number of buffers per record, and the two of them that depend on the record's place.
_BUFFERS_PER_RECORD: Final = 7
_HEAD, _SHARED = 0, 1


class BatchPlace(NamedTuple):
    """The fields that all records of a batch share, and the offsets of the first one."""

    #: Size of a record without its body and properties.
    fixed_size: int
    #: Record fields 8 to 14.
    shared: bytes
    #: topicLength and topic.
    topic: bytes
    #: Appended to each message's own properties; starts with a separator.
    properties: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    #: Bytes before each record, which come from elsewhere.
    prefix: int = 0


class BatchEncoder:
    """Turns a batch into records for the log and entries for the consume queue."""

    __slots__ = (
        "_batch",
        "_place",
        "_position",
        "_shared_tags_code",
        "_tags",
        "buffers",
        "entries",
        "offsets",
        "physical",
        "queue_offset",
    )

    def __init__(
        self, batch: bytes, place: BatchPlace, tags: TagsCodes[bytes], shared_tags_code: int
    ) -> None:
        """`shared_tags_code` belongs to the batch's own tags and overrides a message's."""
        self._batch = batch
        self._place = place
        self._position = 0
        self._tags = tags
        self._shared_tags_code = shared_tags_code
        #: Offsets of the next record.
        self.queue_offset = place.queue_offset
        self.physical = place.physical_offset
        #: The result so far: buffers of records, packed entries, physical offsets.
        self.buffers: list[bytes] = []
        self.entries: list[bytes] = []
        self.offsets: list[int] = []

    def encode(self, max_count: int) -> bool:
        """Encode at most `max_count` messages; return whether some are left. Raises PutError."""
        place = self._place
        shared, topic, queue_id, fixed = (
            place.shared,
            place.topic,
            place.queue_id,
            place.fixed_size,
        )
        prefix = place.prefix
        joined_properties = place.properties
        properties = joined_properties[1:]
        shared_tags_code = self._shared_tags_code
        batch, position, end = self._batch, self._position, len(self._batch)
        physical = self.physical
        first = self.queue_offset
        add, add_entry, add_offset = self.buffers.extend, self.entries.append, self.offsets.append
        find_tags = self._tags.find
        pack, pack_entry, unpack, pack_length, unpack_length = (
            _pack_head,
            _pack_entry,
            _unpack_inner,
            _pack_length,
            _unpack_length,
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
                    raise _malformed(position)
                own = batch[body_end + 2 : following]
                properties_length = len(own)
                if unpack_length(batch, body_end)[0] != properties_length:
                    raise _malformed(position)
                # No separator if the message has no properties, or they end with one.
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
                        pack_length(properties_length),
                        own,
                        rest,
                    )
                )
                add_entry(pack_entry(physical, size, shared_tags_code or find_tags(own)))
                add_offset(physical)
                physical += size + prefix
                position = following
        except struct.error:
            raise _malformed(position) from None
        if not self.entries:
            raise PutError(PutStatus.MESSAGE_ILLEGAL, "the batch is empty")
        self._position, self.physical = position, physical
        self.queue_offset = self._place.queue_offset + len(self.offsets)
        return position < end

    @property
    def size(self) -> int:
        """Return the total size of the encoded records, with the bytes before each."""
        return self.physical - self._place.physical_offset

    def records(self) -> list[bytes]:
        """Return the records, each in one buffer."""
        buffers, step = self.buffers, _BUFFERS_PER_RECORD
        return [b"".join(buffers[at : at + step]) for at in range(0, len(buffers), step)]

    def move_to(self, place: BatchPlace) -> None:
        """Relocate the encoded records: new offsets and shared fields, same messages."""
        buffers = self.buffers
        distance = place.physical_offset - self._place.physical_offset
        queue_distance = place.queue_offset - self._place.queue_offset
        old_heads = b"".join(buffers[_HEAD::_BUFFERS_PER_RECORD])
        heads = np.frombuffer(old_heads, BATCH_HEAD_DTYPE).copy()
        heads["queue_offset"] += queue_distance
        heads["physical_offset"] += distance
        data, size = heads.tobytes(), BATCH_HEAD.size
        buffers[_HEAD::_BUFFERS_PER_RECORD] = [
            data[at : at + size] for at in range(0, len(data), size)
        ]
        buffers[_SHARED::_BUFFERS_PER_RECORD] = [place.shared] * heads.size
        entries = np.frombuffer(b"".join(self.entries), CONSUME_QUEUE_DTYPE).copy()
        entries["physical_offset"] += distance
        self.entries = [entries.tobytes()]
        self.offsets = heads["physical_offset"].tolist()
        self.queue_offset += queue_distance
        self.physical += distance
        self._place = place


def _malformed(position: int) -> PutError:
    return PutError(
        PutStatus.MESSAGE_ILLEGAL, f"message at byte {position} of the batch is malformed"
    )
