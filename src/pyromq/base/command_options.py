"""Command-line options that `pyromq.cli` and the Spark jobs share.

    @click.command()
    @add_options(namesrv_option, access_key_option, secret_key_option)
    def command(namesrv: str, access_key: str, secret_key: str) -> None: ...

Secrets may come from the environment, because every user of the machine can read a command
line. Callers apply the options while their command's module is imported, on the main thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

#: A click command function, or a function that will become one.
Command = Callable[..., Any]
#: Adds one or more options to a command.
OptionDecorator = Callable[[Command], Command]

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"


def add_options(*options: OptionDecorator) -> OptionDecorator:
    """Return a decorator that adds `options`; `--help` lists them in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


namesrv_option: Final[OptionDecorator] = click.option(
    "--namesrv",
    "--nameserver",
    "namesrv",
    metavar="ADDRESSES",
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    default=DEFAULT_NAMESRV,
    show_default=True,
    help="Connect to these NameServers, given as host:port[;host:port].",
)

access_key_option: Final[OptionDecorator] = click.option(
    "--access-key",
    envvar="ROCKETMQ_ACCESS_KEY",
    show_envvar=True,
    default="",
    help="Sign requests as this user, for brokers with access control.",
)

secret_key_option: Final[OptionDecorator] = click.option(
    "--secret-key",
    envvar="ROCKETMQ_SECRET_KEY",
    show_envvar=True,
    default="",
    help="Sign requests with this key. Prefer the environment variable: other users of the "
    "machine can read the command line.",
)

security_token_option: Final[OptionDecorator] = click.option(
    "--security-token",
    envvar="ROCKETMQ_SECURITY_TOKEN",
    show_envvar=True,
    default="",
    help="Send this security token along with temporary keys.",
)

#: For commands that work on the files of a store.
store_config_option: Final[OptionDecorator] = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Read file sizes and directories from this broker properties file.",
)


def missing_package(command: str, error: ModuleNotFoundError) -> click.ClickException:
    """Return an error that names the package a command lacks; raise `error` if it is our own."""
    if (error.name or "").startswith("pyromq"):
        raise error
    return click.ClickException(
        f"{command} needs the package {error.name}, which is not installed: "
        "pip install 'pyromq[spark]'"
    )
