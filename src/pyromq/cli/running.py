"""How commands run: event loop, signals, logging, and errors as one clear line.

`run_servers` is for commands that run until they are told to stop, `run_client`
for those that do their work and end. The first SIGINT or SIGTERM asks for a
clean stop, the second one ends the process at once (a broker's store then
recovers at its next start). Everything that can be seen before a server starts
(settings, log and pid files) is looked at first: a start that fails leaves
nothing behind. Called on the main thread.
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
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import click

from pyromq.base.process_memory import return_excess
from pyromq.base.settings import ConfigError
from pyromq.cli.logs import MIB, logging_to_files, logging_to_stderr
from pyromq.cli.tuning import allow_open_files, settle
from pyromq.protocol.java.properties import PropertiesError, parse_properties

logger = logging.getLogger(__name__)

#: Exit codes of a process that a signal ended, as shells know them.
_EXIT_BY_SIGNAL = 128
#: Between looks at whether stdout is still read.
_HANG_UP_SECONDS = 0.1
#: Between looks at how much free memory the process keeps.
_MEMORY_SECONDS = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(Protocol):
    """What a NameServer and a broker have in common."""

    async def start(self) -> None:
        """Begin to serve."""

    async def stop(self) -> None:
        """End cleanly."""


class Servers:
    """The servers of one command; those that were started are stopped in reverse order."""

    def __init__(self, running: AsyncExitStack) -> None:
        self._running = running

    async def start(
        self, name: str, server: Server, other_port: str, failures: tuple[type[Exception], ...]
    ) -> None:
        """Start one.

        `other_port` says how to give it another port if its own is taken; `failures` are the
        errors of its start that need no more than their own words.
        """
        # Before its start: one that fails half-way has something to give back, too.
        self._running.push_async_callback(server.stop)
        try:
            await server.start()
        except OSError as error:
            reason = error.strerror or str(error)
            if error.filename is not None:
                reason = f"{error.filename}: {reason}"
            if error.errno == errno.EADDRINUSE:
                reason = f"{reason}; stop the program that has it, or {other_port}"
            raise click.ClickException(f"{name} cannot start: {reason}") from error
        except failures as error:
            raise click.ClickException(f"{name} cannot start: {error}") from error


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What every server's command can be told about its process."""

    log_level: str = "INFO"
    log_dir: str | None = None
    log_size: int = 128
    log_files: int = 10
    pid_file: str | None = None

    def logging(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Log to stderr, or to the files `names`."""
        if self.log_dir is None:
            return logging_to_stderr(self.log_level)
        return logging_to_files(
            self.log_level, Path(self.log_dir), names, self.log_size * MIB, self.log_files
        )


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every server; the command gets them as `options`."""

    @functools.wraps(command)
    def with_options(
        log_level: str,
        log_dir: str | None,
        log_size: int,
        log_files: int,
        pid_file: str | None,
        **others: Any,
    ) -> Any:
        options = ServerOptions(log_level, log_dir, log_size, log_files, pid_file)
        return command(options=options, **others)

    for option in reversed(
        (
            click.option(
                "--log-level",
                type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
                default="INFO",
                show_default=True,
                help="Least important log lines to write.",
            ),
            click.option(
                "--log-dir",
                metavar="DIR",
                help="Write log lines to files in DIR, not to stderr.",
            ),
            click.option(
                "--log-size",
                metavar="MIB",
                type=click.IntRange(1),
                default=128,
                show_default=True,
                help="A log file of this size is rotated.",
            ),
            click.option(
                "--log-files",
                metavar="COUNT",
                type=click.IntRange(1),
                default=10,
                show_default=True,
                help="How many files of each log are kept.",
            ),
            click.option(
                "--pid-file",
                metavar="FILE",
                help="Write the process id to FILE; it is removed at the end.",
            ),
        )
    ):
        with_options = option(with_options)
    return with_options


def namesrv_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--namesrv` to a client's command."""
    return click.option(
        "--namesrv",
        metavar="ADDRESSES",
        envvar="NAMESRV_ADDR",
        default="127.0.0.1:9876",
        show_default=True,
        help="NameServers as host:port[;host:port]; also from NAMESRV_ADDR in the environment.",
    )(command)


def read_properties(path: str | None) -> dict[str, str]:
    """The table of a `.properties` file; empty without one."""
    if path is None:
        return {}
    try:
        return parse_properties(Path(path).read_bytes())
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from error
    except PropertiesError as error:
        raise click.ClickException(f"{path}: {error}") from error


def bad_setting(error: ConfigError, path: str | None) -> click.ClickException:
    """A setting that cannot be used, as the command's error."""
    return click.ClickException(f"{path}: {error}" if path else str(error))


def run_servers(
    start: Callable[[Servers], Awaitable[object]],
    options: ServerOptions | None = None,
    log_names: Sequence[str] = ("broker.log",),
    warnings: Sequence[str] = (),
) -> None:
    """Log warnings about settings, let `start` start servers, wait for a signal, stop them."""
    options = options or ServerOptions()
    pid_file = nullcontext() if options.pid_file is None else _pid_file(Path(options.pid_file))
    with pid_file, options.logging(log_names):
        for warning in warnings:
            logger.warning(warning)
            if options.log_dir is not None:  # the log is not on the terminal
                click.echo(f"Warning: {warning}", err=True)
        _run(_serve(start))


def run_client(work: Coroutine[Any, Any, None], *, watch_stdout: bool = False) -> None:
    """Run a command's work to its end, or until a signal cancels it.

    With `watch_stdout`, it ends as well when nobody reads stdout any more (`| head -1`), also
    while there is nothing to print.
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
    """The process's id in a file, which is locked while the process lives."""
    try:
        # Not emptied before it is ours: another process may be named in it.
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise click.ClickException(
                    f"{path} belongs to process {file.read().strip() or '?'}, which is running: "
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
            f"pid file {path} cannot be written: {error.strerror}; choose another one with "
            "--pid-file"
        ) from error


def _run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # it is not built for every platform
        return None
    return uvloop.new_event_loop


async def _serve(start: Callable[[Servers], Awaitable[object]]) -> None:
    stopping = asyncio.Event()
    with _reacting_to_signals(stopping.set):
        async with AsyncExitStack() as running:
            allow_open_files()
            await start(Servers(running))
            settle()
            looking = asyncio.create_task(_return_memory_forever())
            await stopping.wait()
            looking.cancel()
            click.echo("Stopping; a second signal ends the process at once.", err=True)


async def _return_memory_forever() -> None:
    """Give back what peers have made a server hold for a while; off the loop, as it takes time."""
    while True:
        await asyncio.sleep(_MEMORY_SECONDS)
        await asyncio.to_thread(return_excess)


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    with _reacting_to_signals(task.cancel) as received:
        try:
            await task
        except asyncio.CancelledError:
            raise click.exceptions.Exit(_EXIT_BY_SIGNAL + received[0]) from None


def _descriptor_of_stdout() -> int | None:
    """None where stdout is closed, or is something else than a file."""
    try:
        return sys.stdout.fileno()
    except (AttributeError, OSError):
        return None


async def _until_hang_up(work: Coroutine[Any, Any, None], descriptor: int) -> None:
    """Do the work; raise BrokenPipeError when nobody reads this descriptor any more."""
    task = asyncio.ensure_future(work)
    hang_up = asyncio.create_task(_hang_up(descriptor))
    is_left = False
    try:
        done, _ = await asyncio.wait((task, hang_up), return_when=asyncio.FIRST_COMPLETED)
        is_left = task not in done
    finally:
        hang_up.cancel()
        if not task.done():  # nobody reads on, or a signal came: let it clean up
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # seen; nobody wants to know it any more
    if is_left:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    await task


async def _hang_up(descriptor: int) -> None:
    """Come back when the other end is closed; never for a file or a living terminal."""
    poller = select.poll()
    poller.register(descriptor, 0)  # errors and hang-ups are always told
    while not poller.poll(0):  # noqa: ASYNC110 - nothing sets an event at a hang-up
        await asyncio.sleep(_HANG_UP_SECONDS)


def _forget_stdout() -> None:
    """Let what is left in the buffer go nowhere: at its end the interpreter would complain."""
    descriptor = _descriptor_of_stdout()
    if descriptor is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


@contextmanager
def _reacting_to_signals(react: Callable[[], object]) -> Iterator[list[int]]:
    """Call `react` on the loop at the first signal; end the process at the second.

    Gives the signals that came. Handlers of the interpreter, not of the loop: they also run
    while the loop is busy with a long recovery.
    """
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            # Nothing that could wait: no lock, no buffer.
            os.write(2, b"Ended at once; a broker's store recovers at its next start.\n")
            os._exit(_EXIT_BY_SIGNAL + number)
        loop.call_soon_threadsafe(react)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
