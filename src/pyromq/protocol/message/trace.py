"""Encode and decode message traces: records of what happened to a message, in their own topic.

The body of a trace message is any number of records in UTF-8. Its keys are the ids and keys of the
traced messages. A record ends with U+0002; U+0001 separates its fields:

    Pub             time region group topic id tags keys store-host body-length cost type
                    offset-id success
    SubBefore       time region group request-id id retries keys
    SubAfter        request-id id cost success keys return-code time group
    EndTransaction  time region group topic id tags keys store-host type transaction-id state
                    from-check

Rules
1. Times and costs are in milliseconds. A missing value is `null`, as Java prints it: Java's
   readers would lose an empty field at the end of a record.
2. Older versions wrote a `Pub` without offset id (12 fields) or with the producer's address at the
   end (14), and a `SubAfter` without code, time and group. All of these can be decoded.
3. Records that cannot be decoded are skipped.

Pure. Written by clients (`client.trace`), read by Java's tools (`mqadmin`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

FIELD_SEPARATOR: Final = "\x01"
RECORD_SEPARATOR: Final = "\x02"
#: The region of a broker that does not announce one.
DEFAULT_REGION: Final = "DefaultRegion"
_NOTHING: Final = "null"
_UNSAFE: Final = str.maketrans({FIELD_SEPARATOR: " ", RECORD_SEPARATOR: " "})


class TracedType(IntEnum):
    """The kind of message that was sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class ConsumeReturn(IntEnum):
    """How a handler returned."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Published:
    """`Pub`: a message was stored."""

    time: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    body_length: int
    cost: int
    type: TracedType
    offset_msg_id: str
    success: bool
    client_host: str = ""

    def encode(self) -> str:
        """Return the record as text."""
        return _record(
            "Pub",
            self.time,
            self.region,
            self.group,
            self.topic,
            self.msg_id,
            self.tags,
            self.keys,
            self.store_host,
            self.body_length,
            self.cost,
            int(self.type),
            self.offset_msg_id,
            self.success,
        )


@dataclass(frozen=True, slots=True)
class ConsumeBegun:
    """`SubBefore`: a handler is about to get a message."""

    time: int
    region: str
    group: str
    request_id: str
    msg_id: str
    retries: int
    keys: str

    def encode(self) -> str:
        """Return the record as text."""
        return _record(
            "SubBefore",
            self.time,
            self.region,
            self.group,
            self.request_id,
            self.msg_id,
            self.retries,
            self.keys,
        )


@dataclass(frozen=True, slots=True)
class ConsumeEnded:
    """`SubAfter`: the handler returned; `request_id` is that of the matching `SubBefore`."""

    request_id: str
    msg_id: str
    cost: int
    success: bool
    keys: str
    code: ConsumeReturn = ConsumeReturn.SUCCESS
    time: int = 0
    group: str = ""

    def encode(self) -> str:
        """Return the record as text."""
        return _record(
            "SubAfter",
            self.request_id,
            self.msg_id,
            self.cost,
            self.success,
            self.keys,
            int(self.code),
            self.time,
            self.group,
        )


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """`EndTransaction`: a producer reported to its broker how a transaction ended."""

    time: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    type: TracedType
    transaction_id: str
    #: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
    state: str
    from_check: bool

    def encode(self) -> str:
        """Return the record as text."""
        return _record(
            "EndTransaction",
            self.time,
            self.region,
            self.group,
            self.topic,
            self.msg_id,
            self.tags,
            self.keys,
            self.store_host,
            int(self.type),
            self.transaction_id,
            self.state,
            self.from_check,
        )


TraceRecord = Published | ConsumeBegun | ConsumeEnded | TransactionEnded


def decode_trace(body: bytes | str) -> list[TraceRecord]:
    """Decode the records in the body of a trace message, in order."""
    text = body if isinstance(body, str) else body.decode(errors="replace")
    records: list[TraceRecord] = []
    for line in text.split(RECORD_SEPARATOR):
        name, *fields = line.split(FIELD_SEPARATOR)
        decode = _DECODERS.get(name)
        if decode is not None:
            try:
                records.append(decode(fields))
            except (ValueError, IndexError):
                continue
    return records


def _record(*fields: object) -> str:
    return FIELD_SEPARATOR.join(map(_text, fields)) + RECORD_SEPARATOR


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A separator inside a value would shift the fields after it.
    return str(value).translate(_UNSAFE) or _NOTHING


def _given(text: str) -> str:
    return "" if text == _NOTHING else text


def _published(fields: Sequence[str]) -> Published:
    has_offset_id = len(fields) > 12
    return Published(
        time=int(fields[0]),
        region=_given(fields[1]),
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        tags=_given(fields[5]),
        keys=_given(fields[6]),
        store_host=_given(fields[7]),
        body_length=int(fields[8]),
        cost=int(fields[9]),
        type=TracedType(int(fields[10])),
        offset_msg_id=_given(fields[11]) if has_offset_id else "",
        success=fields[12 if has_offset_id else 11] == "true",
        client_host=fields[13] if len(fields) > 13 else "",
    )


def _consume_begun(fields: Sequence[str]) -> ConsumeBegun:
    return ConsumeBegun(
        time=int(fields[0]),
        region=_given(fields[1]),
        group=fields[2],
        request_id=fields[3],
        msg_id=fields[4],
        retries=int(fields[5]),
        keys=_given(fields[6]),
    )


def _consume_ended(fields: Sequence[str]) -> ConsumeEnded:
    return ConsumeEnded(
        request_id=fields[0],
        msg_id=fields[1],
        cost=int(fields[2]),
        success=fields[3] == "true",
        keys=_given(fields[4]),
        code=ConsumeReturn(int(fields[5])) if len(fields) > 5 else ConsumeReturn.SUCCESS,
        time=int(fields[6]) if len(fields) > 7 else 0,
        group=fields[7] if len(fields) > 7 else "",
    )


def _transaction_ended(fields: Sequence[str]) -> TransactionEnded:
    return TransactionEnded(
        time=int(fields[0]),
        region=_given(fields[1]),
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        tags=_given(fields[5]),
        keys=_given(fields[6]),
        store_host=_given(fields[7]),
        type=TracedType(int(fields[8])),
        transaction_id=_given(fields[9]),
        state=fields[10],
        from_check=fields[11] == "true",
    )


_DECODERS: dict[str, Callable[[Sequence[str]], TraceRecord]] = {
    "Pub": _published,
    "SubBefore": _consume_begun,
    "SubAfter": _consume_ended,
    "EndTransaction": _transaction_ended,
}
