"""Run a job from the command line: session, progress bars, errors as one clear line.

    @clear_errors()
    def command(spark: SparkSettings, ...) -> None:
        with running_job(spark) as job:
            run_compact(job.session, ..., on_progress=lambda done: job.show("files", done, total))

Spark is loaded when a session starts or an error occurs, never by `--help` or a usage error.
Called on the main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from pyromq.base.command_options import missing_package
from pyromq.base.progress import count_progress
from pyromq.spark.jobs.options import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

#: A Spark error may continue with pages of JVM stack trace.
_MAX_ERROR_LINES: Final = 12


class Job:
    """A running job: its Spark session and its progress bars."""

    def __init__(self, session: SparkSession, bars: Progress) -> None:
        self.session = session
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, step: str, done: int, total: int, text: str | None = None) -> None:
        """Update the bar of a step, labelled `text` or else with the step's name."""
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(step)
        self._bars.update(self._tasks[step], description=text or step, completed=done, total=total)


@contextmanager
def running_job(settings: SparkSettings, *, interrupted: str | None = None) -> Iterator[Job]:
    """Start Spark for a job, and stop it afterwards.

    On Ctrl-C, print `interrupted` and continue after the `with` block; without it, the
    KeyboardInterrupt propagates.
    """
    try:
        with open_session(settings) as session, count_progress() as bars:
            yield Job(session, bars)
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        click.echo(interrupted)


@contextmanager
def open_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Start a Spark session and stop it afterwards. Reuse one that is active, and keep it."""
    from pyspark.sql import SparkSession

    from pyromq.spark.session import build_session

    existing = SparkSession.getActiveSession()
    session = build_session(
        settings.master, app_name=settings.app_name, conf=settings.conf, is_quiet=True
    )
    try:
        yield session
    except BaseException:
        if existing is None:
            _silence(session)
        raise
    finally:
        if existing is None:
            session.stop()


def _silence(session: SparkSession) -> None:
    """Keep tasks quiet that die with their session: the cause is reported already."""
    with suppress(Exception):  # a Spark Connect session has no context; its server logs elsewhere
        session.sparkContext.setLogLevel("OFF")


@contextmanager
def clear_errors() -> Iterator[None]:
    """Report errors that a user can fix as one line, without a traceback."""
    try:
        yield
    except (BrokenPipeError, click.ClickException, click.exceptions.Exit, click.Abort):
        raise  # click handles these itself; a broken pipe (`| head`) ends silently
    except ModuleNotFoundError as error:
        raise missing_package("this job", error) from error
    except Exception as error:
        if not isinstance(error, _fixable_errors()):
            raise
        raise click.ClickException(_shortened(error)) from error


def _fixable_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions whose message says what to do."""
    from pyspark.errors import PySparkException

    from pyromq.spark.archive.directory import ArchiveError
    from pyromq.spark.origins.origin import OriginError
    from pyromq.spark.reading.positions import DataLossError
    from pyromq.spark.replay.state import ReplayError
    from pyromq.spark.runtime.fan_out import TaskFailedError
    from pyromq.spark.runtime.java import JavaNotFoundError
    from pyromq.store.results import StoreError

    return (
        ArchiveError,
        DataLossError,
        JavaNotFoundError,
        OriginError,
        OSError,
        PySparkException,
        ReplayError,
        StoreError,
        TaskFailedError,
        ValueError,
    )


def _shortened(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        lines = lines[-_MAX_ERROR_LINES:]  # a Python worker's: the error is at its end
    return "\n".join(lines[:_MAX_ERROR_LINES]) or type(error).__name__
