"""The bodies of DLedger 0.3.1.2 as JSON, as its nodes exchange them in remoting frames.

    base        group, remoteId (the recipient), localId (the sender), leaderId, term -1, code 200
    vote        51001: ledgerEndIndex -1, ledgerEndTerm -1; answer: voteResult
    heartbeat   51002: nothing else
    push        51004: type, commitIndex -1, entry or batchEntry [entry]; answer: index, count,
                beginIndex, endIndex
    entry       magic 1, size, index, term, pos, channel 0, chainCrc 0, bodyCrc 0, body (base64)
    transfer    51005: transferId, transfereeId, takeLeadershipLedgerIndex
    metadata    50000: nothing else; answer: peers {id: address}
    get         50002: beginIndex; answer: entries [entry]

Rules
1. Java leaves nulls out, ignores fields that it does not know, and takes the defaults above for
   missing ones; so do we. Enums travel by name.
2. Java's PushEntryRequest has `batch`, `count`, `firstEntryIndex`, `lastEntryIndex` and `totalSize`
   too; they follow from the entries, and nobody reads them.
3. Every field that is read has the right type and fits Java's int or long; an entry's size is that
   of its header and its body; at most `MAX_ENTRIES` entries come in a push. Else `BodyError`.
4. A vote's answer repeats the base fields of the request, as in Java; a heartbeat's success has
   code and term -1 only. A push's answer has the term and the first index of the request: a Java
   leader fails without them.
5. The header of our frames has an extField `CHECKSUM`, the CRC-32 of code, opaque and body, because
   a flipped bit in a vote may elect the wrong node. It is checked where it is present; Java
   ignores it.

Pure. Called by the server and the links, on the loop.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final

import orjson

from pyromq.protocol.message.crc import crc32
from pyromq.protocol.wire.header_json import Header
from pyromq.raft.format import HEADER_SIZE, MAGIC, MAX_ENTRY_SIZE
from pyromq.raft.messages import (
    NONE,
    Code,
    Entry,
    HeartbeatRequest,
    HeartbeatResponse,
    PushRequest,
    PushResponse,
    PushType,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)


class RaftCode(IntEnum):
    """DLedger's request codes."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005


#: The extField with the checksum of a frame.
CHECKSUM: Final = "pyromqCrc"
#: Java sends a batch once it has 4 KiB, and no entry has fewer than 49 bytes.
MAX_ENTRIES: Final = 1024
#: Characters of a group or an id.
MAX_NAME: Final = 255
#: Terms beyond this one are refused, so that counting up never leaves Java's long.
MAX_TERM: Final = 1 << 62
_MAX_LONG: Final = (1 << 63) - 1
_MAX_INT: Final = (1 << 31) - 1

_REQUEST_CODES: Final[dict[type[Request], RaftCode]] = {
    VoteRequest: RaftCode.VOTE,
    HeartbeatRequest: RaftCode.HEART_BEAT,
    PushRequest: RaftCode.PUSH,
    TransferRequest: RaftCode.LEADERSHIP_TRANSFER,
}
_CODES: Final = {int(code): code for code in Code}
_PUSH_TYPES: Final = {each.name: each for each in PushType}
_VOTE_RESULTS: Final = {each.name: each for each in VoteResult}

Fields = dict[str, Any]


class BodyError(ValueError):
    """A body that no DLedger node sends."""


# Frames


def checksum_of(code: int, opaque: int, body: bytes) -> int:
    """Return the checksum of a frame."""
    return crc32(body, crc32(b"%d %d " % (code, opaque)))


def check_frame(header: Header, body: bytes) -> None:
    """Raise BodyError if a frame has a checksum, and it is wrong."""
    fields = header.get("extFields")
    if type(fields) is dict and CHECKSUM in fields:
        try:
            expected = checksum_of(header["code"], header["opaque"], body)
        except (KeyError, TypeError) as error:
            raise BodyError(f"header without code or opaque: {error!r:.80}") from None
        if fields[CHECKSUM] != str(expected):
            raise BodyError("frame with a wrong checksum")


# Requests


