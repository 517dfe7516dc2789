"""What the commands of all jobs have in common: options, the session, progress, clear errors.

    @click.command("archive")
    @cluster_options                      # the function gets `cluster: ClusterSettings`
    @spark_options                        # and `spark: SparkSettings`
    def command(cluster: ClusterSettings, spark: SparkSettings, ...) -> None:
        with open_session(spark) as session, progress_bars() as bars:
            ...

Importing this costs no Spark: it is loaded by `open_session`, when a job really begins.
Called on the main thread.
"""

from __future__ import annotations

import errno
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console
    from rich.progress import Progress

    from pyromq.spark.origins.broker import ConnectionSettings

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
#: How much of an error of Spark's is shown: below that come stacks of the JVM.
_ERROR_LINES: Final = 12
_ANY_WIDTH: Final = 10_000


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Which cluster, and as whom."""

    nameserver: str = DEFAULT_NAMESERVER
    access_key: str = ""
    secret_key: str = ""
    tls: bool = False

    def source_options(self) -> dict[str, str]:
        """The same as options of the format "rocketmq", for readers and writers."""
        options = {"nameserver": self.nameserver}
        if self.access_key or self.secret_key:
            options |= {"accessKey": self.access_key, "secretKey": self.secret_key}
        return options | ({"tls": "true"} if self.tls else {})

    def connection(self) -> ConnectionSettings:
        """The same for an origin or a client of our own."""
        from pyromq.spark.origins.broker import ConnectionSettings

        servers = tuple(part.strip() for part in self.nameserver.split(";") if part.strip())
        return ConnectionSettings(servers, self.access_key, self.secret_key, self.tls)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs, and what it is told; `master` None is this machine."""

    master: str | None = None
    app_name: str = "pyromq"
    conf: dict[str, str] = field(default_factory=dict)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--nameserver`, keys and TLS; the command gets them as `cluster`."""

    @functools.wraps(command)
    def with_options(
        nameserver: str, access_key: str, secret_key: str, tls: bool, **others: Any
    ) -> Any:
        return command(cluster=ClusterSettings(nameserver, access_key, secret_key, tls), **others)

    for option in reversed(
        (
            click.option(
                "--nameserver",
                "--namesrv",
                "nameserver",
                metavar="ADDRESSES",
                envvar="NAMESRV_ADDR",
                default=DEFAULT_NAMESERVER,
                show_default=True,
                help="NameServers as host:port[;host:port]; also from NAMESRV_ADDR.",
            ),
            click.option(
                "--access-key",
                envvar="ROCKETMQ_ACCESS_KEY",
                show_envvar=True,
                default="",
                help="Who signs the requests, where brokers want that.",
            ),
            click.option(
                "--secret-key",
                envvar="ROCKETMQ_SECRET_KEY",
                show_envvar=True,
                default="",
                help="The key that signs; better in the environment than here.",
            ),
            click.option(
                "--tls", is_flag=True, help="Encrypt; the server's certificate is not checked."
            ),
        )
    ):
        with_options = option(with_options)
    return with_options


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--master`, `--conf` and `--app-name`; the command gets them as `spark`."""

    @functools.wraps(command)
    def with_options(
        master: str | None, conf: tuple[str, ...], app_name: str, **others: Any
    ) -> Any:
        settings = SparkSettings(master, app_name, dict(map(_setting, conf)))
        return command(spark=settings, **others)

    for option in reversed(
        (
            click.option(
                "--master",
                metavar="URL",
                help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://..., or "
                "sc://host:15002 for Spark Connect.  [default: this machine, all of its cores]",
            ),
            click.option(
                "--conf",
                metavar="KEY=VALUE",
                multiple=True,
                help="A setting of Spark's (spark.executor.memory=4g); repeatable.",
            ),
            click.option(
                "--app-name", default="pyromq", show_default=True, help="The job's name in Spark."
            ),
        )
    ):
        with_options = option(with_options)
    return with_options


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.startswith("spark."):
        raise click.UsageError(f"--conf {text!r}: expected spark.KEY=VALUE")
    return key, value


@contextmanager
def open_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """The session of a command, stopped at its end; errors become a clear line.

    A session that was there before is used, and left as it is.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from pyromq.spark.session import build_session
    except ImportError as error:
        raise click.ClickException(missing_package(error)) from error
    existing = SparkSession.getActiveSession()
    with clear_errors(PySparkException):
        session = build_session(
            settings.master, app_name=settings.app_name, conf=settings.conf, is_quiet=True
        )
        try:
            yield session
        except BaseException:
            if existing is None:
                _hush(session)
            raise
        finally:
            if existing is None:
                session.stop()


def _hush(session: SparkSession) -> None:
    """Let tasks that are torn down with their session end without a word: the error is known."""
    with suppress(Exception):  # Spark Connect's server has a log of its own
        session.sparkContext.setLogLevel("OFF")


@contextmanager
def clear_errors(*others: type[Exception]) -> Iterator[None]:
    """What a user can do something about is said in its own words, without a traceback."""
    from pyromq.spark.origins.origin import OriginError
    from pyromq.spark.runtime.java import JavaNotFoundError

    known: tuple[type[Exception], ...] = (
        JavaNotFoundError,
        OriginError,
        ValueError,
        OSError,
        *others,
    )
    try:
        yield
    except BrokenPipeError:
        raise  # `| head` has enough: click ends without a word
    except known as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        text = "\n".join(lines[-_ERROR_LINES:] if _is_traceback(lines) else lines[:_ERROR_LINES])
        raise click.ClickException(text or type(error).__name__) from error


def _is_traceback(lines: list[str]) -> bool:
    """Whether Spark handed on what a Python worker printed: its end is what matters."""
    return any(line.startswith("Traceback (most recent call last)") for line in lines)


def milliseconds_of(option: str, text: str | None) -> int | None:
    """A time that a user may have given to an option: see `time_of`."""
    return None if text is None else time_of(option, text)


def time_of(option: str, text: str, others: str = "") -> int:
    """The milliseconds of a time as 2026-11-16T05:00:00Z; without a zone it is UTC.

    `others` is what may stand there instead, for the message about something else.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option} {text!r}: expected {others}a time as 2026-11-16T05:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def missing_package(error: ImportError) -> str:
    """What to do when Spark's packages are not installed."""
    return f"{error}: this needs Spark's packages: pip install 'pyromq[spark]'"


def check_writable(output: Path) -> None:
    """Refuse a file that could not be written at the end of a job, before its beginning."""
    try:
        if output.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if output.exists():
            with output.open("ab"):
                pass
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error


def output_console() -> Console:
    """The terminal; a file or pipe gets lines of any length, and nothing is cut.

    Text is shown as it is: keys of messages may look like rich's markup.
    """
    from rich.console import Console

    width = None if Console().is_terminal else _ANY_WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=False)


def progress_bars() -> Progress:
    """Bars on stderr for `with`: description, bar, count, time; nothing when it is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
