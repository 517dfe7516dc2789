"""Frames of every request code that a server knows: good ones, and good ones with damage.

A request is made from its header's and its body's class where it has them, so that it gets
past the first check. The first rounds through all codes are good in both encodings; after them
most frames have something wrong: a type, a size, a number, a name, an encoding, the nesting,
the length. A frame depends on its seed and number alone: `Forge(...).frame(number)` makes it
again.

Pure. Names come from small sets: a run of a million frames creates no more topics and groups
than one of some thousand, and none that the well-behaved client uses.
"""

from __future__ import annotations

import functools
import json
import random
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from pyromq.protocol.java.wire_types import bare_type, wire_name, without_none
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire import bodies, headers, headers_admin, promotion
from pyromq.protocol.wire.body_codec import Body
from pyromq.protocol.wire.codes import LanguageCode, RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, Encoding, frame_prefix
from pyromq.protocol.wire.header_binary import encode as encode_binary
from pyromq.protocol.wire.header_codec import Header
from tests.fuzz.test_codec import ABSURD

MIB: Final = 1024 * 1024
#: Each frame of such a number has a body of some megabytes.
HUGE_EVERY: Final = 800

TOPICS: Final = [f"Fuzz-{number}" for number in range(8)]
GROUPS: Final = [f"FuzzGroup-{number}" for number in range(8)]
CLIENTS: Final = [f"127.0.0.1@fuzz-{number}" for number in range(8)]
#: Numbers at which types, and memories of them, end.
NUMBERS: Final = (
    *(0, 1, -1, 2, 3, 7, 8, 127, 128, 255, 256, 65535, 65536),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30),
)
#: Expressions of tags and SQL, from good to absurd.
EXPRESSIONS: Final = (
    *("*", "a||b", "a > 1 AND b = 'x'", "a IS NOT NULL OR NOT (b BETWEEN 1 AND 2)", "a IN ('1')"),
    *(
        "((((",
        "a >",
        "'",
        "a = 99999999999999999999",
        "\u20ac = 1",
        "(" * 300 + "a = 1" + ")" * 300,
    ),
    "||".join(f"tag{number}" for number in range(500)),
    " OR ".join(f"a = {number}" for number in range(500)),
    " AND ".join("a = " + "9" * 5000 for _ in range(3)),
)
PROPERTIES: Final = (
    "",
    "KEYS\x01k\x02TAGS\x01t",
    "DELAY\x012\x02TAGS\x01a",
    "DELAY\x0199999999999",
    "DELAY\x01\u0661",
    "a\x01" + "9" * 5000,
    "a\x01b\x02" * 1000,
    "\x01\x02\x01\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01FuzzGroup-1",
    "RETRY_TOPIC\x01Fuzz-1\x02RECONSUME_TIME\x01x",
    "MSG_TYPE\x01x\x02CLUSTER\x01c",
    "\x00",
    "x" * 40_000,
)
#: Settings that nobody may change to such values, or that nothing knows.
SETTINGS: Final = (
    *("listenPort=-1", "storePathRootDir=/nowhere", "brokerName=../../x", "brokerName=\x00"),
    *("mappedFileSizeCommitLog=1", "flushDiskType=NEVER", "kvConfigPath=/x", "=", "a=\\u12"),
    *("unknown=1", "x" * 5000 + "=1", "orderMessageEnable=maybe", "configStorePath=/x"),
)

ZIP_BOMB: Final = zlib.compress(bytes(8 * MIB))


class Target(NamedTuple):
    """A request code of a server, and what its request is made of."""

    server: str
    code: int
    header: type[Header] | None
    body: type[Body] | None


class Frame(NamedTuple):
    """One attack."""

    number: int
    server: str
    kind: str
    data: bytes
    #: Nothing can follow on this connection: the server waits for the rest, or closes it.
    is_torn: bool = False

    @property
    def may_close(self) -> bool:
        """Whether the server is free to close the connection."""
        return self.is_torn or self.kind in _MAY_CLOSE


