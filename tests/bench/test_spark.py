from __future__ import annotations

import pytest

from bench.spark.__main__ import Figures, Rounds, _growth, _medians, _render, _table
from bench.spark.cases import CASES, KAFKA, KAFKA_CASES, PYROMQ


def figures(seconds: float, *names: str) -> Figures:
    return {name: {"seconds": seconds, "cpu_seconds": 2 * seconds} for name in names}


OURS = tuple(case.name for case in CASES)


def test_every_case_stands_beside_one_of_kafka_s() -> None:
    assert {case.beside for case in CASES} == set(KAFKA_CASES)


def test_a_ratio_is_of_speed_and_held_against_what_is_asked() -> None:
    medians = {KAFKA: figures(5.0, *KAFKA_CASES), PYROMQ: figures(2.4, *OURS)}
    _, missed = _table(1_000_000, medians)
    # 5 s against 2.4 s is a ratio of 2.08.
    assert missed == [
        "1,000,000: archive, all columns: 2.08, bound 4",
        "1,000,000: store files, 18 columns -> noop: 2.08, bound 2.5",
        "1,000,000: store files, 8 columns as Kafka -> noop: 2.08, bound 2.5",
    ]


def test_one_side_alone_misses_nothing() -> None:
    table, missed = _table(1000, {PYROMQ: figures(2.0, *OURS)})
    assert table.row_count == len(CASES)
    assert missed == []


def test_medians_are_over_the_rounds() -> None:
    rounds = [figures(seconds, "noop") for seconds in (3.0, 1.0, 2.0)]
    assert _medians(rounds) == figures(2.0, "noop")


def test_the_report_shows_rates_ratios_and_growth() -> None:
    sizes: dict[int, Rounds] = {
        messages: {KAFKA: [figures(s, *KAFKA_CASES)], PYROMQ: [figures(s / 4, *OURS)]}
        for messages, s in ((1_000_000, 4.0), (4_000_000, 16.0))
    }
    text, missed = _render(sizes, {"commit": "abc"})
    assert missed == []
    assert "250,000" in text  # Kafka's rows a second
    assert "1,000,000" in text
    assert "4.00" in text
    assert "commit abc" in text
    table = _growth(sizes)
    assert table.row_count == len(KAFKA_CASES) + len(OURS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_asked_is_more_than_nothing(case: object) -> None:
    assert getattr(case, "asked", 0) >= 1
