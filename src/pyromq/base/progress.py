"""Progress bars on stderr, drawn only when stderr is a terminal.

Piped output therefore never contains control characters. rich is imported on the first call:
loading it would slow down every start of the command line. Call on the main thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


def byte_progress() -> Progress:
    """Return bars that count bytes and show the throughput; they vanish when they finish."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return _on_stderr(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        is_transient=True,
    )


def count_progress(*, is_transient: bool = False) -> Progress:
    """Return bars that count items and show the elapsed and the remaining time."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return _on_stderr(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        is_transient=is_transient,
    )


def _on_stderr(*columns: ProgressColumn, is_transient: bool) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(
        *columns,
        console=console,
        transient=is_transient,
        disable=not console.is_terminal,
        redirect_stdout=False,  # stdout may be a pipe: its lines must not end up on stderr
    )
