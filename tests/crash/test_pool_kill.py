"""SIGKILL with a transient store pool: what was not committed is lost, and nothing else is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyromq.store.offline.check import check_store
from tests.crash.test_kill import check, run_and_kill
from tests.crash.writer import POOL_SETTINGS, Told
from tests.support.stores import audit, open_store, small_config

ROUNDS = 4


@pytest.mark.parametrize("seed", [1])
def test_a_kill_cuts_the_log_and_leaves_no_hole(tmp_path: Path, seed: int) -> None:
    chooser = random.Random(seed)
    survived: list[Told] = []
    lost = 0
    for round_number in range(ROUNDS):
        told = run_and_kill(tmp_path, round_number * 10_000_000, chooser, "pool")
        assert list(check_store(tmp_path, small_config(tmp_path, **POOL_SETTINGS))) == []
        store = open_store(tmp_path, **POOL_SETTINGS)
        try:
            numbers = {int(record.body.partition(b":")[0]) for record in audit(store)}
            # The first ones of this round, up to some moment.
            there = [message.number in numbers for message in told]
            count = sum(there)
            assert all(there[:count])
            survived += told[:count]
            lost += len(told) - count
            check(store, survived)
        finally:
            store.stop()
        assert list(check_store(tmp_path, store.config)) == []
    assert survived
    assert lost, "everything was committed: this test shows nothing"
