from __future__ import annotations

import random

from pyromq.raft.ledger import Ledger
from pyromq.raft.messages import NONE, Entry
from tests.raft.memory_ledger import MemoryLedger


def filled(*terms: int) -> MemoryLedger:
    ledger = MemoryLedger()
    for term in terms:
        ledger.append_body(term, b"x")
    return ledger


def test_the_memory_ledger_is_a_ledger() -> None:
    ledger: Ledger = filled(0, 1)
    assert (ledger.begin_index, ledger.end_index, ledger.end_term) == (0, 1, 1)
    assert ledger.entry(2) is None
    assert MemoryLedger().end_index == NONE


def test_the_next_index_and_position_are_demanded() -> None:
    ledger = filled(0)
    assert not ledger.append(Entry(2, 0, 49, 49, b"x"))
    assert not ledger.append(Entry(1, 0, 50, 49, b"x"))
    assert ledger.append(Entry(1, 0, 49, 49, b"x"))


def test_a_power_cut_keeps_what_was_flushed() -> None:
    ends = set()
    for seed in range(20):
        ledger = filled(0, 0)
        ledger.flush()
        ledger.truncate_after(0)
        ledger.append_body(1, b"y")
        assert ledger.durable_index == 0
        ledger.cut_power(random.Random(seed))
        ends.add((ledger.end_index, ledger.end_term))
    assert ends == {(1, 0), (0, 0), (1, 1)}
