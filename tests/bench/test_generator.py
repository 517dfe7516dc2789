from __future__ import annotations

import numpy as np
import pytest

from bench.answers import LoadError
from bench.generator import latencies


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


def test_a_request_that_is_answered_twice_fails_the_run() -> None:
    with pytest.raises(LoadError, match="answered twice"):
        latencies([(100, 2)], [(250, 2)], np.array([1, 1]), 0, 16)


def test_a_response_that_was_counted_but_not_decoded_fails_the_run() -> None:
    with pytest.raises(LoadError, match="3 counted and 2 decoded"):
        latencies([(100, 2)], [(250, 3)], np.array([0, 1]), 0, 16)
