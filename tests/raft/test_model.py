"""The rules of DLedger and ours, searched exhaustively (`tests/raft/model.py`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyromq.raft.member import CommitRule
from tests.raft.model import JAVA, OURS, Bounds, Rules, search

TEXTBOOK = replace(OURS, commit=CommitRule.OWN_TERM)
COUNTING = replace(OURS, commit=CommitRule.COUNTING)


@pytest.mark.parametrize(
    ("max_term", "max_entries"),
    [
        (2, 1),
        (1, 2),
        pytest.param(3, 1, marks=pytest.mark.soak),
        pytest.param(2, 2, marks=pytest.mark.soak),
    ],
)
def test_our_rules_are_safe(max_term: int, max_entries: int) -> None:
    result = search((OURS,) * 3, Bounds(max_term, max_entries))
    assert result.violation is None
    assert result.is_complete
    assert result.states > 10_000


@pytest.mark.soak
def test_the_rules_of_the_paper_are_safe() -> None:
    result = search((TEXTBOOK,) * 3, Bounds(3, 1))
    assert result.violation is None
    assert result.is_complete


@pytest.mark.parametrize("rules", [JAVA, COUNTING], ids=["java", "ours, counting"])
def test_counting_entries_of_earlier_terms_loses_them(rules: Rules) -> None:
    """Figure 8 of the Raft paper, in four terms that begin with 0."""
    result = search((rules,) * 3, Bounds(3, 1))
    assert result.violation is not None
    assert result.violation.property == "leader completeness"
    trace = "\n".join(result.violation.trace)
    assert "commits [0] in term 2" in trace
    assert result.violation.trace[-1].endswith("wins term 3")


def test_a_java_leader_cuts_what_it_has_acknowledged() -> None:
    """An APPEND that arrives between two COMPAREs is counted, then truncated."""
    java = replace(JAVA, promises="own term")
    result = search((java,) * 3, Bounds(1, 2))
    assert result.violation is not None
    assert "TRUNCATE 0" in "\n".join(result.violation.trace)


@pytest.mark.parametrize(
    ("max_term", "max_entries"),
    [
        (1, 1),
        pytest.param(1, 2, marks=pytest.mark.soak),
        pytest.param(2, 1, marks=pytest.mark.soak),
    ],
)
def test_our_leader_is_safe_among_java_nodes(max_term: int, max_entries: int) -> None:
    """Everything that ours commits stays, also while Java nodes lead in other terms."""
    java = replace(JAVA, promises="nothing")
    result = search((OURS, java, java), Bounds(max_term, max_entries))
    assert result.violation is None
    assert result.is_complete
