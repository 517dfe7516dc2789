"""Pairs of pyromq and Java under faults: what was acknowledged is on both sides afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crash import seeds
from tests.support.replication_faults import FaultyPair
from tests.support.replication_nodes import Kind

pytestmark = pytest.mark.interop
PAIRS = [("pyromq", "java"), ("java", "pyromq")]


def survive_faults(directory: Path, kinds: tuple[Kind, Kind], seed: int, rounds: int) -> None:
    """Do some things to a pair under load, let it heal, and again; then cut it and kill both."""
    with FaultyPair(directory, seed, kinds=kinds) as pair:
        for number in range(rounds):
            pair.history.append(f"round {number}")
            with pair.load():
                pair.wait_for_acknowledged(20)
                pair.choose_faults(3)
            pair.heal()
        for node in (pair.replica, pair.master):
            with pair.load():
                pair.wait_for_acknowledged(20)
                # Between two frames, most of the time, and in the middle of the load.
                pair.proxy.cut()
                pair.wait_for_acknowledged(20)
                node.kill()
            node.start()
        pair.heal()
        pair.check_files()


@pytest.mark.soak
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_acknowledged_messages_survive_faults(tmp_path: Path, kinds: tuple[Kind, Kind]) -> None:
    survive_faults(tmp_path, kinds, seed=1, rounds=0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize("seed", seeds(3))
def test_acknowledged_messages_survive_many_faults(
    tmp_path: Path, kinds: tuple[Kind, Kind], seed: int
) -> None:
    survive_faults(tmp_path, kinds, seed, rounds=5)
