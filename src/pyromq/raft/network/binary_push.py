"""Pushes of entries between two pyromq nodes, as bytes. Big endian.

    request     body of a frame with code 70010 (RAFT_PUSH)
    | u8 version = 1 | u8 length of names | names | i64 term | i64 commit index | i64 first index |
    | u32 count | u32 crc | entries as in a data file |

    names       group, NUL, id of the leader, NUL, id of the follower
    crc         CRC-32 of everything before it, and of the entries

    answer      body of a response with code 200
    | u8 version = 1 | i32 code | i64 term | i64 index | u32 count | i64 begin index |
    | i64 end index | u32 crc of everything before it |

A node tells that it takes such pushes in the header of each answer to a JSON request: the extField
`GREETING`. A Java node never sends it, and ignores it (docs/adr/2026-11-17-raft-wire.md). Only
APPENDs with a run travel like this; everything else between two pyromq nodes is JSON, a few bodies
per second.

The entries are written as they are (`RaftLog.append_raw`), so the CRC is what protects the log from
bits that a network flips.

Pure. Called by the server and the links, on the loop.
"""

from __future__ import annotations

import struct
from typing import Final

from pyromq.protocol.message.crc import crc32
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import PREFIX_SIZE, TOTAL_SIZE, pack_prefix
from pyromq.raft.format import HEADER_SIZE, Run, decode_header
from pyromq.raft.messages import Code, PushRequest, PushResponse, PushType
from pyromq.raft.network.json_bodies import BodyError

VERSION: Final = 1
#: The extField by which a node says that it takes binary pushes; its value is the version.
GREETING: Final = "pyromqRaft"

_NAMES: Final = struct.Struct(">BB")
_PUSH: Final = struct.Struct(">qqqI")
_CRC: Final = struct.Struct(">I")
_ANSWER: Final = struct.Struct(">BiqqIqq")
_ANSWER_SIZE: Final = 41
assert _ANSWER.size == _ANSWER_SIZE
_MAX_NAMES: Final = 255
_CODES: Final = {int(code): code for code in Code}

_PUSH_HEADER: Final = b'{"code":%d,"flag":0,"opaque":%%d}' % RequestCode.RAFT_PUSH
_ANSWER_HEADER: Final = b'{"code":200,"flag":1,"opaque":%d}'


def names_of(group: str, leader: str, follower: str) -> bytes | None:
    """Return the head of every push from one node to another, or None if they are too long."""
    names = b"\0".join(each.encode() for each in (group, leader, follower))
    return _NAMES.pack(VERSION, len(names)) + names if len(names) <= _MAX_NAMES else None


def encode_push(names: bytes, request: PushRequest, opaque: int) -> list[bytes]:
    """Encode the frame of a push with a run, in two buffers."""
    run = request.run
    assert run is not None
    head = names + _PUSH.pack(request.term, request.commit_index, run.first_index, run.count)
    head += _CRC.pack(crc32(run.data, crc32(head)))
    header = _PUSH_HEADER % opaque
    size = len(head) + len(run.data)
    prefix = pack_prefix(PREFIX_SIZE - TOTAL_SIZE + len(header) + size, len(header))
    return [prefix + header + head, run.data]


def decode_push(body: bytes, group: str, follower: str, leaders: dict[bytes, str]) -> PushRequest:
    """Return the push of a body. Raises BodyError.

    `leaders` has the ids of the peers by the `names_of` their pushes; other senders are refused.
    """
    if len(body) < _NAMES.size or body[0] != VERSION:
        raise BodyError("not a binary push of a known version")
    start = _NAMES.size + body[1]
    leader = leaders.get(body[:start])
    if leader is None:
        raise BodyError(f"push by and for {body[_NAMES.size : start]!r}: not of this group")
    data_start = start + _PUSH.size + _CRC.size
    if len(body) <= data_start + HEADER_SIZE:
        raise BodyError("binary push without entries")
    term, commit_index, first_index, count = _PUSH.unpack_from(body, start)
    (expected,) = _CRC.unpack_from(body, data_start - _CRC.size)
    data = body[data_start:]
    if crc32(data, crc32(body[: data_start - _CRC.size])) != expected:
        raise BodyError("binary push with a wrong checksum")
    place = decode_header(data)
    if place is None or place.index != first_index or not 0 < count <= len(data) // HEADER_SIZE:
        raise BodyError("binary push whose entries are not what its head says")
    return PushRequest(
        group=group,
        local_id=leader,
        remote_id=follower,
        leader_id=leader,
        term=term,
        type=PushType.APPEND,
        commit_index=commit_index,
        run=Run(first_index, count, place.position, data),
    )


def encode_answer(response: PushResponse, opaque: int) -> bytes:
    """Encode the frame of an answer."""
    body = _ANSWER.pack(
        VERSION,
        response.code,
        response.term,
        response.index,
        response.count,
        response.begin_index,
        response.end_index,
    )
    header = _ANSWER_HEADER % opaque
    size = _ANSWER_SIZE + _CRC.size
    prefix = pack_prefix(PREFIX_SIZE - TOTAL_SIZE + len(header) + size, len(header))
    return prefix + header + body + _CRC.pack(crc32(body))


def decode_answer(body: bytes) -> PushResponse:
    """Return the answer of a body. Raises BodyError."""
    if len(body) != _ANSWER_SIZE + _CRC.size or body[0] != VERSION:
        raise BodyError("not the answer to a binary push")
    (expected,) = _CRC.unpack_from(body, _ANSWER_SIZE)
    if crc32(body[:_ANSWER_SIZE]) != expected:
        raise BodyError("answer to a binary push with a wrong checksum")
    _, code, term, index, count, begin, end = _ANSWER.unpack_from(body)
    return PushResponse(
        code=_CODES.get(code, Code.UNKNOWN),
        term=term,
        index=index,
        count=count,
        begin_index=begin,
        end_index=end,
    )
