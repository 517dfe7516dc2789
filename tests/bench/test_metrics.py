from __future__ import annotations

from bench.cases import BASE, PYROMQ
from bench.metrics import _CASES, SETTINGS, ratios_of, render
from pyromq.broker.config import load_broker_properties
from pyromq.metrics.settings import is_on


def test_one_of_the_two_has_metrics() -> None:
    assert is_on(load_broker_properties(SETTINGS).broker)
    assert [case.name for case in _CASES] == ["send128", "pull"]
    assert all({BASE, PYROMQ} <= set(case.contenders) for case in _CASES)


def test_the_table_and_the_bound() -> None:
    def figures(with_metrics: float) -> tuple[str, bool]:
        plain = [{"cpu_us": each} for each in (2.0, 4.0, 2.0)]
        measured = [{"cpu_us": each * with_metrics} for each in (2.0, 4.0, 2.0)]
        return render({"send128": {BASE: plain, PYROMQ: measured}})

    table, is_met = figures(1.02)
    assert is_met
    assert "| send128 | 2.00 | 2.04 | 1.020 | 1.020, 1.020, 1.020 |" in table
    assert not figures(1.05)[1]


def test_rounds_are_compared_one_by_one() -> None:
    assert ratios_of([1.0, 2.0], [1.1, 2.0]) == [1.1, 1.0]
