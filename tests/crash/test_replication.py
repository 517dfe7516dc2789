"""A SYNC_MASTER and its replica under faults: what was acknowledged is on both sides afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.crash import check_wire, seeds
from tests.support.replication_faults import FaultyPair


def survive_faults(directory: Path, seed: int, rounds: int, *, small_disk: bool) -> None:
    """Do some things to a pair under load, let it heal, and again."""
    with FaultyPair(directory, seed, small_disk=small_disk) as pair:
        for number in range(rounds):
            pair.history.append(f"round {number}")
            with pair.load():
                pair.wait_for_acknowledged(20)
                pair.choose_faults(3)
            pair.heal()
        pair.check_files()


@pytest.mark.parametrize("seed", [1])
def test_acknowledged_messages_survive_faults_of_a_pair(tmp_path: Path, seed: int) -> None:
    survive_faults(tmp_path, seed, rounds=3, small_disk=False)


def test_acknowledged_messages_survive_a_full_disk_of_the_replica(tmp_path: Path) -> None:
    with FaultyPair(tmp_path, seed=2, small_disk=True) as pair:
        with pair.load():
            pair.wait_for_acknowledged(20)
            with pair.full_disk():
                pair.wait_for_stored_alone(20)
            pair.wait_for_acknowledged(20)
        pair.heal()
        pair.check_files()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(25))
def test_acknowledged_messages_survive_many_faults_of_a_pair(tmp_path: Path, seed: int) -> None:
    survive_faults(tmp_path, seed, rounds=8, small_disk=True)


def survive_losses(directory: Path, seed: int, rounds: int) -> None:
    """Lose the master with its disk at some moment, promote the replica, refill; and again."""
    with FaultyPair(directory, seed) as pair:
        for number in range(rounds):
            pair.history.append(f"round {number}")
            with pair.load():
                pair.wait_for_acknowledged(20)
                if number % 2:
                    pair.choose_faults(2)
                    pair.wait_for_acknowledged(20)
                pair.lose_master()
            pair.promote()
            asyncio.run(check_wire(pair.master.address, pair.sent.acknowledged))
            # The master alone knew of these.
            pair.sent.stored_alone.clear()
            pair.replica.start()
            pair.heal()
        pair.check_files()


def test_acknowledged_messages_survive_the_loss_of_the_master(tmp_path: Path) -> None:
    survive_losses(tmp_path, seed=3, rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(20))
def test_acknowledged_messages_survive_many_losses(tmp_path: Path, seed: int) -> None:
    survive_losses(tmp_path, seed, rounds=5)
