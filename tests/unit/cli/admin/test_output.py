from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

import pytest

from pyromq.cli.admin.output import Output, cell, plain, second_text, time_text
from pyromq.protocol.wire.bodies import MessageQueue


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Thing:
    name: str
    queue: MessageQueue
    colours: tuple[Colour, ...]
    counts: dict[int, frozenset[str]]
    raw: bytes = b"\xffx"
    nothing: None = None


THING = Thing("t", MessageQueue("a", "b", 1), (Colour.RED,), {7: frozenset("ba")})


def test_json_has_the_fields_of_dataclasses(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.line("text")
    output.table(("#A",), [("x",)])
    output.pairs({"a": 1})
    output.result([THING])
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == [
        {
            "name": "t",
            "queue": {"topic": "a", "broker_name": "b", "queue_id": 1},
            "colours": ["RED"],
            "counts": {"7": ["a", "b"]},
            "raw": "\ufffdx",
            "nothing": None,
        }
    ]
    assert plain(THING)["name"] == "t"


def test_a_pipe_gets_aligned_columns_that_are_never_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Output(as_json=False)
    wide = "x" * 300
    output.result(THING)
    output.table(("#Name", "#Order"), [("a", True), (wide, None)])
    output.table(("#Name",), [("b",)], header=False)
    output.table(("#Name",), [], header=False)
    output.pairs({"key": "value"})
    output.pairs({"key": 1}, "{:<5}: {}")
    output.note("remark")
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"{'#Name':300}  #Order",
        f"{'a':300}  true",
        wide,
        "b",
        f"{'key':50}=  value",
        "key  : 1",
    ]
    assert captured.err == "remark\n"


def test_a_terminal_gets_a_table_with_wrapped_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output = Output(as_json=False)
    output.is_terminal = True
    wide = "z" * 100
    output.table(("#Name", "#Count", "#Empty"), [(wide, 5, None)], numbers=("#Count",))
    output.pairs({"[key]": "[red]value"})
    text = capsys.readouterr().out
    assert text.count("z") == 100
    assert max(map(len, text.splitlines())) <= 40
    assert "Name" in text
    assert "#Name" not in text
    assert "[red]value" in text
    assert "Empty" not in text


def test_cells_and_times() -> None:
    assert [cell(each) for each in (None, True, False, Colour.RED, 1.5, "x")] == [
        "", "true", "false", "RED", "1.5", "x",
    ]  # fmt: skip
    assert time_text(1_700_000_000_123).endswith(",123")
    assert time_text(1_700_000_000_123).startswith(second_text(1_700_000_000_999))


def test_hostile_names_and_times() -> None:
    assert cell("a\x1b[2Jb\nc\x9bd\x7fé") == r"a\x1b[2Jb\nc\x9bd\x7fé"
    assert time_text(2**63 - 1) == str(2**63 - 1)
    assert second_text(-(2**63)) == str(-(2**63))
