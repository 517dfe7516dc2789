from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from pyromq.spark.jobs import sql
from pyromq.spark.jobs.sql import MORE_PROMPT, PROMPT, Shell, command
from pyromq.spark.sql.output import Format


class Frame:
    """Rows as a statement gives them."""

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
    """What somebody types; a `BaseException` class is raised."""

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


def test_the_first_mistake_ends_a_script() -> None:
    it, tables = shell()
    with pytest.raises(click.ClickException, match="it is bad") as caught:
        it.run_all("select 1; bad; select 2;")
    assert "stacktrace" not in caught.value.message
    assert tables.seen == ["select 1", "bad"]


def test_a_script_that_ends_in_a_quote() -> None:
    it, _ = shell()
    with pytest.raises(click.ClickException, match="has no end: select 'x"):
        it.run_all("select 'x;")


def test_a_table_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    it, _ = shell(limit=2)
    it.run_all("select 1;")
    shown = capsys.readouterr()
    assert shown.out == "n\n-\n0\n1\n"
    assert "only 2 rows are shown" in shown.err
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
    it.talk(lines)
    assert tables.seen == ["select\n1", "bad", "select 2", "select 3"]
    assert lines.prompts == [PROMPT, MORE_PROMPT, *[PROMPT] * 5]
    shown = capsys.readouterr()
    assert "SHOW TOPICS" in shown.out
    assert shown.err == "[SYNTAX] it is bad\n"


def test_ctrl_c_drops_what_was_typed_and_stops_what_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped: list[bool] = []
    it, tables = shell(interrupt=lambda: stopped.append(True))
    it.talk(Lines("select", KeyboardInterrupt, "stop; select 1;", "select 2;"))
    assert tables.seen == ["stop", "select 2"]
    assert stopped == [True]
    assert "stopped" in capsys.readouterr().err


def test_an_option_needs_a_value() -> None:
    result = CliRunner().invoke(command, ["--option", "nonsense", "-e", "select 1"])
    assert result.exit_code == 2
    assert "--option 'nonsense': expected NAME=VALUE" in result.output


def test_the_history_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readline = pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with sql._history():
        readline.clear_history()
        readline.add_history("select 1;")
    readline.clear_history()
    with sql._history():
        assert readline.get_history_item(readline.get_current_history_length()) == "select 1;"
    readline.clear_history()


def test_a_history_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with sql._history():
        pass
