from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import orjson
import pytest

from bench.answers import CountedAnswers, Layout, LoadError, answers_for
from bench.frames import BINARY_OPAQUE_BASE, OPAQUE_BASE, Encoding, Ring, send_ring
from bench.nats import publish_ring


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def _json(slot: int, code: int = 0) -> bytes:
    header = {"code": code, "extFields": {"queueOffset": str(slot)}, "opaque": OPAQUE_BASE + slot}
    encoded = orjson.dumps(header)
    return struct.pack(">II", 4 + len(encoded), len(encoded)) + encoded


def _binary(slot: int, code: int = 0) -> bytes:
    head = struct.pack(">hBhiiII", code, 0, 407, BINARY_OPAQUE_BASE + slot, 1, 0, 0)
    return struct.pack(">II", 4 + len(head), 1 << 24 | len(head)) + head


def _nats(slot: int) -> bytes:
    body = b'{"stream":"BENCHMARK", "seq":%d}' % (slot + 1)
    return b"MSG _INBOX.0.%06d 1 %d\r\n%s\r\n" % (slot, len(body), body)


def _rings() -> dict[str, Ring]:
    return {
        "json": send_ring("T", 8, 16, 0, 0),
        "binary": send_ring("T", 8, 16, 0, 0, Encoding.BINARY),
        "nats": publish_ring("T", 8, 16, 0),
    }


BUILDERS = {"json": _json, "binary": _binary, "nats": _nats}
every_protocol = pytest.mark.parametrize("protocol", BUILDERS)


@every_protocol
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_responses_are_counted_however_they_are_split(pair: Pair, protocol: str, size: int) -> None:
    ours, theirs = pair
    answers = answers_for(_rings()[protocol])
    order = [3, 0, 7, 1]
    data = b"".join(BUILDERS[protocol](slot) for slot in order)
    counted = 0
    for start in range(0, len(data), size):
        theirs.sendall(data[start : start + size])
        counted += answers.receive(ours)
    assert counted == sum(count for _, count in answers.chunks) == len(order)
    slots, refused = answers.slots(ours)
    assert (slots.tolist(), refused) == (order, 0)


@every_protocol
def test_the_end_of_the_last_response_is_awaited(pair: Pair, protocol: str) -> None:
    ours, theirs = pair
    answers = answers_for(_rings()[protocol])
    data = BUILDERS[protocol](2)
    theirs.sendall(data[:-2])
    assert answers.receive(ours) == 1
    theirs.sendall(data[-2:])
    assert answers.slots(ours)[0].tolist() == [2]
    answers.forget(ours)
    assert answers.slots(ours)[0].tolist() == []


@every_protocol
def test_a_full_buffer_is_decoded_and_reused(pair: Pair, protocol: str) -> None:
    ours, theirs = pair
    layout: Layout = answers_for(_rings()[protocol])._layout  # type: ignore[attr-defined]
    answers = CountedAnswers(layout, capacity=(1 << 18) + 150)
    for slot in range(8):
        theirs.sendall(BUILDERS[protocol](slot))
        assert answers.receive(ours) == 1
    assert answers.slots(ours)[0].tolist() == list(range(8))


@pytest.mark.parametrize("protocol", ["json", "binary"])
def test_busy_responses_are_counted(pair: Pair, protocol: str) -> None:
    ours, theirs = pair
    answers = answers_for(_rings()[protocol])
    build = _json if protocol == "json" else _binary
    theirs.sendall(build(1) + build(2, code=2) + build(3))
    assert answers.receive(ours) == 3
    assert answers.forget(ours) == 1


@pytest.mark.parametrize("protocol", ["json", "binary"])
def test_a_failure_raises(pair: Pair, protocol: str) -> None:
    ours, theirs = pair
    answers = answers_for(_rings()[protocol])
    build = _json if protocol == "json" else _binary
    theirs.sendall(build(1) + build(2, code=14))
    answers.receive(ours)
    with pytest.raises(LoadError, match="refused a request"):
        answers.slots(ours)


def test_an_error_of_jetstream_raises(pair: Pair) -> None:
    ours, theirs = pair
    answers = answers_for(_rings()["nats"])
    theirs.sendall(_nats(1) + b'MSG _INBOX.0.000002 1 28\r\n{"error":{"code":503},"seq":0}\r\n')
    answers.receive(ours)
    with pytest.raises(LoadError, match="503"):
        answers.slots(ours)


def test_a_closed_connection_raises(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(LoadError, match="closed the connection"):
        answers_for(_rings()["json"]).receive(ours)
