from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import orjson
import pytest

from bench import load
from bench.answers import LoadError
from bench.load import LoadOrder, has_settled, run, whole


def test_every_message_is_sent_once_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_SEND_RING_FRAMES", 96)  # several laps
    seen: list[bytes] = []

    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        seen.append(str(header["extFields"]["i"]).encode())  # type: ignore[index]
        return {"code": 0, "flag": 1, "opaque": header["opaque"]}

    with _server(answer) as port:
        result = run(LoadOrder("send128", "rocketmq", port, os.getpid(), 2_000, 1))
    assert result.messages == 2_000
    assert result.accepted == len(seen) > 2_000
    assert len(set(seen)) == len(seen), "keys must not repeat when the ring starts again"
    assert 0 < result.p50_ms <= result.p99_ms <= result.p999_ms


def test_a_refused_send_fails_the_run_with_the_servers_words() -> None:
    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        return {"code": 14, "flag": 1, "opaque": header["opaque"], "remark": "disk full"}

    with _server(answer) as port, pytest.raises(LoadError, match="disk full"):
        run(LoadOrder("send128", "rocketmq", port, os.getpid(), 1_000, 1))


@pytest.mark.parametrize("code", [11, 12])
def test_a_send_that_no_replica_confirmed_fails_the_round(code: int) -> None:
    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        found = code if header["opaque"] == 100_007 else 0
        return {"code": found, "flag": 1, "opaque": header["opaque"]}

    with _server(answer) as port, pytest.raises(LoadError, match=f'"code":{code}'):
        run(LoadOrder("replication", "rocketmq", port, os.getpid(), 1_000, 1))


def test_the_cpu_of_replicas_counts() -> None:
    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        return {"code": 0, "flag": 1, "opaque": header["opaque"]}

    with _server(answer) as port:
        order = LoadOrder("replication", "rocketmq", port, os.getpid(), 20_000, 0)
        alone = run(order)
        twice = run(replace(order, replica_pids=[os.getpid()]))
    # This process is server and load.
    assert alone.server_cores < 1.5 * alone.load_cores
    assert twice.server_cores > 1.5 * twice.load_cores


def test_busy_answers_are_counted_and_are_no_part_of_the_rate() -> None:
    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        busy = header["opaque"] in (100_007, 100_500)
        return {"code": 2 if busy else 0, "flag": 1, "opaque": header["opaque"]}

    with _server(answer) as port:
        result = run(LoadOrder("one", "rocketmq", port, os.getpid(), 2_000, 1))
    # One of the two was refused in the slice before the measurement.
    assert (result.refused, result.messages, result.accepted) == (1, 1_999, 2_094)


def test_a_pull_that_brings_too_few_messages_fails_the_run() -> None:
    def answer(header: dict[str, object], frame: bytes) -> dict[str, object]:
        offset = int(header["extFields"]["queueOffset"])  # type: ignore[index]
        fields = {"nextBeginOffset": str(offset + 31)}
        return {"code": 0, "extFields": fields, "flag": 1, "opaque": header["opaque"]}

    with _server(answer) as port, pytest.raises(LoadError, match="full number of messages"):
        run(LoadOrder("pull", "rocketmq", port, os.getpid(), 3_200, 1, stored_per_queue=640))


def test_a_load_settles_when_its_cost_has_stopped_falling() -> None:
    assert not has_settled([])
    assert not has_settled([20.0, 20.0, 20.0])
    assert has_settled([20.0, 20.0, 20.0, 20.0])
    assert not has_settled([30.0, 20.0, 15.0, 14.0]), "still falling"
    assert not has_settled([30.0, 15.0, 15.0, 14.0, 15.0]), "a new best within the last three"
    assert not has_settled([15.0, 15.0, 15.0, 20.0]), "a disturbance"
    assert has_settled([30.0, 20.0, 15.0, 14.8, 15.9, 15.0])


def test_amounts_are_whole_frames_on_every_queue() -> None:
    assert whole(1_000, 1) == 1_000
    assert whole(1_001, 32) == 768
    assert whole(5, 32) == 256


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
