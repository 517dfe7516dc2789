"""The benchmark's frames, built before the clock starts.

Requests equal those of RocketMQ's Java client: same fields, same order, same JSON or binary header.
One thing differs: Java's client writes the tags as the last property, most others do not, so the
benchmark does not either. This module imports nothing of pyromq: the benchmark shares no code with
its subject. bench/load.py and bench/cold.py send rings of requests; other modules of the benchmark
build single ones.

A connection sends a `Ring` repeatedly: requests back to back in one buffer. The opaque of a
request is OPAQUE_BASE plus its slot in the ring, so responses may arrive in any order. Keys are
unique: `start_lap` writes the lap number into every key, at the same columns of every frame, in
one numpy assignment.

Invariants: all frames of a ring of sends have the same length; a lap is patched only while no
byte of the ring is unwritten.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
PULL_MESSAGE = 11
UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30

QUEUES = 8
PULL_SIZE = 32
BATCH_SIZE = 32
OPAQUE_BASE = 100_000  # all opaques have six digits, so all frames have the same length
#: The first two bytes occur nowhere else in a response with a binary header.
BINARY_OPAQUE_BASE = 0x7B5A_0000

_PRODUCER_GROUP = "BenchmarkProducer"
_CONSUMER_GROUP = "BenchmarkConsumer"
_BROKER_NAME = "broker-a"
_LAP = "LAPS"  # placeholder in each key for the lap's four hexadecimal digits
_PULL_SYS_FLAG_SUBSCRIPTION = 4
#: Code, language, version, opaque, flag, length of the remark, length of the fields.
_BINARY_HEAD = struct.Struct(">hBhiiII")
_BINARY_TYPE = 1 << 24  # in the header's length
_JAVA_LANGUAGE, _VERSION = 0, 407
_BATCH_HEAD = struct.Struct(">IIIII")  # total size, magic, body CRC, flag, body length


class Encoding(Enum):
    """The protocol of a ring's requests and of their responses."""

    JSON = auto()
    BINARY = auto()
    NATS = auto()


@dataclass(slots=True)
class Ring:
    """The requests of one connection, back to back, with the offset of each."""

    data: bytearray
    starts: npt.NDArray[np.int64]  # one more than frames: the last is the end
    messages_per_frame: int
    lap_columns: tuple[int, ...] = ()
    next_offsets: npt.NDArray[np.int64] | None = (
        None  # for pulls: the expected content of each response
    )
    encoding: Encoding = Encoding.JSON

    @property
    def frames(self) -> int:
        """Return the number of requests of a lap."""
        return len(self.starts) - 1

    def start_lap(self, lap: int) -> None:
        """Give all messages of the ring new keys."""
        if not self.lap_columns:
            return
        digits = np.frombuffer(f"{lap & 0xFFFF:04X}".encode(), dtype=np.uint8)
        table = np.frombuffer(self.data, dtype=np.uint8).reshape(self.frames, -1)
        for column in self.lap_columns:
            table[:, column : column + len(digits)] = digits


def send_ring(
    topic: str,
    frames: int,
    body_size: int,
    connection: int,
    born: int,
    encoding: Encoding = Encoding.JSON,
) -> Ring:
    """Build single sends, over the queues in turn."""
    build, base = {
        Encoding.JSON: (command, OPAQUE_BASE),
        Encoding.BINARY: (binary_command, BINARY_OPAQUE_BASE),
    }[encoding]
    encoded = [
        build(SEND_MESSAGE_V2, fields, body, base + slot)
        for slot, (fields, body) in enumerate(
            send_fields(topic, frames, body_size, connection, born)
        )
    ]
    return make_ring(encoded, 1, encoding)


