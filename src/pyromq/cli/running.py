"""Runs commands: event loop, signals, logging, and errors as one line.

`run_servers` runs until a signal stops it, `run_client` until its work is done. The first SIGINT
or SIGTERM requests a clean stop, the second ends the process at once (a broker's store then
recovers at its next start). Settings, log files and pid files are checked before a server
starts, so a failed start leaves nothing behind. A service manager hears of the start and the stop
(`base.service_manager`). Called on the main thread.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import logging
import os
import select
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

import click

from pyromq.base.command_options import Command, add_options
from pyromq.base.log_levels import toggle_debug
from pyromq.base.process_memory import return_excess
from pyromq.base.service_manager import ServiceManager
from pyromq.base.settings import ENVIRONMENT, ConfigError, settings_of, with_environment
from pyromq.cli.logs import MIB, LogFormat, logging_to_files, logging_to_stderr
from pyromq.cli.tuning import allow_open_files, settle
from pyromq.protocol.java.properties import PropertiesError, parse_properties
from pyromq.tls.settings import TLS_FILE_KEY, tls_file_of

logger = logging.getLogger(__name__)

#: Added to the number of the signal that ended the process, as shells do.
_EXIT_BY_SIGNAL = 128
_HANG_UP_POLL_SECONDS = 0.1
_RETURN_MEMORY_SECONDS = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEBUG_SIGNAL = signal.SIGUSR1


class Server(Protocol):
    """A NameServer or a broker."""

    async def start(self) -> None:
        """Start serving."""

    async def stop(self) -> None:
        """Stop cleanly."""


class Servers:
    """The servers of one command, stopped in reverse order of their start."""

    def __init__(self, running: AsyncExitStack) -> None:
        self._running = running
        #: Set by the first signal, and by `stop`.
        self.stop_requested = asyncio.Event()
        #: Ends the command after the stop.
        self.failure: Exception | None = None

    async def start(
        self, name: str, server: Server, other_port: str, failures: tuple[type[Exception], ...]
    ) -> None:
        """Start `server`.

        `other_port` tells the user how to choose another port if this one is taken; `failures`
        are start-up errors whose message is enough, without a traceback.
        """
        # Registered before the start: a half-started server has resources to release.
        self._running.push_async_callback(server.stop)
        try:
            await server.start()
        except OSError as error:
            reason = error.strerror or str(error)
            if error.filename is not None:
                reason = f"{error.filename}: {reason}"
            if error.errno == errno.EADDRINUSE:
                reason = f"{reason}; stop the program that uses it, or {other_port}"
            raise click.ClickException(f"{name} cannot start: {reason}") from error
        except failures as error:
            raise click.ClickException(f"{name} cannot start: {error}") from error

    def stop(self, failure: Exception | None = None) -> None:
        """Stop all servers, as a signal does; the command then fails with `failure`, if given."""
        self.failure = self.failure or failure
        self.stop_requested.set()


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Process options of every server command."""

    log_level: str = "INFO"
    log_dir: str | None = None
    log_size: int = 128
    log_files: int = 10
    pid_file: str | None = None
    log_format: str = LogFormat.TEXT.value
    log_compress: bool = False

    def logging(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Log to stderr, or to the files `names`."""
        form = LogFormat(self.log_format)
        if self.log_dir is None:
            return logging_to_stderr(self.log_level, form)
        return logging_to_files(
            self.log_level,
            Path(self.log_dir),
            names,
            self.log_size * MIB,
            self.log_files,
            form,
            compress=self.log_compress,
        )


def server_options(command: Command) -> Command:
    """Add the options of every server; the command receives them as `options`."""

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        names = [item.name for item in fields(ServerOptions)]
        options = ServerOptions(**{name: values.pop(name) for name in names})
        return command(options=options, **values)

    return add_options(
        click.option(
            "--log-level",
            type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
            default="INFO",
            show_default=True,
            help="Set the minimum log level.",
        ),
        click.option(
            "--log-dir", metavar="DIR", help="Write log files to DIR instead of logging to stderr."
        ),
        click.option(
            "--log-size",
            metavar="MIB",
            type=click.IntRange(1),
            default=128,
            show_default=True,
            help="Rotate a log file when it reaches this size.",
        ),
        click.option(
            "--log-files",
            metavar="COUNT",
            type=click.IntRange(1),
            default=10,
            show_default=True,
            help="Keep at most this many files of each log.",
        ),
        click.option(
            "--log-format",
            type=click.Choice([form.value for form in LogFormat], case_sensitive=False),
            default=LogFormat.TEXT.value,
            show_default=True,
            help="Write log lines as text, or each as a JSON object.",
        ),
        click.option("--log-compress", is_flag=True, help="Compress rotated log files with gzip."),
        click.option(
            "--pid-file",
            metavar="FILE",
            help="Write the process id to FILE and remove it when the server stops.",
        ),
    )(with_options)


#: The options that mqnamesrv and mqbroker have in common.
config_options: Final = add_options(
    click.option(
        "-c",
        "--config-file",
        "--configFile",
        metavar="FILE",
        help="Read settings from FILE, a .properties file with RocketMQ's keys.",
    ),
    click.option(
        "-p",
        "--print-config",
        "--printConfigItem",
        is_flag=True,
        help="Print all settings and exit.",
    ),
    click.option(
        "-m",
        "--print-important",
        "--printImportantConfig",
        is_flag=True,
        help="Print the important settings and exit.",
    ),
)


def read_properties(path: str | None) -> dict[str, str]:
    """Parse a `.properties` file and its `${NAME}` references; without a path, an empty table."""
    if path is None:
        return {}
    try:
        return with_environment(parse_properties(Path(path).read_bytes()), os.environ)
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from error
    except (PropertiesError, ConfigError) as error:
        raise click.ClickException(f"{path}: {error}") from error


def mode_warnings(path: str | None, config_classes: Iterable[type]) -> list[str]:
    """Return a warning for a server's file, and for its TLS file, if others can read its secrets.

    Both files have been read before.
    """
    secrets = {
        item.key
        for config_class in config_classes
        for item in settings_of(config_class)
        if item.secret
    }
    given = {} if path is None else parse_properties(Path(path).read_bytes())
    named = {key: text for key, text in given.items() if key == TLS_FILE_KEY}
    tls_file = tls_file_of(with_environment(named, os.environ))
    paths = ([] if path is None else [path]) + ([tls_file] if Path(tls_file).exists() else [])
    return [warning for each in paths for warning in _mode_warnings(Path(each), secrets)]


def _mode_warnings(path: Path, secrets: Collection[str]) -> Iterator[str]:
    properties = parse_properties(path.read_bytes())
    written = [
        key
        for key, text in properties.items()
        if key in secrets and text.strip() and not ENVIRONMENT.fullmatch(text.strip())
    ]
    mode = stat.S_IMODE(path.stat().st_mode)
    if written and mode & (stat.S_IRWXG | stat.S_IRWXO):
        advice = f"run chmod 600 {path}, or refer to an environment variable, ${{NAME}}"
        yield f"{path} holds {', '.join(written)} and has mode {mode:04o}: {advice}"


def bad_setting(error: ConfigError, path: str | None) -> click.ClickException:
    """Turn an invalid setting into the command's error, which names the file."""
    return click.ClickException(f"{path}: {error}" if path else str(error))


def run_servers(
    start: Callable[[Servers], Awaitable[object]],
    options: ServerOptions | None = None,
    log_names: Sequence[str] = ("broker.log",),
    warnings: Sequence[str] = (),
) -> None:
    """Log warnings about settings, start servers with `start`, stop them at a signal."""
    options = options or ServerOptions()
    pid_file = nullcontext() if options.pid_file is None else _pid_file(Path(options.pid_file))
    with pid_file, options.logging(log_names):
        for warning in warnings:
            logger.warning(warning)
        _run(_serve(start))


def run_client(work: Coroutine[Any, Any, None], *, watch_stdout: bool = False) -> None:
    """Run `work` until it ends or a signal cancels it.

    With `watch_stdout`, also end when the reader of stdout goes away (`| head -1`), even while
    there is nothing to print.
    """
    from pyromq.client.errors import ClientError, NameServerError
    from pyromq.remoting.address import AddressError
    from pyromq.remoting.errors import RemotingError

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        descriptor = _descriptor_of_stdout() if watch_stdout else None
        _run(_until_signal(work if descriptor is None else _until_hang_up(work, descriptor)))
    except BrokenPipeError:
        _forget_stdout()
        raise click.exceptions.Exit(_EXIT_BY_SIGNAL + signal.SIGPIPE) from None
    except NameServerError as error:
        raise click.ClickException(
            f"{error}\nStart a server with `pyromq standalone`, or name another with --namesrv."
        ) from error
    except (ClientError, RemotingError, AddressError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _pid_file(path: Path) -> Iterator[None]:
    """Keep the process id in a file, locked while the process lives."""
    try:
        # Opened for appending: until it is locked, the id in it may be another process's.
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise click.ClickException(
                    f"{path} belongs to running process {file.read().strip() or '?'}: "
                    "stop it, or choose another file with --pid-file"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
    except OSError as error:
        if error.filename != str(path):
            raise
        raise click.ClickException(
            f"cannot write pid file {path}: {error.strerror}; choose another one with --pid-file"
        ) from error


def _run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not available on every platform
        return None
    return uvloop.new_event_loop


async def _serve(start: Callable[[Servers], Awaitable[object]]) -> None:
    running = AsyncExitStack()
    servers = Servers(running)
    manager = ServiceManager.from_environment()
    with _reacting_to_signals(servers.stop) as signals, _toggling_debug():
        async with manager.watched(), running:
            allow_open_files()
            await start(servers)
            settle()
            manager.notify("READY=1", "STATUS=serving")
            returning_memory = asyncio.create_task(_return_memory_forever())
            await servers.stop_requested.wait()
            manager.notify("STOPPING=1", "STATUS=stopping")
            returning_memory.cancel()
            if signals:
                click.echo("Stopping; a second signal ends the process at once.", err=True)
            if servers.failure is not None:
                raise servers.failure


@contextmanager
def _toggling_debug() -> Iterator[None]:
    """Let SIGUSR1 switch the log level to DEBUG, and back."""
    loop = asyncio.get_running_loop()
    before = signal.signal(
        _DEBUG_SIGNAL, lambda _number, _frame: loop.call_soon_threadsafe(toggle_debug)
    )
    try:
        yield
    finally:
        signal.signal(_DEBUG_SIGNAL, before)


async def _return_memory_forever() -> None:
    """Return memory that peers made the server allocate; off the loop, because it is slow."""
    while True:
        await asyncio.sleep(_RETURN_MEMORY_SECONDS)
        await asyncio.to_thread(return_excess)


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    with _reacting_to_signals(task.cancel) as received:
        try:
            await task
        except asyncio.CancelledError:
            raise click.exceptions.Exit(_EXIT_BY_SIGNAL + received[0]) from None


def _descriptor_of_stdout() -> int | None:
    """Return stdout's descriptor, or None if stdout is closed or not a file."""
    try:
        return sys.stdout.fileno()
    except (AttributeError, OSError):
        return None


async def _until_hang_up(work: Coroutine[Any, Any, None], descriptor: int) -> None:
    """Do the work; raise BrokenPipeError when the other end of `descriptor` closes."""
    task = asyncio.ensure_future(work)
    hang_up = asyncio.create_task(_hang_up(descriptor))
    has_hung_up = False
    try:
        done, _ = await asyncio.wait((task, hang_up), return_when=asyncio.FIRST_COMPLETED)
        has_hung_up = task not in done
    finally:
        hang_up.cancel()
        if not task.done():  # hang-up or signal: let the work clean up
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # retrieve it: asyncio would log it otherwise
    if has_hung_up:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    await task


async def _hang_up(descriptor: int) -> None:
    """Return when the other end closes; never for a file or an open terminal."""
    poller = select.poll()
    poller.register(descriptor, 0)  # poll reports errors and hang-ups in any case
    while not poller.poll(0):  # noqa: ASYNC110 - a hang-up sets no event
        await asyncio.sleep(_HANG_UP_POLL_SECONDS)


def _forget_stdout() -> None:
    """Discard buffered output, which the interpreter would fail to flush at exit."""
    descriptor = _descriptor_of_stdout()
    if descriptor is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


@contextmanager
def _reacting_to_signals(react: Callable[[], object]) -> Iterator[list[int]]:
    """Call `react` on the loop at the first signal; end the process at the second.

    Yields the list of received signals. Uses the interpreter's handlers rather than the loop's:
    they also run while a long recovery blocks the loop.
    """
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            # Write without taking a lock or filling a buffer: neither may block here.
            os.write(2, b"Ended at once; a broker's store recovers at its next start.\n")
            os._exit(_EXIT_BY_SIGNAL + number)
        loop.call_soon_threadsafe(react)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
