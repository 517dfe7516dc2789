"""Spans of a log made at random: every kind of record, and damage anywhere."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from tests.support.records import BORN_TIME, make_record

TOPICS = (
    *(b"T", b"TopicTest", b"Other", b"%RETRY%group", b"SCHEDULE_TOPIC_XXXX", b"x" * 127),
    *("主题".encode(), b"", b"a/b", b".."),
)
#: Not UTF-8: a lone byte, a cut sequence, a surrogate, an overlong form, above U+10FFFF.
MALFORMED = (b"\xff", b"\xe4\xb8", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80")
WORDS = (
    b"a",
    b"b",
    b"key-1",
    "Schlüssel".encode(),
    "键".encode(),
    "😀".encode(),
    b"x" * 70,
    b"\x01",
)
ITEMS: tuple[Callable[[random.Random], bytes], ...] = (
    lambda chance: b"UNIQ_KEY\x01" + word(chance),
    lambda chance: b"KEYS\x01" + b" ".join([word(chance) for _ in range(chance.randrange(4))]),
    lambda chance: b"KEYS\x01 " + word(chance) + b"  " + word(chance) + b" ",
    lambda chance: b"TAGS\x01" + word(chance),
    lambda chance: chance.choice((b"UNIQ_KEY", b"UNIQ_KEY\x01", b"KEYS\x01", b"KEYS", b"TAGS\x01")),
    lambda chance: chance.choice((b"XKEYS\x01no", b"KEYSX\x01no", b"TAG\x01s", b"", b"\x01", b" ")),
    lambda chance: b"DELAY\x01" + chance.choice((b"1", b"2", b"99", b"-1", b"x", b"")),
    lambda chance: b"WAIT\x01true",
    lambda chance: b"LONG\x01" + b"y" * chance.randrange(1500),
)
SYS_FLAGS = (0, 0, 0, 0, 0x4, 0x8, 0xC, 0x10, 0x20, 0x30, 0x3C)
NUMBERS = (0, 1, -1, 88, 91, (1 << 31) - 1, -(1 << 31))


def word(chance: random.Random) -> bytes:
    """Return a key or tag; one in fifty is not UTF-8."""
    if chance.random() < 0.02:
        return b"k" + chance.choice(MALFORMED)
    return chance.choice(WORDS) + (b"%d" % chance.randrange(30) if chance.random() < 0.5 else b"")


def random_record(
    chance: random.Random, physical_offset: int, queue_offset: int, topic: bytes | None = None
) -> bytes:
    """Return a record with anything in it."""
    if topic is None:
        topic = chance.choice(MALFORMED if chance.random() < 0.01 else TOPICS)
    items = [chance.choice(ITEMS)(chance) for _ in range(chance.randrange(6))]
    record = make_record(
        topic="t" * len(topic),
        properties=b"\x02".join(items) + chance.choice((b"", b"\x02")),
        body=chance.randbytes(chance.choice((0, 16, 64, 700, chance.randrange(300)))),
        sys_flag=chance.choice(SYS_FLAGS),
        store_timestamp=BORN_TIME + chance.randrange(-3000, 9000),
        physical_offset=physical_offset,
        queue_id=chance.randrange(3),
        queue_offset=queue_offset,
    )
    # After the body, whose bytes are not all the letter t.
    at = record.rindex(bytes((len(topic),)) + b"t" * len(topic), 88) + 1
    return record[:at] + topic + record[at + len(topic) :]


def random_log(
    chance: random.Random, count: int, base: int = 0, wrong_offsets: float = 0.03
) -> bytes:
    """Return `count` consecutive records; some state an offset that is not their own."""
    records: list[bytes] = []
    offset = base
    offsets: dict[bytes, int] = {}
    for _ in range(count):
        topic = chance.choice(TOPICS) if chance.random() < 0.97 else None
        stated = offset if chance.random() >= wrong_offsets else offset // 2
        queue_offset = offsets.get(topic or b"", 0)
        offsets[topic or b""] = queue_offset + (chance.random() < 0.98)
        record = random_record(chance, stated, queue_offset, topic)
        records.append(record)
        offset += len(record)
    return b"".join(records)


def damage(chance: random.Random, log: bytes) -> bytes:
    """Overwrite, insert or cut a few bytes."""
    data = bytearray(log)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            data[at : at + 1] = chance.randbytes(1)
        elif kind == 1:
            number = chance.choice((*NUMBERS, chance.randrange(2000)))
            data[at : at + 4] = struct.pack(">i", number)
        elif kind == 2:
            data[at : at + 2] = chance.choice((b"\x02\x02", b"\x01 ", b"\xff\xff", b"\x7f\xff"))
        elif kind == 3:
            data[at:at] = chance.choice((*MALFORMED, b"\x02KEYS\x01k", b"\0"))
        elif kind == 4:
            zeros = bytes(chance.choice((8, 512, 1100)))
            data[at : at + len(zeros)] = zeros
        else:
            del data[at : at + chance.choice((1, 3, 8, 500))]
    return bytes(data)
