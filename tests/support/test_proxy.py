from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.patience import DEADLINE, wait_until
from tests.support.proxy import (
    ALL_FAULTS,
    HARMLESS_FAULTS,
    TO_CLIENT,
    TO_TARGET,
    Corrupt,
    Cut,
    Delay,
    Direction,
    Drop,
    Duplicate,
    Fault,
    Happened,
    Proxy,
    Script,
    Split,
    Stall,
    Stream,
    Swap,
    first,
    harmless,
    scripts,
    seeded,
)

DATA = bytes(range(100))


def _through(stream: Stream, *chunks: bytes) -> tuple[bytes, list[Fault]]:
    """What a stream makes of chunks: the bytes, and the moments."""
    out, moments = b"", []
    for chunk in (b"", *chunks):
        for action in stream.feed(chunk):
            if isinstance(action, bytes):
                out += action
            else:
                moments.append(action)
                if isinstance(action, Cut):
                    return out, list[Fault](moments)
    return out + stream.finish(), list[Fault](moments)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([], DATA),
        ([Corrupt(3, 0x80)], DATA[:3] + b"\x83" + DATA[4:]),
        ([Drop(10, 5)], DATA[:10] + DATA[15:]),
        ([Duplicate(10, 5)], DATA[:15] + DATA[10:]),
        ([Swap(10, 5, 3)], DATA[:10] + DATA[15:18] + DATA[10:15] + DATA[18:]),
        ([Split(10, 50, 3)], DATA),
        ([Cut(0)], b""),
        ([Cut(40)], DATA[:40]),
        ([Cut(100)], DATA),
        ([Drop(0, 2), Corrupt(2), Cut(4)], b"\xfd\x03"),
        ([Corrupt(99), Drop(200, 1)], DATA[:99] + b"\x9c"),
        ([Swap(98, 5, 5)], DATA),
        ([Drop(98, 5)], DATA[:98]),
        ([Duplicate(10, 5), Corrupt(12)], DATA[:15] + DATA[10:15] + b"\xf0" + DATA[16:]),
    ],
)
def test_a_fault_changes_what_its_name_says(faults: list[Fault], expected: bytes) -> None:
    assert _through(Stream(faults), DATA)[0] == expected
    assert _through(Stream(faults[::-1]), DATA)[0] == expected, "positions make the order"


def test_a_split_writes_small_pieces() -> None:
    pieces = list(Stream([Split(10, 9, 4)]).feed(DATA))
    assert [len(piece) for piece in pieces if isinstance(piece, bytes)] == [10, 4, 4, 1, 81]


def test_moments_come_exactly_at_their_position() -> None:
    stream = Stream([Stall(10), Delay(20, 0.5), Cut(30, reset=False)])
    assert list(stream.feed(DATA[:10])) == [DATA[:10], Stall(10)], "before the next byte comes"
    assert list(stream.feed(DATA[10:])) == [
        DATA[10:20],
        Delay(20, 0.5),
        DATA[20:30],
        Cut(30, reset=False),
    ]
    assert stream.begun == [Stall(10), Delay(20, 0.5), Cut(30, reset=False)]
    assert stream.position == 30


@given(st.integers(), st.lists(st.integers(0, 400), max_size=8))
def test_the_result_does_not_depend_on_how_bytes_are_divided(seed: int, sizes: list[int]) -> None:
    data = random.Random(seed).randbytes(1_000)
    for faults in (seeded(seed, reach=300)(0).to_target, seeded(seed, reach=300)(0).to_client):
        chunks, rest = [], data
        for size in sizes:
            chunks.append(rest[:size])
            rest = rest[size:]
        assert _through(Stream(faults), data) == _through(Stream(faults), *chunks, rest)


def test_a_seed_repeats_its_faults() -> None:
    plans = [seeded(7), seeded(7), seeded(8)]
    mine, again, other = ([plan(number) for number in range(20)] for plan in plans)
    assert mine == again
    assert mine != other
    kinds = {type(fault) for script in mine for fault in (*script.to_target, *script.to_client)}
    assert kinds == set(ALL_FAULTS)
    assert seeded(7, connections=3)(2) == mine[2]
    assert seeded(7, connections=3)(3) == Script()
    only = seeded(7, kinds=HARMLESS_FAULTS)
    assert all(isinstance(fault, HARMLESS_FAULTS) for n in range(20) for fault in only(n).to_client)


