from __future__ import annotations

import threading

from pyromq.tls.handshakes import Handshakes
from tests.support.patience import until


class Stalled:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


def test_the_oldest_handshake_makes_room() -> None:
    handshakes = Handshakes(max_pending=2, seconds=1)
    first, second, third = Stalled(), Stalled(), Stalled()
    handshakes.begin(first)
    handshakes.begin(second)
    assert first.reasons == []
    handshakes.begin(third)
    assert first.reasons == ["2 handshakes in progress (maxTlsHandshakes)"]
    assert second.reasons == []


def test_an_end_counts_once() -> None:
    handshakes = Handshakes(max_pending=2, seconds=1)
    good, bad = Stalled(), Stalled()
    handshakes.begin(good)
    handshakes.begin(bad)
    handshakes.end(good, is_good=True)
    handshakes.end(good, is_good=False)
    handshakes.end(bad, is_good=False)
    assert (handshakes.completed, handshakes.failed, len(handshakes)) == (1, 1, 0)


async def test_steps_run_in_one_thread_and_report_to_the_loop() -> None:
    handshakes = Handshakes(max_pending=2, seconds=1)
    results: list[tuple[str, str]] = []

    def step() -> str:
        return threading.current_thread().name

    def then(name: str) -> None:
        results.append((name, threading.current_thread().name))

    for _ in range(3):
        handshakes.run(step, then)
    await until(lambda: len(results) == 3)
    assert {name for name, _ in results} == {"pyromq-tls_0"}
    assert {name for _, name in results} == {threading.current_thread().name}
    handshakes.stop()
    handshakes.stop()