def send_fields(
    topic: str, frames: int, body_size: int, connection: int, born: int
) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield the fields and the body of single sends, over the queues in turn."""
    bodies = random.Random(connection)
    for slot in range(frames):
        properties = _properties(connection, slot)
        yield (
            _send_header(topic, slot % QUEUES, properties, False, born),
            bodies.randbytes(body_size),
        )


def batch_ring(topic: str, frames: int, body_size: int, connection: int, born: int) -> Ring:
    """Build batches of BATCH_SIZE messages, each to the next queue."""
    bodies = random.Random(connection)
    encoded = []
    for slot in range(frames):
        batch = b"".join(
            _batch_entry(
                bodies.randbytes(body_size), _properties(connection, slot * BATCH_SIZE + inner)
            )
            for inner in range(BATCH_SIZE)
        )
        header = _send_header(topic, slot % QUEUES, "WAIT\x01true", True, born)
        encoded.append(command(SEND_BATCH_MESSAGE, header, batch, OPAQUE_BASE + slot))
    return make_ring(encoded, BATCH_SIZE)


def pull_ring(topic: str, connection: int, connections: int, stored_per_queue: int) -> Ring:
    """Build pulls of PULL_SIZE messages; each connection reads its own queues completely."""
    places = pull_places(connection, connections, stored_per_queue)
    encoded = [
        pull_request(topic, queue, offset, OPAQUE_BASE + slot)
        for slot, (queue, offset) in enumerate(places)
    ]
    ring = make_ring(encoded, PULL_SIZE)
    ring.next_offsets = np.array([offset + PULL_SIZE for _, offset in places], dtype=np.int64)
    return ring


def pull_places(connection: int, connections: int, stored_per_queue: int) -> list[tuple[int, int]]:
    """Return queue and offset of each pull of a connection."""
    queues = range(connection, QUEUES, connections)
    offsets = range(0, stored_per_queue - PULL_SIZE + 1, PULL_SIZE)
    return [(queue, offset) for offset in offsets for queue in queues]


def pull_request(topic: str, queue: int, offset: int, opaque: int) -> bytes:
    """Build a pull with its subscription in the header, without long polling."""
    return command(PULL_MESSAGE, pull_fields(topic, queue, offset), b"", opaque)


def pull_fields(topic: str, queue: int, offset: int) -> dict[str, str]:
    """Return the fields of a pull."""
    return {
        "queueId": str(queue),
        "maxMsgNums": str(PULL_SIZE),
        "sysFlag": str(_PULL_SYS_FLAG_SUBSCRIPTION),
        "suspendTimeoutMillis": "15000",
        "commitOffset": "0",
        "topic": topic,
        "queueOffset": str(offset),
        "expressionType": "TAG",
        "subscription": "*",
        "subVersion": "0",
        "consumerGroup": _CONSUMER_GROUP,
    }


def create_topic_request(topic: str) -> bytes:
    """Build a request that creates a topic with QUEUES queues."""
    return command(UPDATE_AND_CREATE_TOPIC, create_topic_fields(topic), b"", OPAQUE_BASE)


def create_topic_fields(topic: str) -> dict[str, str]:
    """Return the fields of that request."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def max_offset_request(topic: str, queue: int) -> bytes:
    """Build a request for the number of messages in a consume queue."""
    return command(
        GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)}, b"", OPAQUE_BASE + queue
    )


def command(code: int, fields: dict[str, str], body: bytes, opaque: int) -> bytes:
    """Build a frame with a JSON header, its fields in the order of Java's serializer."""
    header: dict[str, Any] = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": _VERSION,
    }
    encoded = orjson.dumps(header)
    return struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def binary_command(code: int, fields: dict[str, str], body: bytes, opaque: int) -> bytes:
    """Build a frame with a binary header, its fields in the order of Java's encoder."""
    encoded = b"".join(
        struct.pack(">H", len(name)) + name.encode() + struct.pack(">I", len(raw)) + raw
        for name, raw in ((name, value.encode()) for name, value in fields.items())
    )
    head = _BINARY_HEAD.pack(code, _JAVA_LANGUAGE, _VERSION, opaque, 0, 0, len(encoded))
    length = len(head) + len(encoded)
    prefix = struct.pack(">II", 4 + length + len(body), _BINARY_TYPE | length)
    return prefix + head + encoded + body


def make_ring(
    encoded: Sequence[bytes], messages_per_frame: int, encoding: Encoding = Encoding.JSON
) -> Ring:
    """Put requests back to back."""
    lengths = np.array([len(frame) for frame in encoded], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    columns = _columns(encoded[0], _LAP.encode())
    if columns and lengths.min() != lengths.max():
        raise ValueError("frames with keys must have one length, or laps cannot be patched")
    data = bytearray(b"".join(encoded))
    return Ring(data, starts, messages_per_frame, columns, encoding=encoding)


def _columns(frame: bytes, mark: bytes) -> tuple[int, ...]:
    found = []
    position = frame.find(mark)
    while position >= 0:
        found.append(position)
        position = frame.find(mark, position + len(mark))
    return tuple(found)


def _send_header(topic: str, queue: int, properties: str, batch: bool, born: int) -> dict[str, str]:
    return {
        "a": _PRODUCER_GROUP,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": str(born),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
        "n": _BROKER_NAME,
    }


def _properties(connection: int, number: int) -> str:
    """Build a producer's properties: keys, tags, unique id of 32 hexadecimal digits."""
    return (
        f"KEYS\x01order-{connection:02d}{number:08d}{_LAP}\x02"
        f"TAGS\x01Tag{number % 4}\x02"
        f"UNIQ_KEY\x017F000001{connection:04X}18B4AAC2{number:08X}{_LAP}\x02"
        f"WAIT\x01true"
    )


def _batch_entry(body: bytes, properties: str) -> bytes:
    encoded = properties.encode()
    size = _BATCH_HEAD.size + len(body) + 2 + len(encoded)
    return (
        _BATCH_HEAD.pack(size, 0, 0, 0, len(body))
        + body
        + struct.pack(">H", len(encoded))
        + encoded
    )