def code_of(request: Request) -> RaftCode:
    """Return the request code of a body."""
    return _REQUEST_CODES[type(request)]


def encode_request(request: Request) -> bytes:
    """Encode a request; a push with entries, not with a run."""
    fields: Fields = {
        "group": request.group,
        "localId": request.local_id,
        "remoteId": request.remote_id,
        "term": request.term,
    }
    if request.leader_id is not None:
        fields["leaderId"] = request.leader_id
    if isinstance(request, PushRequest):
        assert request.run is None
        fields["type"] = request.type.name
        fields["commitIndex"] = request.commit_index
        if len(request.entries) == 1:
            fields["entry"] = entry_fields(request.entries[0])
        elif request.entries:
            fields["batchEntry"] = [entry_fields(entry) for entry in request.entries]
    elif isinstance(request, VoteRequest):
        fields["ledgerEndIndex"] = request.ledger_end_index
        fields["ledgerEndTerm"] = request.ledger_end_term
    elif isinstance(request, TransferRequest):
        fields["transferId"] = request.transfer_id
        fields["transfereeId"] = request.transferee_id
        fields["takeLeadershipLedgerIndex"] = request.take_leadership_ledger_index
    return orjson.dumps(fields)


def entry_fields(entry: Entry) -> Fields:
    """Return an entry as Java's fields."""
    return {
        "magic": MAGIC,
        "size": entry.size,
        "index": entry.index,
        "term": entry.term,
        "pos": entry.pos,
        "channel": 0,
        "chainCrc": 0,
        "bodyCrc": 0,
        "body": b2a_base64(entry.body, newline=False).decode(),
    }