def target(server: str, code: int, header: str | None, body: str | None) -> Target:
    """A target by the names of its classes, as the server's own handler uses them."""
    special = _SPECIAL_HEADERS.get(code)
    return Target(
        server,
        code,
        special or _class(header, headers, headers_admin, promotion),
        _class(body, bodies) or _SPECIAL_BODIES.get(code),
    )


class Forge:
    """Makes the frames of one seed."""

    def __init__(self, targets: list[Target], seed: int) -> None:
        self.targets = targets
        self.seed = seed
        self._with_body = [item for item in targets if item.body or item.code in _BODIES_BY_HAND]

    def frame(self, number: int) -> Frame:
        """The frame of this number; its opaque is the number."""
        turn, index = divmod(number, len(self.targets))
        dice = random.Random(f"{self.seed}:{number}")
        if number % HUGE_EVERY == HUGE_EVERY - 1:
            large = self._with_body[number // HUGE_EVERY % len(self._with_body)]
            made = _Request(large, number, dice)
            made.body = good_body(made, dice.choice((20_000, 20_000, 60_000)))[: 12 * MIB]
            return made.frame("huge_body")
        made = _Request(self.targets[index], number, dice)
        if made.target.code <= _MAX_BINARY_CODE:
            made.encoding = Encoding(turn % 2)
        if turn < 4:
            return made.frame("good")
        damage = made.dice.choices(_DAMAGES, _WEIGHTS)[0]
        damage(made)
        return made.frame(damage.__name__.strip("_"))


#: A binary header has 16 bits for the code; pyromq's own codes do not fit.
_MAX_BINARY_CODE: Final = 0x7FFF


class _Request:
    """A good request, to be damaged."""

    def __init__(self, target: Target, number: int, dice: random.Random) -> None:
        self.target = target
        self.number = number
        self.dice = dice
        self.encoding = Encoding.JSON
        self.top: dict[str, Any] = {
            "code": target.code,
            "flag": 0,
            "language": "JAVA",
            "opaque": number & 0x7FFFFFFF,
            "version": dice.choice((407, 0, 401, 431)),
        }
        self.fields = {} if target.header is None else good_fields(target.header, dice)
        self.body = good_body(self)
        #: What becomes of the whole frame.
        self.finish: Callable[[bytes], bytes] = lambda data: data
        self.header_text: bytes | None = None
        self.is_torn = False

    def frame(self, kind: str) -> Frame:
        header = self.header_text
        if header is None and self.encoding is Encoding.ROCKETMQ:
            header = encode_binary(
                self.top["code"],
                LanguageCode.JAVA,
                self.top["version"],
                self.top["opaque"],
                self.top["flag"],
                None,
                {key: as_text(value) for key, value in self.fields.items()},
            )
        elif header is None:
            header = dumps({**self.top, "extFields": self.fields})
        data = frame_prefix(self.encoding, len(header), len(self.body)) + header + self.body
        return Frame(self.number, self.target.server, kind, self.finish(data), is_torn=self.is_torn)


# Good requests


def good_fields(header: type[Header], dice: random.Random) -> dict[str, Any]:
    """Fields of a header class that its decoder takes."""
    return {
        wire: as_text(good_scalar(name, bare_type(without_none(annotation)), dice))
        for name, wire, annotation in fields_of(header)  # type: ignore[arg-type] # it is hashable
    }


@functools.cache
def fields_of(kind: Any) -> list[tuple[str, str, Any]]:
    """Attribute, name on the wire and annotation of each field of a header or body."""
    annotations = get_type_hints(kind, include_extras=True)
    return [
        (field.name, wire_name(field.name, annotations[field.name]), annotations[field.name])
        for field in fields(kind)
    ]


def good_scalar(name: str, kind: type, dice: random.Random) -> Any:  # noqa: C901 - a table of names
    """A value that a field of this name may well have."""
    if kind is bool:
        return dice.random() < 0.5
    if kind is float:
        return dice.random()
    if kind is int:
        if "timeout" in name or "suspend" in name:
            return dice.choice((0, 1, 100))
        if "time" in name and "times" not in name.split("_"):
            return dice.choice((0, 1_700_000_000_000, 2**40))
        if "max" in name or "nums" in name:
            return dice.choice((1, 4, 8, 32))
        return dice.choice((0, 0, 0, 1, 2, 3))
    if name == "default_topic":
        return dice.choice(("TBW102", "TBW102", TOPICS[0]))
    if "topic" in name:
        return dice.choice(TOPICS)
    if "group" in name:
        return dice.choice(GROUPS)
    if "client" in name or name == "consumer_id":
        return dice.choice(CLIENTS)
    if "propert" in name:
        return dice.choice(PROPERTIES)
    if "subscription" in name or name in ("sub_string", "expression"):
        return dice.choice(EXPRESSIONS)
    if "type" in name:
        return dice.choice(("TAG", "SQL92"))
    if "addr" in name:
        return f"127.0.0.1:{dice.randrange(1, 9)}"
    if "message_id" in name or "msg_id" in name:
        return f"7F000001{dice.randrange(1 << 96):024X}"
    return f"fuzz-{dice.randrange(8)}"


def good_body(request: _Request, size: int | None = None) -> bytes:
    """A body for this request; with a size, one with a table of about so many items."""
    code, dice = request.target.code, request.dice
    if code == RequestCode.SEND_BATCH_MESSAGE:
        count = size or dice.randrange(1, 5)
        return encode_inner_message(b"body", dice.choice(PROPERTIES)[:500].encode()) * count
    if code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
        return "\n".join(dice.choices(SETTINGS, k=size or 1)).encode()
    if code == RequestCode.REGISTER_BROKER and dice.random() < 0.5:
        request.fields["compressed"] = "true"
        request.fields["bodyCrc32"] = "0"
        return compressed_registration(size or 3, dice)
    request.fields.pop("bodyCrc32", None)
    if request.target.body is None:
        return b"" if size is None and dice.random() < 0.5 else bytes(size or 64)
    return dumps(good_value(request.target.body, "", dice, size))


def good_value(annotation: Any, name: str, dice: random.Random, size: int | None) -> Any:
    """A JSON value that the reader of this annotation takes."""
    bare = bare_type(without_none(annotation))
    origin, arguments = get_origin(bare), get_args(bare)
    if origin is Union:
        return good_value(arguments[0], name, dice, size)
    count = dice.randrange(3) if size is None else size
    if origin in (list, set):
        if size is not None and dice.random() < 0.5 and is_body(arguments[0]):
            return [good_value(arguments[0], name, dice, size)]  # something in it is large
        items = [good_value(arguments[0], name, dice, None) for _ in range(min(count, 50))]
        return [distinct(items[n % len(items)], n) for n in range(count)] if items else []
    if origin is dict:
        items = [good_value(arguments[1], name, dice, None) for _ in range(min(count, 50))]
        keys = good_key(arguments[0], name, dice)
        return {keys(n): distinct(items[n % len(items)], n) for n in range(count)}
    if issubclass(bare, Enum):
        return dice.choice(list(bare)).name
    if issubclass(bare, Body):
        made = {
            wire: good_value(inner, attribute, dice, size)
            for attribute, wire, inner in fields_of(bare)
        }
        if size is not None and "consumerGroup" in made:
            made["consumerGroup"] = GROUPS[0]  # a table for one group, not for each
        return made
    return good_scalar(name, bare, dice)


def is_body(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Body)


def good_key(annotation: Any, name: str, dice: random.Random) -> Callable[[int], str]:
    bare = bare_type(annotation)
    if bare is int:
        return str
    if is_body(bare):
        value = good_value(bare, name, dice, None)
        return lambda number: json.dumps(distinct(value, number))
    return lambda number: f"Table-{number}"


def distinct(value: Any, number: int) -> Any:
    """The same with the names of this number: large tables have the same ones."""
    if isinstance(value, str):
        return f"Table-{number}"
    if isinstance(value, dict):
        made = {
            key: f"Table-{number}" if isinstance(item, str) and _NAME.search(key) else item
            for key, item in value.items()
        }
        return {**made, "queueId": 0} if "queueId" in made else made
    return value


#: Fields by which the items of a table differ.
_NAME: Final = re.compile("^topic$|[nN]ame$")


def compressed_registration(topics: int, dice: random.Random) -> bytes:
    parts: list[bytes | int] = [b'{"timestamp":1,"counter":%d}' % dice.randrange(3), topics]
    parts += [b"Table-%d 4 4 6 SINGLE_TAG" % number for number in range(topics)]
    parts.append(b"[]")
    packed = b"".join(
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part
        for part in parts
    )
    return zlib.compress(packed)


# Damage


def _good(_: _Request) -> None:
    """None: the server's state is what makes the next ones interesting."""


def _wrong_value(request: _Request) -> None:
    for _ in range(request.dice.choice((1, 1, 1, 2, 5))):
        if request.fields:
            request.fields[request.dice.choice(list(request.fields))] = absurd(request.dice)


def _wrong_fields(request: _Request) -> None:
    """Fields that are missing, unknown, or far too many."""
    dice = request.dice
    for name in list(request.fields):
        if dice.random() < 0.3:
            del request.fields[name]
    if dice.random() < 0.5:
        count = dice.choice((1, 10, 2000))
        request.fields |= {f"unknown-{number}": "x" for number in range(count)}


def _fields_twice(request: _Request) -> None:
    """JSON that has a key more than once, with another value each time."""
    request.encoding = Encoding.JSON
    text = dumps({**request.top, "extFields": request.fields})[:-1]
    other = dumps({key: absurd(request.dice) for key in request.fields})
    request.header_text = text + b',"extFields":' + other + b',"code":%d}' % request.target.code


def _wrong_top(request: _Request) -> None:
    """A wrong frame around good fields; often the connection must be closed."""
    dice = request.dice
    name = dice.choice(("flag", "language", "version", "opaque", "code", "remark", "extFields"))
    if request.encoding is Encoding.ROCKETMQ:
        if name == "flag":
            request.top["flag"] = dice.choice((FLAG_ONEWAY, 1, 3, -1))
        return
    value = dice.choice((*NUMBERS, "x", None, 1.5, True, [], {}, [[1]], {"a": {"b": 1}}))
    request.header_text = dumps({**request.top, "extFields": request.fields, name: value})


def _oneway(request: _Request) -> None:
    request.top["flag"] = FLAG_ONEWAY


def _damaged_header(request: _Request) -> None:
    """Some bytes of the header are others; the lengths around it stay true."""
    plain = _Request.frame(request, "").data
    (word,) = struct.unpack_from(">I", plain, 4)
    length = word & 0xFFFFFF
    request.header_text = damaged(plain[8 : 8 + length], request.dice)


def _damaged_frame(request: _Request) -> None:
    request.finish = lambda data: damaged(data, request.dice)
    request.is_torn = True


def _torn_frame(request: _Request) -> None:
    request.finish = lambda data: data[: request.dice.randrange(1, len(data))]
    request.is_torn = True


def _damaged_body(request: _Request) -> None:
    request.body = damaged(request.body, request.dice)


def _other_body(request: _Request) -> None:
    dice = request.dice
    request.body = dice.choice(
        (
            b"",
            b"{}",
            b"[]",
            b"null",
            b"{",
            b"[" * 5000,
            b'{"a":' * 5000,
            b"\xff" * 50,
            bytes(1000),
            b'"' + b"x" * 5000 + b'"',
            b"9" * 5000,
            b"NaN",
            b"1e400",
            b'{"a":1,"a":2}',
            dice.randbytes(dice.randrange(1000)),
            ZIP_BOMB,
            dice.choice(EXPRESSIONS).encode(),
            dice.choice(PROPERTIES).encode(),
        )
    )


def _absurd_body(request: _Request) -> None:
    """A body of the right shape in which one value, somewhere, is absurd."""
    if request.target.body is None:
        return _other_body(request)
    value = good_value(request.target.body, "", request.dice, None)
    for _ in range(request.dice.choice((1, 1, 3))):
        _replace_somewhere(value, request.dice)
    request.body = dumps(value)
    return None


def _large_body(request: _Request) -> None:
    request.body = good_body(request, request.dice.choice((100, 1000, 5000)))


def _long_value(request: _Request) -> None:
    if request.fields:
        name = request.dice.choice(list(request.fields))
        size = request.dice.choice((1000, 32_767, 65_536, MIB))
        request.fields[name] = request.dice.choice(("x", "9", "\u20ac", "\n", "(")) * size


_DAMAGES: Final = [
    *(_good, _wrong_value, _wrong_fields, _fields_twice, _wrong_top, _oneway, _damaged_header),
    *(_damaged_frame, _torn_frame, _damaged_body, _other_body, _absurd_body, _large_body),
    _long_value,
]
#: What is wrong with the header itself: a server may answer, or see that it is no frame.
_MAY_CLOSE: Final = ("wrong_top", "damaged_header", "fields_twice", "wrong_value", "long_value")
_WEIGHTS: Final = [20, 25, 8, 4, 3, 4, 3, 2, 2, 6, 6, 14, 1, 0.5]


def absurd(dice: random.Random) -> Any:
    """A value that no field expects."""
    kind = dice.randrange(6)
    if kind == 0:
        return dice.choice(NUMBERS)
    if kind == 1:
        return str(dice.choice(NUMBERS))
    if kind == 2:
        return dice.choice(ABSURD[:-1])
    if kind == 3:
        return dice.choice((None, True, 1.5, [], {}, [[1]], {"a": {"b": None}}, ["x"] * 50))
    if kind == 4:
        return dice.choice(EXPRESSIONS + PROPERTIES)
    return dice.choice((*TOPICS, *GROUPS, "%RETRY%FuzzGroup-1", "SCHEDULE_TOPIC_XXXX", "TBW102x"))


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Bytes changed, cut, doubled, or put in."""
    if not data:
        return dice.randbytes(8)
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(made)) if made else 0
        kind = dice.randrange(4)
        if kind == 0 and made:
            made[at] = dice.randrange(256)
        elif kind == 1:
            del made[at : at + dice.randrange(1, 20)]
        elif kind == 2:
            made[at:at] = made[at : at + 20]
        else:
            made[at:at] = dice.randbytes(4)
    return bytes(made)


def _replace_somewhere(value: Any, dice: random.Random) -> None:
    while True:
        if isinstance(value, dict) and value:
            key: Any = dice.choice(list(value))
        elif isinstance(value, list) and value:
            key = dice.randrange(len(value))
        else:
            return
        inner = value[key]
        if isinstance(inner, dict | list) and inner and dice.random() < 0.7:
            value = inner
            continue
        value[key] = nested(dice.randrange(1, 400)) if dice.random() < 0.05 else absurd(dice)
        return


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _class(name: str | None, *modules: Any) -> Any:
    found = [getattr(module, name, None) for module in modules] if name else []
    return next((item for item in found if item is not None), None)


#: Headers that are read by hand, for speed.
_SPECIAL_HEADERS: Final[dict[int, type[Header]]] = {
    RequestCode.SEND_MESSAGE: headers.SendMessageRequestHeader,
    RequestCode.SEND_MESSAGE_V2: headers.SendMessageRequestHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: headers.SendMessageRequestHeaderV2,
    RequestCode.SEND_REPLY_MESSAGE: headers.SendMessageRequestHeader,
    RequestCode.SEND_REPLY_MESSAGE_V2: headers.SendMessageRequestHeaderV2,
    RequestCode.PULL_MESSAGE: headers.PullMessageRequestHeader,
    RequestCode.LITE_PULL_MESSAGE: headers.PullMessageRequestHeader,
}
#: Codes whose bodies are no JSON.
_BODIES_BY_HAND: Final = (
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.UPDATE_NAMESRV_CONFIG,
)
_SPECIAL_BODIES: Final[dict[int, type[Body]]] = {
    RequestCode.REGISTER_BROKER: bodies.RegisterBrokerBody,
}
