"""The states of a connection: it never comes back to life."""

from __future__ import annotations

import pytest

from pyromq.remoting.connection_state import ConnectionState, check_transition

NEW, OPEN, CLOSING, LOST = ConnectionState


@pytest.mark.parametrize(
    ("before", "after"), [(NEW, OPEN), (NEW, LOST), (OPEN, CLOSING), (OPEN, LOST), (CLOSING, LOST)]
)
def test_forward(before: ConnectionState, after: ConnectionState) -> None:
    check_transition(before, after)


@pytest.mark.parametrize(
    ("before", "after"), [(OPEN, NEW), (CLOSING, OPEN), (LOST, OPEN), (LOST, CLOSING), (OPEN, OPEN)]
)
def test_never_back(before: ConnectionState, after: ConnectionState) -> None:
    with pytest.raises(AssertionError):
        check_transition(before, after)
