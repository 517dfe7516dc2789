"""The blocking connection: answers in any order, and an end with one clear error."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyromq.protocol.wire.frame import FLAG_RESPONSE, FrameReader, RemotingCommand
from pyromq.remoting.blocking import BlockingConnection
from pyromq.remoting.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingTimeoutError,
)
from pyromq.tls.client import Tls, client_tls
from tests.support.certificates import Certificates
from tests.unit.tls.serving import echoing

Answers = Callable[[list[RemotingCommand]], bytes]
PATIENT = 60.0


@contextmanager
def server(*, requests: int, answers: Answers, close: bool = True) -> Iterator[str]:
    """Takes so many requests, then writes what `answers` makes of them."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        peer, _ = listening.accept()
        with peer:
            reader = FrameReader()
            seen: list[RemotingCommand] = []
            while len(seen) < requests:
                seen += reader.feed(peer.recv(65536))
            peer.sendall(answers(seen))
            if not close:
                ended.wait(PATIENT)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        ended.set()
        thread.join()
        listening.close()


def encode_all(commands: list[RemotingCommand]) -> bytes:
    return b"".join(command.encode() for command in commands)


def test_a_request_and_its_answer() -> None:
    def answers(seen: list[RemotingCommand]) -> bytes:
        own = RemotingCommand(40, opaque=seen[0].opaque)
        return encode_all([own, seen[0].answer(0, "fine", {"a": "b"}, b"body")])

    with server(requests=1, answers=answers) as address, BlockingConnection(address) as connection:
        answer = connection.request(RemotingCommand(10, body=b"x"))
    assert (answer.code, answer.remark, answer.ext_fields) == (0, "fine", {"a": "b"})
    assert answer.body == b"body"
    assert answer.flag == FLAG_RESPONSE


def test_answers_in_any_order() -> None:
    def answers(seen: list[RemotingCommand]) -> bytes:
        return encode_all([request.answer(body=request.body) for request in reversed(seen)])

    with server(requests=3, answers=answers) as address, BlockingConnection(address) as connection:
        sent = {
            connection.send(RemotingCommand(10, body=body)): body
            for body in (b"a", bytes(3 << 20), b"")
        }
        replies = [connection.receive() for _ in sent]
    assert {command.opaque: body for command, body in replies} == sent


def test_requests_are_signed() -> None:
    def sign(command: RemotingCommand) -> None:
        command.ext_fields["Signature"] = "S"

    def answers(seen: list[RemotingCommand]) -> bytes:
        return encode_all([seen[0].answer(ext_fields=seen[0].ext_fields)])

    with (
        server(requests=1, answers=answers) as address,
        BlockingConnection(address, sign=sign) as connection,
    ):
        assert connection.request(RemotingCommand(10)).ext_fields == {"Signature": "S"}


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(RemotingConnectError, match=address):
        BlockingConnection(address)


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"\x00\x00",
        (1 << 30).to_bytes(4, "big") + bytes(4),
        b"\x00\x00\x00\x04\x00\x00\x00\x09",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{]",
    ],
)
def test_what_is_no_answer_ends_the_connection(rubbish: bytes) -> None:
    with (
        server(requests=1, answers=lambda _: rubbish) as address,
        BlockingConnection(address) as connection,
        pytest.raises(RemotingClosedError, match=address),
    ):
        connection.request(RemotingCommand(10))


def test_silence_ends_the_connection() -> None:
    with (
        server(requests=1, answers=lambda _: b"", close=False) as address,
        BlockingConnection(address, timeout=0.2) as connection,
    ):
        with pytest.raises(RemotingTimeoutError, match="was silent"):
            connection.request(RemotingCommand(10))
        with pytest.raises(RemotingClosedError):
            connection.request(RemotingCommand(10))


def test_a_peer_that_closes_without_an_answer_may_want_tls() -> None:
    with (
        server(requests=1, answers=lambda _: b"") as address,
        BlockingConnection(address) as connection,
        pytest.raises(RemotingClosedError, match="it answered nothing and may want TLS"),
    ):
        connection.request(RemotingCommand(10))


async def test_requests_over_tls(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    plain = RemotingCommand(10, body=b"x" * 100_000)
    frame = dataclasses.replace(plain, flag=FLAG_RESPONSE, opaque=1)

    def ask(port: int, tls: Tls) -> bytes:
        with BlockingConnection(f"127.0.0.1:{port}", tls=client_tls(tls)) as connection:
            return connection.request(dataclasses.replace(frame)).body

    async with echoing(certs.settings()) as echoes:
        assert await asyncio.to_thread(ask, echoes.port, certs.tls()) == plain.body
        with pytest.raises(RemotingConnectError, match="Hostname mismatch"):
            await asyncio.to_thread(ask, echoes.port, certs.tls(server_name="elsewhere"))
        # Which of the two is said depends on whether the alert arrives before the write fails.
        reasons = "the server wants a client certificate|or refuses this client|reset|[Bb]roken"
        with pytest.raises(RemotingClosedError, match=reasons):
            await asyncio.to_thread(ask, echoes.port, certs.tls(cert=None, key=None))