def decode_fields(body: bytes) -> Fields:
    """Return the object of a body. Raises BodyError."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BodyError(f"body is not JSON: {error}") from None
    if type(fields) is not dict:
        raise BodyError("body is not a JSON object")
    return fields


def decode_request(code: int, fields: Fields) -> Request:
    """Return the request of a node. Raises BodyError."""
    return _DECODERS[code](fields, _base(fields))


def _base(fields: Fields) -> Fields:
    return {
        "group": name(fields, "group"),
        "local_id": name(fields, "localId"),
        "remote_id": name(fields, "remoteId"),
        "leader_id": name(fields, "leaderId") or None,
        "term": number(fields, "term", NONE, MAX_TERM),
    }


def _vote_request(fields: Fields, base: Fields) -> Request:
    return VoteRequest(
        ledger_end_index=number(fields, "ledgerEndIndex"),
        ledger_end_term=number(fields, "ledgerEndTerm", NONE, MAX_TERM),
        **base,
    )


def _heartbeat_request(fields: Fields, base: Fields) -> Request:  # noqa: ARG001 - as the others
    return HeartbeatRequest(**base)


def _push_request(fields: Fields, base: Fields) -> Request:
    batch = fields.get("batchEntry")
    if batch is None:
        batch = []
    elif type(batch) is not list or len(batch) > MAX_ENTRIES:
        raise BodyError(f"batchEntry is not a list of at most {MAX_ENTRIES} entries")
    if not batch and fields.get("entry") is not None:
        batch = [fields["entry"]]
    return PushRequest(
        type=_named(fields, "type", _PUSH_TYPES, PushType.APPEND),
        commit_index=number(fields, "commitIndex"),
        entries=tuple(map(_entry, batch)),
        **base,
    )


def _entry(fields: object) -> Entry:
    if type(fields) is not dict:
        raise BodyError("entry is not an object")
    text = fields.get("body")
    if type(text) is not str:
        raise BodyError("entry has no body")
    try:
        body = a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise BodyError(f"body of an entry is not base64: {error}") from None
    if not 0 < len(body) <= MAX_ENTRY_SIZE - HEADER_SIZE:
        raise BodyError(f"entry with a body of {len(body)} bytes")
    if number(fields, "magic", MAGIC) != MAGIC or number(fields, "channel", 0) != 0:
        raise BodyError("entry with another magic or channel")
    if number(fields, "size") != HEADER_SIZE + len(body):
        raise BodyError(f"entry of size {fields.get('size')} with a body of {len(body)} bytes")
    return Entry(
        number(fields, "index", NONE, least=0),
        number(fields, "term", NONE, MAX_TERM, least=0),
        number(fields, "pos", NONE, least=0),
        HEADER_SIZE + len(body),
        body,
    )


def _transfer_request(fields: Fields, base: Fields) -> Request:
    return TransferRequest(
        transfer_id=name(fields, "transferId"),
        transferee_id=name(fields, "transfereeId"),
        take_leadership_ledger_index=number(fields, "takeLeadershipLedgerIndex", 0),
        **base,
    )


_DECODERS: Final[Mapping[int, Callable[[Fields, Fields], Request]]] = {
    RaftCode.VOTE: _vote_request,
    RaftCode.HEART_BEAT: _heartbeat_request,
    RaftCode.PUSH: _push_request,
    RaftCode.LEADERSHIP_TRANSFER: _transfer_request,
}


# Responses


def encode_response(response: Response, request: Request) -> bytes:
    """Encode the response to a request."""
    fields: Fields = {"code": int(response.code), "term": response.term}
    if response.leader_id is not None:
        fields["leaderId"] = response.leader_id
    if isinstance(response, PushResponse):
        fields["group"] = request.group
        fields["count"] = response.count
        fields["beginIndex"] = response.begin_index
        fields["endIndex"] = response.end_index
        # Java has an object here, and none in the answer to a COMMIT.
        if response.index != NONE:
            fields["index"] = response.index
    elif isinstance(response, VoteResponse):
        fields["group"] = request.group
        fields["localId"] = request.local_id
        fields["remoteId"] = request.remote_id
        fields["leaderId"] = request.leader_id
        fields["voteResult"] = response.vote_result.name
    elif isinstance(response, TransferResponse):
        fields["group"] = request.group
    return orjson.dumps(fields)


def decode_response(code: int, body: bytes) -> Response:
    """Return the response to a request of this code. Raises BodyError."""
    fields = decode_fields(body)
    base: Fields = {
        "term": number(fields, "term"),
        "code": _CODES.get(number(fields, "code", 200, _MAX_INT, least=-_MAX_INT), Code.UNKNOWN),
        "leader_id": name(fields, "leaderId") or None,
    }
    if code == RaftCode.PUSH:
        return PushResponse(
            index=number(fields, "index"),
            count=number(fields, "count", 0, _MAX_INT, least=0),
            begin_index=number(fields, "beginIndex"),
            end_index=number(fields, "endIndex"),
            **base,
        )
    if code == RaftCode.VOTE:
        # A result of a later version counts as no answer.
        result = fields.get("voteResult")
        known = _VOTE_RESULTS.get(result) if type(result) is str else None
        return VoteResponse(vote_result=known or VoteResult.UNKNOWN, **base)
    if code == RaftCode.HEART_BEAT:
        return HeartbeatResponse(**base)
    return TransferResponse(**base)


def encode_fields(fields: Fields) -> bytes:
    """Encode a response to an outside client."""
    return orjson.dumps(fields)


# Fields


def number(
    fields: Fields, key: str, default: int = NONE, most: int = _MAX_LONG, *, least: int = NONE
) -> int:
    """Return an integer between `least` and `most`. Raises BodyError."""
    value = fields.get(key)
    if value is None:
        value = default
    if type(value) is not int or not least <= value <= most:
        shown = f"{value!r:.40}" if type(value) in (int, float, str, bool) else type(value).__name__
        raise BodyError(f"{key} is {shown}, not an integer from {least} to {most}")
    return value


def name(fields: Fields, key: str) -> str:
    """Return a group or an id, "" if there is none. Raises BodyError."""
    value = fields.get(key)
    if value is None:
        return ""
    if type(value) is not str or len(value) > MAX_NAME:
        raise BodyError(f"{key} is not a text of at most {MAX_NAME} characters")
    return value


def _named(fields: Fields, key: str, values: Mapping[str, Any], default: object) -> Any:
    text = fields.get(key)
    if text is None:
        return default
    if type(text) is not str or text not in values:
        raise BodyError(f"{key} is {text!r:.40}, not one of {', '.join(values)}")
    return values[text]
