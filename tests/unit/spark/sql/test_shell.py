from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from pyspark.errors import PySparkException

from pyromq.spark.sql.output import Format
from pyromq.spark.sql.shell import CONTINUATION_PROMPT, PROMPT, Shell, history


class Frame:
    """The result of a statement."""

    def __init__(self, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
        self.columns = list(columns)
        self._rows = rows

    def limit(self, count: int) -> Frame:
        return Frame(self.columns, self._rows[:count])

    def collect(self) -> list[tuple[Any, ...]]:
        return self._rows

    def toLocalIterator(self, prefetchPartitions: bool) -> Iterator[tuple[Any, ...]]:  # noqa: N802, N803
        assert prefetchPartitions
        return iter(self._rows)


class Tables:
    """Answers statements."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def run(self, statement: str) -> Frame:
        self.seen.append(statement)
        if "bad" in statement:
            raise PySparkException("[SYNTAX] it is bad\nJVM stacktrace:\n\tat org.x")
        if "stop" in statement:
            raise KeyboardInterrupt
        if statement.startswith("set"):
            return Frame([], [])
        return Frame(["n"], [(number,) for number in range(3)])


def shell(limit: int = 1000, form: Format = Format.TABLE, **options: Any) -> tuple[Shell, Tables]:
    tables: Any = Tables()
    return Shell(tables, form, limit, **options), tables


class Lines:
    """Lines that a user types; a `BaseException` class is raised."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


def test_statements_are_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    it, tables = shell()
    it.run_all("select 1; set x=1;\nselect\n2;")
    assert tables.seen == ["select 1", "set x=1", "select\n2"]
    assert capsys.readouterr().out == "n\n-\n0\n1\n2\n" * 2


def test_the_first_error_ends_a_script() -> None:
    it, tables = shell()
    with pytest.raises(click.ClickException, match="it is bad") as caught:
        it.run_all("select 1; bad; select 2;")
    assert "stacktrace" not in caught.value.message
    assert tables.seen == ["select 1", "bad"]


def test_an_unterminated_quote() -> None:
    it, _ = shell()
    with pytest.raises(click.ClickException, match="unterminated quote or comment: select 'x"):
        it.run_all("select 'x;")


def test_a_table_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    it, _ = shell(limit=2)
    it.run_all("select 1;")
    shown = capsys.readouterr()
    assert shown.out == "n\n-\n0\n1\n"
    assert "only the first 2 rows are shown" in shown.err
    it, _ = shell(limit=3)
    it.run_all("select 1;")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("form", "lines"), [(Format.JSON, 3), (Format.CSV, 4)])
def test_other_formats_have_all_rows(
    form: Format, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    it, _ = shell(limit=1, form=form)
    it.run_all("select 1;")
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_a_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    it, tables = shell()
    lines = Lines("select", "1;", "", "help", "bad;", "select 2; select 3;", "EXIT;", "select 4;")
    it.converse(lines)
    assert tables.seen == ["select\n1", "bad", "select 2", "select 3"]
    assert lines.prompts == [PROMPT, CONTINUATION_PROMPT, *[PROMPT] * 5]
    shown = capsys.readouterr()
    assert "SHOW TOPICS" in shown.out
    assert shown.err == "[SYNTAX] it is bad\n"


def test_ctrl_c_discards_input_and_cancels_statements(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped: list[bool] = []
    it, tables = shell(interrupt=lambda: stopped.append(True))
    it.converse(Lines("select", KeyboardInterrupt, "stop; select 1;", "select 2;"))
    assert tables.seen == ["stop", "select 2"]
    assert stopped == [True]
    assert "cancelled" in capsys.readouterr().err


def test_the_history_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readline = pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with history():
        readline.clear_history()
        readline.add_history("select 1;")
    readline.clear_history()
    with history():
        assert readline.get_history_item(readline.get_current_history_length()) == "select 1;"
    readline.clear_history()


def test_a_history_that_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with history():
        pass
