from __future__ import annotations

import pytest

from pyromq.spark.sql.statements import is_blank, split_statements


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("", [], ""),
        ("select 1", [], "select 1"),
        ("select 1;", ["select 1"], ""),
        ("select 1; select 2 ;\n", ["select 1", "select 2"], "\n"),
        (";;; ;", [], ""),
        ("select ';';", ["select ';'"], ""),
        ("select 'it''s; ok';", ["select 'it''s; ok'"], ""),
        (r"select 'a\';b';", [r"select 'a\';b'"], ""),
        ('select "a;b", `c;d`;', ['select "a;b", `c;d`'], ""),
        ("select 1 -- not; yet\n+ 1;", ["select 1 -- not; yet\n+ 1"], ""),
        ("select /* ; \n ; */ 1;", ["select /* ; \n ; */ 1"], ""),
        ("select 'open;", [], "select 'open;"),
        ("select 1; select /* ;", ["select 1"], " select /* ;"),
        ("-- nothing;\n;", [], ""),
        ("select a-1;", ["select a-1"], ""),
    ],
)
def test_statements_end_with_semicolons(text: str, statements: list[str], rest: str) -> None:
    assert split_statements(text) == (statements, rest)


def test_blank_text() -> None:
    assert is_blank(" \n-- a comment\n /* another */ -- last")
    assert not is_blank("/* a */ select")
    assert not is_blank("/* not closed")
