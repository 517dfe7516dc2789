"""SQL92 filters equal Java's: rejected expressions, and results for properties."""

from __future__ import annotations

from pyromq.protocol.filter.sql import SqlError, compile_sql
from pyromq.protocol.filter.sql_values import MismatchError
from tests.golden.golden_data import read_index
from tests.support.each import for_each

GOLDEN = read_index("sql")
LETTERS = {True: "T", False: "F", None: "N"}


def results_of(text: str) -> str:
    try:
        expression = compile_sql(text)
    except SqlError:
        return ""
    letters = []
    for properties in GOLDEN["sets"]:
        try:
            result = expression.evaluate(properties)
        except MismatchError:
            letters.append("X")
        else:
            letters.append(LETTERS[result])
        assert expression.matches(properties) is (letters[-1] == "T")
    return "".join(letters)


@for_each("text", GOLDEN["results"], repr)
def test_expressions(text: str) -> None:
    assert results_of(text) == GOLDEN["results"][text]


def test_the_data_covers_enough() -> None:
    results = list(GOLDEN["results"].values())
    assert len(results) > 600
    assert sum(not result for result in results) > 100
    assert set("".join(results)) == set("TFNX")
