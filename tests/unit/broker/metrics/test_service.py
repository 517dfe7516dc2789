from __future__ import annotations

from collections import Counter

from pyromq.broker.metrics.service import FAMILIES
from pyromq.metrics.family import Kind, Source


def test_names_are_unique_and_explained() -> None:
    twice = [name for name, count in Counter(each.name for each in FAMILIES).items() if count > 1]
    assert twice == []
    assert all(each.help.endswith(".") and len(each.help) > 10 for each in FAMILIES)


def test_own_names_have_base_units() -> None:
    own = [each for each in FAMILIES if each.source is Source.OWN]
    assert all(each.name.startswith("pyromq_") for each in own)
    assert not [each.name for each in own if "milliseconds" in each.name or "_ms" in each.name]
    assert all(each.name.endswith("_seconds") for each in own if each.kind is Kind.HISTOGRAM)
