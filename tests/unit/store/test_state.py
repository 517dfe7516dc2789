from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pyromq.store.results import StoreError
from pyromq.store.state import StoreState

ROOT = Path("store")


def test_a_life() -> None:
    for before, after in itertools.pairwise(StoreState):
        assert before.moved_to(after, ROOT) is after
    assert StoreState.LOADING.moved_to(StoreState.CLOSED, ROOT) is StoreState.CLOSED


@pytest.mark.parametrize(
    ("before", "after"),
    [("NEW", "RUNNING"), ("RUNNING", "LOADING"), ("RUNNING", "CLOSED"), ("CLOSED", "LOADING")],
)
def test_a_state_that_cannot_follow(before: str, after: str) -> None:
    with pytest.raises(StoreError, match=f"store store is {before} and cannot become {after}"):
        StoreState[before].moved_to(StoreState[after], ROOT)
