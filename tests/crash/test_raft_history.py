"""A raft group of real brokers under faults: one log explains all that concurrent clients saw.

The long run takes PYROMQ_HISTORY_MINUTES, by default 30, in rounds with a seed each.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import pytest

from tests.support.crash import seeds
from tests.support.raft_faults import FaultyGroup

pytestmark = pytest.mark.timeout(600)

_SHORT_SECONDS: Final = 20.0
_ROUND_SECONDS: Final = 90.0
_ROUNDS: Final = round(float(os.environ.get("PYROMQ_HISTORY_MINUTES", "30")) * 60 / _ROUND_SECONDS)


def test_one_log_explains_a_short_history(tmp_path: Path) -> None:
    _run(tmp_path, 16, _SHORT_SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(max(1, _ROUNDS)))
def test_one_log_explains_a_history(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, seed, _ROUND_SECONDS)


def _run(directory: Path, seed: int, seconds: float) -> None:
    with FaultyGroup(directory, seed, flush_before_ack=seed % 4 == 0) as group:
        asyncio.run(group.run(seconds))
    group.check()
    print("\n".join(group.faults), f"seed {seed}: {group.summary()}", sep="\n")  # noqa: T201
    assert group.history.acknowledged
    assert group.delivered
