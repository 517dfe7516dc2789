"""Turns a coroutine function into a command of `pyromq admin`.

    @admin_command("topicList")
    @click.option("-c", "--clusterModel", "cluster_model", is_flag=True, help="...")
    async def topic_list(run: Run, cluster_model: bool) -> None:
        names = await run.admin.topics.names()
        run.result(names)                        # for --json
        run.table(("#Topic",), [(name,) for name in names])

Every command gets the options of the cluster, the account and TLS, `--timeout` and `--json`;
`watch=True` adds `--watch`, `destructive=True` adds `--yes` and `--dry-run`. The function must call
`run.result`. A failure is one line on stderr and an exit code of `EXIT_CODES`.

mqadmin accepts long options with one hyphen (`-topic orders`), so these commands do as well. A
script for mqadmin must not hang: only a person at a terminal is asked for confirmation.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from pyromq.admin.admin import Admin
from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    NotPermittedError,
    PartialFailureError,
    UnreachableError,
)
from pyromq.base.command_options import (
    DEFAULT_NAMESRV,
    OptionDecorator,
    access_key_option,
    add_options,
    secret_key_option,
    security_token_option,
)
from pyromq.base.progress import count_progress
from pyromq.cli.admin.output import Output
from pyromq.client.errors import OptionError
from pyromq.protocol.errors import RocketMQError
from pyromq.tls.client import Tls
from pyromq.tls.command_options import tls_options

#: The first match counts; 1 is for every other failure, 2 for a wrong command line.
EXIT_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (NotFoundError, 3),
    (UnreachableError, 4),
    (NotPermittedError, 5),
)
#: The exit code of a process that SIGINT ended, as shells count.
_INTERRUPTED: Final = 130
#: mqadmin's file with the account of the tools, below ROCKETMQ_HOME.
_TOOLS_FILE: Final = Path("conf/tools.yml")
_MAX_TOOLS_FILE: Final = 64 * 1024

namesrv_option = click.option(
    "-n",
    "--namesrvAddr",
    "--namesrv",
    "namesrv",
    metavar="ADDRESSES",
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    default=DEFAULT_NAMESRV,
    show_default=True,
    help="Connect to these NameServers, given as host:port[;host:port].",
)
_timeout_option = click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(0.01),
    default=5.0,
    show_default=True,
    help="Limit each request to this time.",
)
_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON value on one line."
)
_watch_option = click.option(
    "--watch",
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    help="Repeat at this interval until interrupted.",
)
_yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation; only a terminal is asked."
)
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would be done, and change nothing."
)


class Run(Output):
    """One run of a command: the admin API, the output, and questions to the user."""

    def __init__(
        self, admin: Admin, *, as_json: bool, yes: bool = True, dry_run: bool = False
    ) -> None:
        super().__init__(as_json=as_json)
        self.admin = admin
        self.dry_run = dry_run
        self._yes = yes

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar on a terminal's stderr; yields a function of done and total."""
        with count_progress(is_transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def confirmed(self, change: str) -> bool:
        """Return whether to make a change; `change` is an imperative: "Delete topic x".

        With `--dry-run` it is printed and False returned. A terminal is asked unless `--yes` is
        given, and a no ends the command with exit code 1.
        """
        if self.dry_run:
            self.result({"dry_run": True, "change": change})
            self.line(f"dry run, nothing is changed: {change}")
            return False
        if not self._yes and _is_at_terminal():
            click.confirm(f"{change}?", abort=True, err=True)
        return True


@contextmanager
def showing_partial_results(show: Callable[[Sequence[Any]], None]) -> Iterator[None]:
    """Show the results of the servers that answered before the error about the others ends it."""
    try:
        yield
    except PartialFailureError as error:
        show(error.results)
        raise


class AdminCommand(click.Command):
    """A command that accepts long options with one hyphen, as mqadmin does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn `-topic` into `--topic` if there is such an option and `-t` is not meant."""
        long = {
            name for parameter in self.params for name in parameter.opts if name.startswith("--")
        }
        return super().parse_args(
            ctx, [f"-{word}" if f"-{word.partition('=')[0]}" in long else word for word in args]
        )


def admin_command(
    name: str, *, watch: bool = False, destructive: bool = False, examples: Sequence[str] = ()
) -> Callable[[Callable[..., Awaitable[None]]], click.Command]:
    """Return a decorator that makes a command; its docstring is the help text.

    Each of `examples` is the part of a command line after the command's name.
    """

    def decorate(function: Callable[..., Awaitable[None]]) -> click.Command:
        def command(
            namesrv: str,
            timeout: float,
            as_json: bool,
            access_key: str,
            secret_key: str,
            security_token: str,
            tls: bool | Tls,
            watch: float | None = None,
            yes: bool = True,
            dry_run: bool = False,
            **options: Any,
        ) -> None:
            if not access_key and not secret_key:
                access_key, secret_key, security_token = _tools_account()

            async def run() -> None:
                async with Admin(
                    namesrv,
                    timeout=timeout,
                    access_key=access_key,
                    secret_key=secret_key,
                    security_token=security_token,
                    tls=tls,
                ) as admin:
                    of_run = Run(admin, as_json=as_json, yes=yes, dry_run=dry_run)
                    await function(of_run, **options)
                    while watch is not None:
                        await asyncio.sleep(watch)
                        if of_run.is_terminal:
                            click.clear()
                        try:
                            await function(of_run, **options)
                        except AdminError as error:
                            # A server may be restarting: a watch lasts until it is interrupted.
                            of_run.note(f"Error: {error}")

            try:
                asyncio.run(run())
            except OptionError as error:
                raise click.UsageError(str(error)) from error
            except BrokenPipeError:
                raise  # the reader of the output has enough; click ends the process
            except (RocketMQError, OSError) as error:
                _fail(error)
            except KeyboardInterrupt:
                raise SystemExit(_INTERRUPTED) from None

        command.__doc__ = inspect.cleandoc(function.__doc__ or "") + _examples(name, examples)
        # The command's own options first, in the order of their decorators.
        own = list(getattr(function, "__click_params__", []))
        common: list[OptionDecorator] = [
            *([_watch_option] if watch else []),
            *([_yes_option, _dry_run_option] if destructive else []),
            namesrv_option,
            _timeout_option,
            _json_option,
            access_key_option,
            secret_key_option,
            security_token_option,
            tls_options,
        ]
        decorated = add_options(*common)(command)
        parameters = getattr(decorated, "__click_params__", [])
        parameters.extend(own)  # click lists the last one first
        return click.command(name, cls=AdminCommand)(decorated)

    return decorate


def _examples(name: str, examples: Sequence[str]) -> str:
    if not examples:
        return ""
    lines = [f"    pyromq admin {name} {words}".rstrip() for words in examples]
    return "\n\n\b\nExamples\n" + "\n".join(lines)


def exit_code(error: Exception) -> int:
    """Return the exit code for a failure."""
    if isinstance(error, PartialFailureError):
        codes = {exit_code(each) for each in error.failures.values()}
        return codes.pop() if len(codes) == 1 and not error.done else 1
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def _fail(error: Exception) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    raise SystemExit(exit_code(error)) from error


def _is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _tools_account() -> tuple[str, str, str]:
    """Return the keys and token of mqadmin's tools.yml, or empty ones."""
    home = os.environ.get("ROCKETMQ_HOME")
    if not home:
        return "", "", ""
    path = Path(home) / _TOOLS_FILE
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TOOLS_FILE)
    except FileNotFoundError:
        return "", "", ""
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from error
    values = {}
    for line in content.decode(errors="replace").splitlines():
        key, colon, value = line.partition(":")
        if colon and not key.startswith((" ", "#")):
            values[key.strip()] = _scalar(value)
    key, secret = values.get("accessKey", ""), values.get("secretKey", "")
    return (key, secret, values.get("securityToken", "")) if key and secret else ("", "", "")


def _scalar(text: str) -> str:
    """Return a YAML scalar of one line: quoted, or plain up to a comment."""
    text = text.strip()
    if text[:1] in ("'", '"') and text.find(text[0], 1) > 0:
        return text[1 : text.find(text[0], 1)]
    return text.partition(" #")[0].strip()
