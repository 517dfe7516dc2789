from __future__ import annotations

import pytest

from pyromq.metrics.family import Kind, Source, counter, gauge, histogram


def test_kinds() -> None:
    assert counter("a_total", "A.").kind is Kind.COUNTER
    assert gauge("b_bytes", "B.", ("x",)).labels == ("x",)
    assert histogram("c_seconds", "C.", (), Source.ROCKETMQ).source is Source.ROCKETMQ


def test_only_counters_end_with_total() -> None:
    with pytest.raises(AssertionError):
        counter("a", "A.")
    with pytest.raises(AssertionError):
        gauge("a_total", "A.")
