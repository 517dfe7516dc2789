"""Looks at other nodes when the leader's connection breaks: who lives, and who votes as we do?

A node is asked for METADATA, which every node answers and which changes nothing.

| answer | finding |
| --- | --- |
| with our greeting | PYROMQ |
| without it | DLEDGER |
| the port refuses connections: the process has ended | ENDED |
| none in time, or anything else: it may be paused, or behind a cut cable | UNKNOWN |

A process that ends closes its sockets one after the other. A connection that breaks before the
answer is therefore tried again.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum
from typing import Final

from pyromq.base.sizes import KIB
from pyromq.protocol.wire.codes import PROTOCOL_VERSION
from pyromq.protocol.wire.frame import PREFIX_SIZE, TOTAL_SIZE, pack_prefix, split_frames
from pyromq.raft.network.binary_push import GREETING
from pyromq.raft.network.json_bodies import RaftCode, encode_fields

Address = tuple[str, int]

#: An answer takes a millisecond; elections by time-out take seconds.
LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.01
_MAX_ANSWER: Final = 64 * KIB
_HEADER: Final = (
    b'{"code":%d,"flag":0,"language":"PYTHON","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (RaftCode.METADATA, PROTOCOL_VERSION)
)


class Finding(Enum):
    """What became of a node."""

    PYROMQ = "pyromq"
    DLEDGER = "DLedger"
    ENDED = "ended"
    UNKNOWN = "unknown"


async def may_ask_for_votes(group: str, leader: str, peers: dict[str, Address]) -> bool:
    """Whether the leader's process has ended and no other node is, or may be, a Java node.

    `peers` has all nodes but this one.
    """
    if await look_at(group, leader, peers[leader]) is not Finding.ENDED:
        return False
    others = [look_at(group, peer, peers[peer]) for peer in peers if peer != leader]
    found = await asyncio.gather(*others)
    return all(each in (Finding.PYROMQ, Finding.ENDED) for each in found)


async def look_at(group: str, node_id: str, address: Address) -> Finding:
    """Return what became of a node."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            while True:
                try:
                    return await _ask(group, node_id, address)
                except ConnectionRefusedError:
                    return Finding.ENDED
                except (ConnectionError, asyncio.IncompleteReadError):
                    await asyncio.sleep(_RETRY_SECONDS)
    except (OSError, UnicodeError):  # a time-out is an OSError
        return Finding.UNKNOWN


async def _ask(group: str, node_id: str, address: Address) -> Finding:
    body = encode_fields({"group": group, "remoteId": node_id})
    size = PREFIX_SIZE - TOTAL_SIZE + len(_HEADER) + len(body)
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(pack_prefix(size, len(_HEADER)) + _HEADER + body)
        total = await reader.readexactly(TOTAL_SIZE)
        length = int.from_bytes(total, "big")
        if length > _MAX_ANSWER:
            return Finding.UNKNOWN
        frames, _, _ = split_frames(total + await reader.readexactly(length))
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
    if not frames:
        return Finding.UNKNOWN
    fields = frames[0][1].get("extFields")
    return Finding.PYROMQ if type(fields) is dict and GREETING in fields else Finding.DLEDGER
