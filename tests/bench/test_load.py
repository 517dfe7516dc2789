from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import orjson
import pytest

from bench import load
from bench.load import LoadError, LoadOrder, latencies, run


def test_latencies_match_answers_that_come_in_another_order() -> None:
    sent = [(100, 2), (200, 1)]  # slots 0 and 1 at 100, slot 2 at 200
    answered = [(250, 1), (300, 2)]
    slots = np.array([2, 1, 0])
    assert sorted(latencies(sent, answered, slots, 0, 16).tolist()) == [50, 200, 200]


def test_latencies_tell_the_laps_of_a_ring_apart() -> None:
    # A ring of three, begun at slot 2: the requests are slots 2 0 1 2 0.
    sent = [(10, 1), (20, 1), (30, 1), (40, 1), (50, 1)]
    answered = [(15, 1), (22, 1), (33, 1), (44, 1), (58, 1)]
    slots = np.array([2, 0, 1, 2, 0])
    assert sorted(latencies(sent, answered, slots, 2, 3).tolist()) == [2, 3, 4, 5, 8]


def test_latencies_of_nothing() -> None:
    assert latencies([], [], np.zeros(0, dtype=np.int64), 0, 3).tolist() == []


def test_every_message_is_sent_once_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_SEND_RING_FRAMES", 96)  # several laps
    seen: list[bytes] = []

    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        seen.append(str(header["extFields"]["i"]).encode())  # type: ignore[index]
        return {"code": 0, "flag": 1, "opaque": header["opaque"]}

    with _server(answer) as port:
        result = run(LoadOrder("send128", "127.0.0.1", port, os.getpid(), 2_000, 400))
    assert result.messages == 2_000
    assert len(seen) == 2_400
    assert len(set(seen)) == 2_400, "keys must not repeat when the ring starts again"
    assert 0 < result.p50_ms <= result.p99_ms <= result.p999_ms


def test_a_refused_send_fails_the_run_with_the_servers_words() -> None:
    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        return {"code": 14, "flag": 1, "opaque": header["opaque"], "remark": "disk full"}

    with _server(answer) as port, pytest.raises(LoadError, match="disk full"):
        run(LoadOrder("send128", "127.0.0.1", port, os.getpid(), 1_000, 100))


def test_busy_answers_are_counted_and_are_no_part_of_the_rate() -> None:
    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        busy = header["opaque"] in (100_007, 100_500)
        return {"code": 2 if busy else 0, "flag": 1, "opaque": header["opaque"]}

    with _server(answer) as port:
        result = run(LoadOrder("one", "127.0.0.1", port, os.getpid(), 2_000, 400))
    assert (result.refused_in_lead_in, result.refused, result.messages) == (1, 1, 1_999)


def test_a_pull_that_brings_too_few_messages_fails_the_run() -> None:
    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        offset = int(header["extFields"]["queueOffset"])  # type: ignore[index]
        fields = {"nextBeginOffset": str(offset + 31)}
        return {"code": 0, "extFields": fields, "flag": 1, "opaque": header["opaque"]}

    with _server(answer) as port, pytest.raises(LoadError, match="32 messages"):
        run(LoadOrder("pull", "127.0.0.1", port, os.getpid(), 3_200, 320, stored_per_queue=640))


Answer = Callable[[dict[str, object], bytes], dict[str, object]]


@contextmanager
def _server(answer: Answer) -> Iterator[int]:
    """A server that answers each chunk's requests in reverse order, in pieces."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=_accept, args=(listener, answer), daemon=True)
        acceptor.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    acceptor.join(10)


def _accept(listener: socket.socket, answer: Answer) -> None:
    threads = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            break
        threads.append(threading.Thread(target=_serve, args=(connection, answer), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(10)


def _serve(connection: socket.socket, answer: Answer) -> None:
    pending = b""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # answers leave in pieces
    with connection:
        while chunk := _receive(connection):
            pending += chunk
            answers = []
            while len(pending) >= 8:
                total, length = struct.unpack_from(">II", pending)
                if len(pending) < 4 + total:
                    break
                frame, pending = pending[: 4 + total], pending[4 + total :]
                head = orjson.dumps(answer(orjson.loads(frame[8 : 8 + length]), frame))
                answers.append(struct.pack(">II", 4 + len(head), len(head)) + head)
            data = b"".join(reversed(answers))
            try:
                connection.sendall(data[: len(data) // 2])
                connection.sendall(data[len(data) // 2 :])
            except OSError:
                return


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""
