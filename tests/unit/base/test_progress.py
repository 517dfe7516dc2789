from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.progress import Progress

from pyromq.base.progress import byte_progress, count_progress


@pytest.mark.parametrize("bars", [byte_progress, count_progress])
def test_bars_are_drawn_on_a_terminal_only(
    bars: Callable[[], Progress], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with bars() as progress:
        progress.add_task("working", total=10)
    assert capfd.readouterr() == ("", "")

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with bars() as progress:
        progress.add_task("working", total=10)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "working" in printed.err