@contextmanager
def _echo() -> Iterator[str]:
    """A server that sends everything back, and ends when its client does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def target() -> Iterator[str]:
    with _echo() as address:
        yield address


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE)


def _exchange(proxy: Proxy, data: bytes) -> bytes:
    """Send, end, and return everything that comes back; "reset" for a reset."""
    try:
        connection = _connect(proxy)
    except ConnectionResetError:  # before the connection was noticed
        return b"reset"
    with connection:
        errors: list[OSError] = []
        sending = threading.Thread(target=_send, args=(connection, data, errors))
        sending.start()
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except ConnectionResetError as error:
            errors.append(error)
        sending.join()
        # The first call that notices a reset gets its error, be it of the sender or the receiver.
        is_reset = any(isinstance(error, ConnectionResetError) for error in errors)
        return received + (b"reset" if is_reset else b"")


def _send(connection: socket.socket, data: bytes, errors: list[OSError]) -> None:
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        errors.append(error)


def test_without_faults_everything_passes_and_is_counted(target: str) -> None:
    data = random.Random(1).randbytes(3_000_000)
    with Proxy(target) as proxy:
        assert _exchange(proxy, data) == data
        assert _exchange(proxy, b"more") == b"more"
        wait_until(lambda: proxy.live == 0)
        assert proxy.connections == 2
        for direction in (TO_TARGET, TO_CLIENT):
            assert proxy.received(direction) == proxy.sent(direction) == len(data) + 4
        assert proxy.happened() == []


def test_faults_of_both_directions(target: str) -> None:
    plan = first(to_target=[Corrupt(0), Drop(10, 80)], to_client=[Duplicate(0, 2), Split(2, 9)])
    with Proxy(target, plan) as proxy:
        assert _exchange(proxy, DATA) == b"\xff\x01\xff\x01" + DATA[2:10] + DATA[90:]
        assert proxy.sent(TO_TARGET) == 20
        assert proxy.sent(TO_CLIENT) == 22
        assert proxy.happened() == [
            Happened(0, TO_TARGET, Corrupt(0)),
            Happened(0, TO_TARGET, Drop(10, 80)),
            Happened(0, TO_CLIENT, Duplicate(0, 2)),
            Happened(0, TO_CLIENT, Split(2, 9)),
        ]
        assert _exchange(proxy, DATA) == DATA, "only the first connection has faults"


@pytest.mark.parametrize("size", [0, 1, 70_000, 700_000])
@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_lets_everything_before_it_arrive(target: str, size: int, reset: bool) -> None:
    data = random.Random(size).randbytes(1_000_000)
    with Proxy(target, first(to_client=[Cut(size, reset)])) as proxy:
        assert _exchange(proxy, data) == data[:size] + (b"reset" if reset else b"")
        wait_until(lambda: proxy.live == 0)
        assert _exchange(proxy, b"again") == b"again"


def test_a_cut_at_any_moment(target: str) -> None:
    with Proxy(target) as proxy, _connect(proxy) as connection:
        connection.sendall(b"one")
        assert connection.recv(100) == b"one"
        proxy.cut(reset=False)
        assert connection.recv(100) == b""
        assert proxy.live == 0


@pytest.mark.parametrize("stalled", list(Direction))
def test_a_stall_holds_back_a_direction_of_old_and_new_connections(
    target: str, stalled: Direction
) -> None:
    with Proxy(target) as proxy, _connect(proxy) as old:
        old.sendall(b"one")
        assert old.recv(100) == b"one"
        wait_until(lambda: proxy.sent(stalled) == 3)
        proxy.stall(stalled)
        with _connect(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"two")
                connection.settimeout(0.2)  # silence is the subject
                with pytest.raises(TimeoutError):
                    connection.recv(100)
            assert proxy.sent(stalled) == 3
            proxy.resume()
            for connection in (old, new):
                connection.settimeout(DEADLINE)
                assert connection.recv(100) == b"two"


def test_a_planned_stall_ends_with_resume(target: str) -> None:
    with Proxy(target, first(to_client=[Stall(50)])) as proxy, _connect(proxy) as connection:
        connection.sendall(DATA)
        wait_until(lambda: proxy.happened() == [Happened(0, TO_CLIENT, Stall(50))])
        assert proxy.sent(TO_CLIENT) == 50
        proxy.resume(TO_TARGET)
        assert proxy.sent(TO_CLIENT) == 50, "the other direction"
        proxy.resume(TO_CLIENT)
        wait_until(lambda: proxy.sent(TO_CLIENT) == 100)


def test_a_delay_only_delays(target: str) -> None:
    with Proxy(target, first(to_client=[Delay(3, 0.05)])) as proxy:
        assert _exchange(proxy, DATA) == DATA
        assert proxy.happened() == [Happened(0, TO_CLIENT, Delay(3, 0.05))]


def test_an_injected_fault_counts_from_now_on(target: str) -> None:
    with Proxy(target) as proxy, _connect(proxy) as connection:
        connection.sendall(DATA)
        wait_until(lambda: proxy.sent(TO_CLIENT) == 100)
        proxy.inject(TO_TARGET, Corrupt(1))
        connection.sendall(b"\x01\x01\x01")
        wait_until(lambda: proxy.sent(TO_CLIENT) == 103)
        assert connection.recv(1000) == DATA + b"\x01\xfe\x01"


def test_a_proxy_can_refuse_and_change_its_target(target: str) -> None:
    with Proxy(target) as proxy:
        with _connect(proxy) as connection:
            connection.sendall(b"one")
            assert connection.recv(100) == b"one"
            proxy.refuse()
            with pytest.raises(ConnectionResetError):
                connection.recv(100)
        assert _refused(proxy)
        proxy.refuse(False)
        assert _exchange(proxy, b"two") == b"two"
        proxy.target = "127.0.0.1:1"
        assert _refused(proxy)
        proxy.target = target
        proxy.plan = scripts(*[Script()] * proxy.connections, Script([Drop(0, 1)]))
        assert _exchange(proxy, b"three") == b"hree"
        proxy.plan = harmless
        assert _exchange(proxy, b"four") == b"four"


def _refused(proxy: Proxy) -> bool:
    with suppress(ConnectionResetError, BrokenPipeError), _connect(proxy) as connection:
        return connection.recv(100) == b"no reset"
    return True


def test_a_client_that_resets_ends_the_other_side(target: str) -> None:
    with Proxy(target) as proxy:
        connection = _connect(proxy)
        connection.sendall(DATA)
        wait_until(lambda: proxy.sent(TO_CLIENT) == 100)
        connection.close()  # with unread bytes: a reset
        wait_until(lambda: proxy.live == 0)


def test_a_closed_proxy_ends_its_connections(target: str) -> None:
    proxy = Proxy(target)
    connection = _connect(proxy)
    connection.sendall(b"one")
    assert connection.recv(100) == b"one"
    proxy.close()
    proxy.close()
    with connection, pytest.raises(ConnectionResetError):
        connection.recv(100)
    with pytest.raises(ConnectionRefusedError):
        _connect(proxy)
