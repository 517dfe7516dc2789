from __future__ import annotations

from pathlib import Path

import click
import pytest

from pyromq.spark.jobs.output import check_writable, output_console, print_table


def test_lines_are_truncated_on_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    output_console().print("word " * 500)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_table_is_printed_literally(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("of [red]things[/red]", ("name", "count"), [("[bold]:smile:", 3)])
    printed = capsys.readouterr().out
    assert "[red]things[/red]" in printed
    assert "[bold]:smile:" in printed


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    for path, reason in (
        (tmp_path / "directory", "Is a directory"),
        (tmp_path / "file" / "page.html", "Not a directory"),
        (tmp_path / "none" / "page.html", "No such file or directory"),
    ):
        with pytest.raises(click.ClickException, match=f"cannot write {path}: {reason}"):
            check_writable(path)
    check_writable(tmp_path / "new.html")
    check_writable(tmp_path / "file")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["directory", "file"]
