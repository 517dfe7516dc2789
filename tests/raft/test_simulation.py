"""Groups under random faults: a fixed set of seeds in `make test`, many new ones in `make soak`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.raft.simulator import Mode, ViolationError, simulate
from tests.support.crash import seeds

#: Runs of one test.
BLOCK = 200
SOAK_BLOCK = 1000


@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "mixed"])
@pytest.mark.parametrize(
    ("mode", "first"),
    [
        *((Mode.CRASHES, first) for first in range(0, 400, BLOCK)),
        *((Mode.POWER_CUTS_FLUSHED, first) for first in range(0, 400, BLOCK)),
        *((Mode.POWER_CUTS_UNFLUSHED, first) for first in range(0, 400, BLOCK)),
    ],
)
def test_groups_keep_their_promises(mode: Mode, first: int, mixed: bool) -> None:
    runs = [simulate(seed, mode, mixed=mixed) for seed in range(first, first + BLOCK)]
    if mixed:
        assert sum(run.losses for run in runs)
        assert sum(run.returns for run in runs)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds(102))
def test_groups_keep_their_promises_for_long(seed: int) -> None:
    """A test runs 1,000 groups; a failure prints the seed of the one that failed."""
    for each in range(seed * SOAK_BLOCK, (seed + 1) * SOAK_BLOCK):
        simulate(each, list(Mode)[each % 3], mixed=each % 2 == 1)


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        (Mode.CRASHES, 41),  # a restarted follower ignored COMMIT until the next APPEND
        (Mode.CRASHES, 589),  # a follower behind the leader's begin was never restarted
        (Mode.CRASHES, 782),  # a late TRUNCATE cut committed entries
        (Mode.CRASHES, 1093),
        (Mode.CRASHES, 1999),
        (Mode.CRASHES, 3534),  # and one before the begin of a restarted log cut all of it
        (Mode.POWER_CUTS_FLUSHED, 427),  # a saved commit index was ahead of the durable entries
        (Mode.POWER_CUTS_FLUSHED, 805),
        (Mode.POWER_CUTS_FLUSHED, 24948),  # the simulator's own: its client gave up too early
        (Mode.POWER_CUTS_UNFLUSHED, 496),
        (Mode.POWER_CUTS_UNFLUSHED, 576),
        (Mode.POWER_CUTS_UNFLUSHED, 1145),
        (Mode.POWER_CUTS_UNFLUSHED, 1000856),  # a node led again in a term without its own vote
        (Mode.POWER_CUTS_UNFLUSHED, 3402),  # a follower that lost entries waited for an APPEND
        # A follower kept entries before the leader's first one, which nobody had compared.
        (Mode.POWER_CUTS_UNFLUSHED, 1018640),
    ],
)
def test_seeds_that_found_bugs(mode: Mode, seed: int) -> None:
    simulate(seed, mode)


def test_mixed_seeds_that_found_bugs() -> None:
    simulate(1014855, Mode.CRASHES, mixed=True)  # as 1018640


def test_a_seed_is_a_run() -> None:
    one, two = simulate(11, Mode.CRASHES), simulate(11, Mode.CRASHES)
    assert (one.steps, one.chosen, str(one)) == (two.steps, two.chosen, str(two))
    assert one.chosen


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        (Mode.POWER_CUTS_FLUSHED, {"new_term_after_own_vote": False}),
        (Mode.POWER_CUTS_FLUSHED, {"flush_before_ack": False}),
        (Mode.CRASHES, {"check_term_of_pushes": False}),
        (Mode.CRASHES, {"mixed": True, "forgets_losses": True}),
    ],
)
def test_the_simulator_finds_broken_rules(mode: Mode, changes: dict[str, Any]) -> None:
    with pytest.raises(ViolationError, match=r"has|without|commits|lost"):
        run_all(1000, mode, changes)


def run_all(count: int, mode: Mode, changes: dict[str, Any]) -> None:
    for seed in range(count):
        simulate(seed, mode, **changes)
