"""Damaged frames for a broker with access control: nothing is served that should not be.

Frames of several accounts, some without a signature or with a wrong one, are damaged at random and
sent as one stream. A second reader, which knows the rules by itself, reads the same bytes and says
which messages may be stored. Everything that the broker stored must be among them; its topics,
accounts and settings must be as before. Good frames in between must be served.

    .venv/bin/python -m pytest tests/fuzz/test_access_control.py -m soak    one million frames
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
from pathlib import Path
from typing import Final

import pytest

from pyromq.acl.settings import AclMode
from pyromq.protocol.message.record import decode_record
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import (
    Encoding,
    FrameError,
    RemotingCommand,
    command_from,
    split_frames,
)
from tests.support.access import ADMIN, ALICE, BOB, PEER, SECRETS, Guarded, guarded_broker
from tests.support.damage import damaged
from tests.support.patience import until
from tests.support.requests import pull_request, send_request

SEED: Final = 20_261_117
MAX_GROWTH_KIB: Final = 200 * 1024
_BATCH: Final = 5
#: Bytes of an unfinished frame after which the stream begins again: it would swallow the rest.
_MAX_PENDING: Final = 32 * 1024
ALLOWED: Final = {ALICE: {"T", "P"}, BOB: set[str](), PEER: set[str](), ADMIN: None}


class Stream:
    """A connection, and a reader of the same bytes that knows the rules."""

    def __init__(self, guarded: Guarded, *, is_strict: bool) -> None:
        self._guarded = guarded
        self._is_strict = is_strict
        self._writer: asyncio.StreamWriter | None = None
        self._draining: asyncio.Task[None] | None = None
        self._buffer = b""
        #: Bodies of messages that may be stored.
        self.allowed: set[bytes] = set()

    async def send(self, data: bytes) -> None:
        if self._writer is None or self._writer.is_closing():
            await self._connect()
        assert self._writer is not None
        # The broker serves the frames before a bad one, then it closes the connection.
        self._buffer += data
        frames, taken, error = split_frames(self._buffer)
        self._buffer = self._buffer[taken:]
        for frame in frames:
            with contextlib.suppress(FrameError):
                self._note(command_from(frame))
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()
        if error is not None or len(self._buffer) > _MAX_PENDING:
            await self.close()

    def _note(self, command: RemotingCommand) -> None:
        fields = command.ext_fields
        account = fields.get("AccessKey", "")
        if account not in SECRETS:
            return
        expected = acl.signature_of(fields, command.body, SECRETS[account])
        if fields.get("Signature") != expected:
            return
        topics = ALLOWED[account]
        is_send = command.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
        if not self._is_strict and not is_send:
            topics = None  # as RocketMQ, which checks no other code that stores
        if topics is None or fields.get("topic") in topics or fields.get("b") in topics:
            self.allowed.add(command.body)

    async def _connect(self) -> None:
        await self.close()
        host, _, port = self._guarded.broker.address.rpartition(":")
        reader, self._writer = await asyncio.open_connection(host, int(port))
        self._buffer = b""

        async def drain() -> None:
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass

        self._draining = asyncio.create_task(drain())

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)


def forged(chance: random.Random, number: int, *, is_strict: bool) -> bytes:
    """Return a frame of somebody, signed well, wrongly or not at all, and perhaps damaged."""
    encoding = chance.choice(list(Encoding))
    topic = chance.choice(["T", "P", "Q"])
    kind = chance.randrange(8)
    if kind < 5:
        code = chance.choice([RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
        body = b"message %d" % number
        request = send_request(code, body, encoding=encoding, topic=topic, queueId="0")
    elif kind == 5:
        request = pull_request(encoding=encoding, topic=topic, consumerGroup="g")
    elif kind == 6:
        fields = {"accessKey": "carol_key", "secretKey": "carol_secret", "admin": "true"}
        request = RemotingCommand(
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext_fields=fields, encoding=encoding
        )
    else:
        request = RemotingCommand(
            RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"}, encoding=encoding
        )
    account = chance.choice([ALICE, ALICE, BOB, PEER, None])
    if kind == 6 and not is_strict:
        account = None  # compatible mode lets any account do that
    if account is not None:
        secret = SECRETS[account] if chance.random() < 0.8 else "wrong_secret"
        acl.sign(request.ext_fields, request.body, account, secret)
    frame = request.encode()
    luck = chance.random()
    if luck < 0.05:
        return damaged(chance, frame)  # with its lengths: the stream ends soon
    if luck < 0.6:
        place = chance.randrange(8, len(frame))
        changed = bytes([frame[place] ^ 1 << chance.randrange(8)])
        return frame[:place] + changed + frame[place + 1 :]
    return frame


async def fuzz(home: Path, mode: AclMode, frames: int, seed: int) -> None:
    chance = random.Random(seed)
    async with guarded_broker(home, mode, acl_replay_window_millis=0) as guarded:
        for topic in ("T", "P"):
            await guarded.ask(send_request(topic=topic, body=b"first", queueId="0"))
        accounts = (home / "conf/plain_acl.yml").read_bytes()
        is_strict = mode is AclMode.strict
        stream = Stream(guarded, is_strict=is_strict)
        stream.allowed.add(b"first")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for start in range(0, frames, _BATCH):
            await stream.send(
                b"".join(
                    forged(chance, start + each, is_strict=is_strict) for each in range(_BATCH)
                )
            )
            if start % (200 * _BATCH) == 0:
                good = b"good %d" % start
                stream.allowed.add(good)
                answer = await guarded.ask(send_request(topic="T", body=good, queueId="0"))
                assert answer.code == 0, answer
        await stream.close()
        await until(lambda: len(_connections(guarded)) <= 1)
        store = guarded.broker.store
        assert store is not None
        stored = set()
        for queue in list(store.queues()):
            for offset in range(queue.min_offset, queue.next_offset):
                entry = queue.entry(offset)
                record = None if entry is None else store.read_record(entry.physical_offset)
                assert record is not None
                stored.add(_body(record))
        assert stored <= stream.allowed, stored - stream.allowed
        # The good ones were served: nothing was refused by mistake, or little was checked.
        assert len(stored) > frames / 100
        assert (home / "conf/plain_acl.yml").read_bytes() == accounts
        assert "T" in guarded.broker.topics
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < MAX_GROWTH_KIB


def _connections(guarded: Guarded) -> list[object]:
    return [each for server in guarded.broker._servers for each in server.connections]


def _body(record: bytes) -> bytes:
    return decode_record(record).body


@pytest.mark.parametrize("mode", list(AclMode), ids=lambda mode: mode.name)
async def test_damaged_frames(tmp_path: Path, mode: AclMode) -> None:
    await fuzz(tmp_path, mode, 10_000, SEED)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", list(AclMode), ids=lambda mode: mode.name)
async def test_a_million_damaged_frames(tmp_path: Path, mode: AclMode) -> None:
    await fuzz(tmp_path, mode, 500_000, SEED + 1)
