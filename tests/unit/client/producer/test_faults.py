from __future__ import annotations

import pytest

from pyromq.client.producer.faults import BrokerFaults


@pytest.mark.parametrize(
    ("latency", "avoided"),
    [(0.0, 0), (0.5, 0), (0.55, 30), (1.0, 60), (2.5, 120), (3.0, 180), (15.0, 600)],
)
def test_the_slower_the_longer(latency: float, avoided: float) -> None:
    faults = BrokerFaults()
    faults.note("b", latency, now=100.0)
    assert bool(faults) == (avoided > 0)
    if avoided:
        assert faults.is_avoided("b", 100.0 + avoided - 0.1)
    assert not faults.is_avoided("b", 100.0 + avoided)
    assert not faults, "what is over is forgotten"


def test_a_quick_answer_or_a_pardon_ends_it() -> None:
    for latency in (0.01, None):
        faults = BrokerFaults()
        faults.note_failure("b", 0.0)
        assert faults.is_avoided("b", 1.0)
        assert not faults.is_avoided("other", 1.0)
        if latency is None:
            faults.forgive("b")
        else:
            faults.note("b", latency, 1.0)
        assert not faults.is_avoided("b", 1.0)
