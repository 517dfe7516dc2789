"""Chunks of sends, intact and damaged, for `protocol.kernel.sends`.

What the kernel takes is compared with the Python code: `split_frames` reads the frames, the rules
of `broker.handlers.send` tell that they are plain, and the encoders of the store make the records
and entries. The kernel may leave any frame to that code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any, Final, NamedTuple

from pyromq.protocol.filter.tags import raw_tags_codes, text_tags_codes
from pyromq.protocol.java.wire_types import INT64, parse_integer
from pyromq.protocol.message.crc import CRC_MASK, crc32
from pyromq.protocol.message.properties import (
    CLUSTER_START,
    DELAY_START,
    TRAN_MSG_START,
    WAIT_START,
    WAIT_TRUE,
)
from pyromq.protocol.message.record import (
    MESSAGE_MAGIC,
    encode_inner_message,
    head_packer,
    head_size,
    shared_packer,
    topic_part,
)
from pyromq.protocol.message.sysflag import (
    BORN_HOST_V6,
    HOST_MASK,
    STORE_HOST_V6,
    TRANSACTION_MASK,
)
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Encoding,
    RawFrame,
    RemotingCommand,
    frame_prefix,
    split_frames,
)
from pyromq.protocol.wire.send_fields import LONG_NAMES, SHORT_NAMES
from pyromq.store.batch_encoder import BatchEncoder, BatchPlace
from tests.fuzz.kernel.fuzzing import Mutator

_HOSTS: Final = (b"\x7f\0\0\1\0\0\x2a\x9f", bytes(15) + b"\1\0\0\x2a\x9f")
_STORE_TIMESTAMP: Final = 1_700_000_000_123
_POSITION: Final = 0x1234567890
_CLUSTER: Final = b"CLUSTER\x01DefaultCluster"
_BATCH_PROPERTIES: Final = {
    "": _CLUSTER,
    "WAIT\x01true": b"WAIT\x01true\x02" + _CLUSTER,
    "A\x01b\x02": b"A\x01b\x02" + _CLUSTER,
    "TAGS\x01all": b"TAGS\x01all\x02" + _CLUSTER,  # left to the Python code
    "NONE\x01": b"",
}
_JSON_PIECES: Final = (b'{"ids":"', b'","queue":"', b'","offset":"', b'","opaque":', b"}")
_BINARY_PIECES: Final = (b"\0\1", b"\2\2", b"ids", b"queue", b"offset", b"end")


class Queue(NamedTuple):
    """A queue as the kernel sees it."""

    topic: bytes
    queue_id: int
    next_offset: int
    room: int


_QUEUES: Final = (
    *(Queue(b"T", queue_id, 100 * queue_id, 1 << 40) for queue_id in range(3)),
    Queue(b"T", 3, 9_999, 10_001),  # has room for two messages
    Queue(b"a-longer-topic_name%", 2**31 - 1, 2**40, 1 << 62),
    Queue(b"x" * 127, 0, 0, 1 << 40),
)
_REMOVED: Final = Queue(b"removed", 0, 0, 1 << 40)


class Settings(NamedTuple):
    """Limits of a broker."""

    store_host: bytes
    max_record: int
    max_body: int
    max_batch_count: int
    max_batch_size: int


_SETTINGS: Final = (
    Settings(_HOSTS[0], 32767, 4 << 20, 8192, 16 << 20),
    Settings(_HOSTS[1], 32767, 4 << 20, 8192, 16 << 20),
    Settings(_HOSTS[0], 300, 200, 3, 900),
)


class Given(NamedTuple):
    """An input: arguments of `Sends.run`, and how often it is called without a reset."""

    chunk: bytes
    start: int
    room: int
    born_host: bytes
    settings: int
    repeat: int


#: What `Sends.run` returns.
Result = tuple[int, bytes, list[tuple[Queue, bytes, int]], bytes]


def runner(module: ModuleType) -> Callable[[Given], list[Result]]:
    """Return a function that serves a chunk."""
    brokers = [_sends(module, settings) for settings in _SETTINGS]

    def run(given: Given) -> list[Result]:
        sends = brokers[given.settings]
        sends.reset()
        results = []
        for _ in range(given.repeat):
            taken, records, queues, responses = sends.run(
                given.chunk,
                given.start,
                _POSITION,
                _POSITION + given.room,
                _STORE_TIMESTAMP,
                given.born_host,
            )
            results.append((taken, bytes(records), queues, responses))
        return results

    return run


def _sends(module: ModuleType, settings: Settings) -> Any:
    sends = module.Sends(
        settings.store_host,
        _host_flag(settings.store_host),
        _id_prefix(settings.store_host),
        _CLUSTER,
        _JSON_PIECES,
        _BINARY_PIECES,
        _BATCH_PROPERTIES,
        settings.max_record,
        settings.max_body,
        settings.max_batch_count,
        settings.max_batch_size,
    )
    for queue in (*_QUEUES, _REMOVED):
        sends.add_queue(queue.topic, queue.queue_id, queue)
    sends.remove_queue(_REMOVED.topic, _REMOVED.queue_id)
    return sends


# Inputs


_TOKENS: Final = (
    *(b'"', b"\\", b'\\"', b"\\u0001", b"\\u0002", b"\\u00e4", b"\\ud83d\\ude80", b"\\ud83d"),
    *(b"{", b"}", b"[", b",", b":", b" ", b"\n", b"null", b"true", b"false", b"-", b"0", b"01"),
    *(b"1e3", b"9" * 18, b"9" * 19, b"-2147483648", b"2147483648", b"\xff", b"\xc3\xa4", b"\x80"),
    *(b"\xed\xa0\x80", b"\xf0\x9f\x9a\x80", b"\xe2\x82\xac", b"\x00", b"\x01", b"\x02"),
    *(b'"i":"', b'"b":"T",', b'"flag":2,', b'"code":310,', b'"extFields":{', b'"opaque":1,'),
    *(b"TAGS\\u0001", b"TAGS\x01", b"WAIT\\u0001true\\u0002", b"WAIT\x01true\x02", b"WAIT\x01"),
    *(b"DELAY\\u0001", b"TRAN_MSG\x01", b"CLUSTER\x01", b"\\u0002WAIT\\u0001true", b"\0\0\0\1i"),
)
_TEXTS: Final = ("", "a", "Tag1", "order-1", "ä", "\U0001f680", "x" * 40, '"\\/\b\f\n\r\t', "\0")
_NAMES: Final = ("KEYS", "UNIQ_KEY", "TAGS", "WAIT", "XTAGS", "A", "ß", "DELAY", "CLUSTER")
_NUMBERS: Final = (
    "0",
    "1",
    "8",
    "-1",
    "2147483647",
    "2147483648",
    "007",
    "1699999999999",
    "+1",
    "",
)


def inputs(random: Random) -> Iterator[Given]:
    """Yield chunks of sends: most are damaged, some are large."""
    mutator = Mutator(random, _TOKENS)
    while True:
        if random.random() < 0.0002:
            yield _large(random)
            continue
        chunk = b"".join(_frame(random, mutator) for _ in range(random.choice((1, 1, 1, 2, 4))))
        if random.random() < 0.2:
            chunk = mutator.mutate(chunk)
        start = 0
        if random.random() < 0.05:
            start = random.randrange(1, 20)
            chunk = bytes(start) + chunk
        yield Given(
            chunk,
            start,
            1 << 30 if random.random() < 0.9 else random.randrange(2000),
            random.choice(_HOSTS),
            random.choice((0, 0, 0, 1, 2)),
            1,
        )


def _large(random: Random) -> Given:
    """Return a chunk that fills a scratch buffer: of records, responses, or messages of a call."""
    code = RequestCode.SEND_BATCH_MESSAGE
    fields = {"b": "T", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "m": "true"}
    kind = random.randrange(3)
    if kind == 0:
        batch = encode_inner_message(random.randbytes(random.randrange(3000, 4000)), b"") * 60
        frames = [_encode(code, fields, batch, 0, Encoding.JSON)] * 4
    elif kind == 1:
        single = {**fields, "m": "false"}
        frame = _encode(RequestCode.SEND_MESSAGE_V2, single, b"", 0, Encoding.ROCKETMQ)
        frames = [frame] * 14_000
    else:
        size = random.randrange(300, 2000)
        batch = encode_inner_message(b"", b"") * size
        frames = [_encode(code, fields, batch, FLAG_ONEWAY, Encoding.JSON)] * (36_000 // size)
    return Given(b"".join(frames), 0, 1 << 40, _HOSTS[0], 0, 8 if kind == 0 else 1)


def _frame(random: Random, mutator: Mutator) -> bytes:
    """Return a send, damaged in half of the cases, most often with lengths that fit."""
    code = random.choice((10, 310, 310, 310, 320, 320))
    encoding = random.choice((Encoding.JSON, Encoding.JSON, Encoding.ROCKETMQ))
    is_batch = code == 320 or random.random() < 0.05
    names = LONG_NAMES if code == 10 else SHORT_NAMES
    queue = random.choice((*_QUEUES[:4], *_QUEUES, _REMOVED))
    values = (
        queue.topic.decode(),
        str(queue.queue_id),
        *(_number(random) for _ in range(3)),
        _batch_properties(random) if is_batch else _properties(random),
        "0",
        "true" if is_batch else "false",
    )
    fields = {"a": "group", **dict(zip(names, values, strict=True)), "n": "broker-a"}
    if random.random() < 0.05:
        del fields[random.choice(list(fields))]
    if random.random() < 0.05:
        fields[random.choice(list(fields))] = random.choice(_TEXTS + _NUMBERS)
    body = _batch(random) if is_batch else random.randbytes(random.choice((0, 1, 15, 16, 40, 150)))
    flag = random.choice((0, 0, 0, 0, 0, 0, 0, FLAG_ONEWAY, FLAG_ONEWAY, FLAG_RESPONSE))
    frame = _encode(code, fields, body, flag, encoding)
    way = random.random()
    if way < 0.5:
        return frame
    if way < 0.6:
        return mutator.mutate(frame)
    (word,) = struct.unpack_from(">I", frame, 4)
    header, body = frame[8 : 8 + (word & 0xFFFFFF)], frame[8 + (word & 0xFFFFFF) :]
    if way < 0.9:
        header = mutator.mutate(header)
    if way > 0.85:
        body = mutator.mutate(body)
    return frame_prefix(encoding, len(header), len(body)) + header + body


def _encode(code: int, fields: dict[str, str], body: bytes, flag: int, encoding: Encoding) -> bytes:
    command = RemotingCommand(
        code, ext_fields=fields, body=body, flag=flag, opaque=77, encoding=encoding
    )
    return command.encode()


def _number(random: Random) -> str:
    return random.choice(_NUMBERS) if random.random() < 0.1 else "0"


def _properties(random: Random) -> str:
    """Return properties as clients write them, and sometimes ones that nobody writes."""
    pairs = []
    for _ in range(random.choice((0, 1, 2, 3, 5))):
        name = random.choice(_NAMES[:3] if random.random() < 0.9 else _NAMES)
        pairs.append(f"{name}\x01{random.choice(_TEXTS)}")
    if random.random() < 0.5:
        first = bool(pairs) and random.random() < 0.9  # alone or first, it is left to Python code
        pairs.insert(random.randrange(first, len(pairs) + 1), "WAIT\x01true")
    return "\x02".join(pairs) + ("\x02" if random.random() < 0.3 else "")


def _batch_properties(random: Random) -> str:
    return random.choice(("", "WAIT\x01true", *_BATCH_PROPERTIES, "unknown"))


def _batch(random: Random) -> bytes:
    return b"".join(
        encode_inner_message(
            random.randbytes(random.randrange(30)),
            _properties(random).encode(),
            random.choice((0, 5, -1)),
        )
        for _ in range(random.choice((1, 2, 3, 3, 5)))
    )


# The Python code


def check(given: Given, results: list[Result]) -> bool:
    """Compare what was taken with the Python code; return whether anything was."""
    settings = _SETTINGS[given.settings]
    for taken, records, queues, responses in results:
        frames, end, error = split_frames(given.chunk[:taken], position=given.start)
        assert error is None, f"took a frame that the Python code refuses: {error}"
        assert end == taken, "took a part of a frame"
        expected = _Expected(settings, given.born_host)
        for frame in frames:
            expected.put(frame)
        assert b"".join(expected.records) == records
        assert len(records) <= given.room
        assert [(q, b"".join(entries), len(entries)) for q, entries in expected.queues] == queues
        assert b"".join(expected.responses) == responses
    return any(records for _, records, _, _ in results)


_FIELDS: Final = {
    RequestCode.SEND_MESSAGE: LONG_NAMES,
    RequestCode.SEND_MESSAGE_V2: SHORT_NAMES,
    RequestCode.SEND_BATCH_MESSAGE: SHORT_NAMES,
}
_BY_NAME: Final = {(queue.topic.decode(), str(queue.queue_id)): queue for queue in _QUEUES}


class _Expected:
    """The records, entries and responses that the Python code makes."""

    def __init__(self, settings: Settings, born_host: bytes) -> None:
        self._settings = settings
        self._born_host = born_host
        self._flag = _host_flag(settings.store_host)
        if born_host == _HOSTS[1]:
            self._flag |= BORN_HOST_V6
        self._position = _POSITION
        self._next_offsets: dict[Queue, int] = {}
        self._entries: dict[Queue, list[bytes]] = {}
        self.records: list[bytes] = []
        self.responses: list[bytes] = []

    @property
    def queues(self) -> list[tuple[Queue, list[bytes]]]:
        return list(self._entries.items())

    def put(self, frame: RawFrame) -> None:
        """Store a frame as the hot path of the send handlers does."""
        encoding, header, body = frame
        names = _FIELDS[header["code"]]
        fields = header["extFields"]
        queue = _BY_NAME[fields[names.topic], fields[names.queue_id]]
        numbers = [
            parse_integer(fields[name], INT64)
            for name in (names.sys_flag, names.born_timestamp, names.flag)
        ]
        times = parse_integer(fields.get(names.reconsume_times, "0"), INT64)
        assert not numbers[0] & (TRANSACTION_MASK | HOST_MASK)
        assert not header.get("flag", 0) & FLAG_RESPONSE
        offset = self._next_offsets.setdefault(queue, queue.next_offset)
        is_batch = fields.get(names.batch, "false")
        if is_batch == "true":
            shared = _BATCH_PROPERTIES[fields[names.properties]]
            physicals = self._put_batch(queue, body, shared, numbers, times)
        else:
            assert is_batch == "false"
            assert header["code"] != RequestCode.SEND_BATCH_MESSAGE
            physicals = [self._put_one(queue, body, fields[names.properties], numbers, times)]
        assert self._next_offsets[queue] <= queue.room
        if not header.get("flag", 0) & FLAG_ONEWAY:
            self._respond(encoding, physicals, queue.queue_id, offset, header["opaque"])

    def _put_one(self, queue: Queue, body: bytes, text: str, numbers: list[int], times: int) -> int:
        text = text.replace(f"\x02{WAIT_TRUE}\x02", "\x02").removesuffix(f"\x02{WAIT_TRUE}")
        for name in (WAIT_START, TRAN_MSG_START, CLUSTER_START, DELAY_START):
            assert name not in text, name
        separator = b"\x02" if text and text[-1] != "\x02" else b""
        properties = text.encode() + separator + _CLUSTER
        sys_flag, born_timestamp, flag = numbers
        topic = topic_part(queue.topic.decode())
        size = head_size(self._flag) + len(body) + len(topic) + 2 + len(properties)
        assert size <= self._settings.max_record
        head = head_packer(self._flag)(
            size,
            MESSAGE_MAGIC,
            crc32(body) & CRC_MASK,
            queue.queue_id,
            flag,
            self._next_offsets[queue],
            self._position,
            sys_flag | self._flag,
            born_timestamp,
            self._born_host,
            _STORE_TIMESTAMP,
            self._settings.store_host,
            times,
            0,
            len(body),
        )
        self.records += (head, body, topic, struct.pack(">H", len(properties)), properties)
        entry = CONSUME_QUEUE_ENTRY.pack(self._position, size, text_tags_codes().find(text))
        return self._add(queue, [entry], size)

    def _put_batch(
        self, queue: Queue, body: bytes, shared: bytes, numbers: list[int], times: int
    ) -> list[int]:
        sys_flag, born_timestamp, _ = numbers
        topic = topic_part(queue.topic.decode())
        place = BatchPlace(
            head_size(self._flag) + len(topic) + 2,
            shared_packer(self._flag)(
                sys_flag | self._flag,
                born_timestamp,
                self._born_host,
                _STORE_TIMESTAMP,
                self._settings.store_host,
                times,
                0,
            ),
            topic,
            b"\x02" + shared if shared else b"",
            queue.queue_id,
            self._next_offsets[queue],
            self._position,
        )
        encoder = BatchEncoder(body, place, raw_tags_codes(), 0)
        assert not encoder.encode(self._settings.max_batch_count), "more messages than allowed"
        assert len(body) <= self._settings.max_body
        assert encoder.size <= self._settings.max_batch_size
        self.records += encoder.buffers
        self._add(queue, encoder.entries, encoder.size)
        return encoder.offsets

    def _add(self, queue: Queue, entries: list[bytes], size: int) -> int:
        physical = self._position
        self._entries.setdefault(queue, []).extend(entries)
        self._next_offsets[queue] += len(entries)
        self._position += size
        return physical

    def _respond(
        self, encoding: int, physicals: list[int], queue_id: int, offset: int, opaque: int
    ) -> None:
        prefix = _id_prefix(self._settings.store_host)
        ids = b",".join(prefix + b"%016X" % physical for physical in physicals)
        texts = (ids, b"%d" % queue_id, b"%d" % offset)
        if encoding == Encoding.JSON:
            values = (*texts, b"%d" % opaque, b"")
            header = b"".join(map(bytes.__add__, _JSON_PIECES, values))
        else:
            start, middle, *names, end = _BINARY_PIECES
            fields = b"".join(
                name + struct.pack(">I", len(text)) + text
                for name, text in zip(names, texts, strict=True)
            )
            fields += end
            length = struct.pack(">I", len(fields))
            header = start + struct.pack(">i", opaque) + middle + length + fields
        self.responses.append(frame_prefix(Encoding(encoding), len(header), 0) + header)


def _host_flag(store_host: bytes) -> int:
    return STORE_HOST_V6 if store_host == _HOSTS[1] else 0


def _id_prefix(store_host: bytes) -> bytes:
    return store_host.hex().upper().encode()
