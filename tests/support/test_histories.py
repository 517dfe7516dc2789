"""Each rule of a history finds what breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.histories import Attempt, History, Logged, Place, Read, problems

WRITER = ("127.0.0.1", 10911)


def _log(*bodies: bytes, queue_id: int = 0, term: int = 1) -> list[Logged]:
    return [
        Logged(term, WRITER, Place(queue_id, offset, 100 * offset), body)
        for offset, body in enumerate(bodies)
    ]


def _sent(body: bytes, called: float, answered: float, offset: int) -> Attempt:
    return Attempt(body, 0, called, answered, Place(0, offset, 100 * offset))


def _found(history: History, log: list[Logged]) -> str:
    (problem,) = problems(history, log)
    return problem


SENT = [_sent(b"a", 1, 2, 0), _sent(b"b", 3, 4, 1), Attempt(b"c", 0, 5)]


@pytest.mark.parametrize("bodies", [(b"a", b"b"), (b"a", b"b", b"c")])
def test_an_attempt_without_an_answer_may_be_in_the_log(bodies: tuple[bytes, ...]) -> None:
    reads = [Read("r", 0, offset, body) for offset, body in enumerate(bodies)]
    assert not list(problems(History(list(SENT), reads, list(reversed(reads))), _log(*bodies)))


def test_a_lost_message() -> None:
    assert "acknowledged, but is at None" in _found(History(list(SENT)), _log(b"a"))


def test_a_message_at_another_place() -> None:
    moved = replace(SENT[0], place=Place(0, 0, 1))
    assert "acknowledged, but is at" in _found(History([moved, *SENT[1:]]), _log(b"a", b"b"))


def test_a_message_stored_twice() -> None:
    history = History([SENT[0], SENT[1], Attempt(b"c", 0, 0)])
    assert "2 times" in _found(history, _log(b"a", b"b", b"c", b"c"))


def test_a_message_that_nobody_sent() -> None:
    assert "nobody sent" in _found(History(list(SENT)), _log(b"a", b"b", b"x"))


def test_a_message_in_another_queue() -> None:
    log = _log(b"a", b"b") + _log(b"c", queue_id=1)
    assert "is in queue 1" in _found(History(list(SENT)), log)


def test_a_gap_in_a_queue() -> None:
    log = [_log(b"a", b"b")[0], Logged(1, WRITER, Place(0, 2, 200), b"c")]
    history = History([SENT[0], Attempt(b"c", 0, 5)])
    assert "should have the offset 1" in _found(history, log)


def test_an_order_that_contradicts_the_clock() -> None:
    late = Attempt(b"c", 0, 5)
    log = _log(b"c", b"a")
    assert "began after" in _found(History([_sent(b"a", 1, 2, 1), late]), log)
    # Concurrent attempts may have any order.
    assert not list(problems(History([_sent(b"a", 1, 6, 1), late]), log))


def test_the_order_of_attempts_that_are_not_neighbours() -> None:
    attempts = [_sent(b"a", 1, 2, 2), Attempt(b"b", 0, 0), Attempt(b"c", 0, 5)]
    assert "began after" in _found(History(attempts), _log(b"c", b"b", b"a"))


@pytest.mark.parametrize("kind", ["reads", "glances"])
def test_a_message_that_disappeared(kind: str) -> None:
    history = History(list(SENT))
    getattr(history, kind).append(Read("r", 0, 0, b"x"))
    assert "was read, but the log has b'a'" in _found(history, _log(b"a", b"b"))


@pytest.mark.parametrize("offsets", [(1,), (0, 0), (0, 1, 0)])
def test_a_reader_that_leaves_out_or_goes_back(offsets: tuple[int, ...]) -> None:
    bodies = (b"a", b"b")
    reads = [Read("r", 0, offset, bodies[offset]) for offset in offsets]
    found = list(problems(History(list(SENT), reads), _log(*bodies)))
    assert len(found) == 1
    assert "its reader was at" in found[0]


def test_two_writers_in_one_term() -> None:
    log = _log(b"a", b"b")
    log[1] = log[1]._replace(writer=("127.0.0.1", 20911))
    assert "in which" in _found(History(list(SENT)), log)
