"""Options that several admin commands have: topic, group, broker, cluster.

Names are mqadmin's. Topic names are completed by the shell from the NameServer. Imported while a
command is parsed, on the main thread.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from pyromq.admin.admin import Admin
from pyromq.base.command_options import DEFAULT_NAMESRV, Command, OptionDecorator
from pyromq.protocol.errors import RocketMQError

#: A completion must not keep a person waiting.
_COMPLETION_SECONDS: Final = 1.0


def complete_topic(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the topics that begin like the incomplete word."""
    del parameter
    namesrv = context.params.get("namesrv") or DEFAULT_NAMESRV

    async def ask() -> list[str]:
        async with Admin(namesrv, timeout=_COMPLETION_SECONDS) as admin:
            return await admin.topics.names()

    try:
        names = asyncio.run(ask())
    except (RocketMQError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def topic_option(help_text: str, *, required: bool = True, **others: Any) -> OptionDecorator:
    """Return `-t/--topic`."""
    return click.option(
        "-t",
        "--topic",
        metavar="TOPIC",
        required=required,
        callback=_trimmed,
        shell_complete=complete_topic,
        help=help_text,
        **others,
    )


def text_option(short: str, long: str, name: str, help_text: str, **others: Any) -> OptionDecorator:
    """Return an option with a value, trimmed as mqadmin does."""
    return click.option(short, long, name, callback=_trimmed, help=help_text, **others)


def body_size_option(long: str = "--size") -> OptionDecorator:
    """Return `-s`, the size of the bodies that a command sends."""
    return click.option(
        "-s",
        long,
        "size",
        type=click.IntRange(1),
        default=128,
        show_default=True,
        help="Send bodies of this many bytes.",
    )


def flag_value_option(
    short: str, long: str, name: str, help_text: str, **others: Any
) -> OptionDecorator:
    """Return an option whose value is true or false; as in Java, all but "true" is false."""
    return click.option(
        short, long, name, metavar="true|false", callback=_boolean, help=help_text, **others
    )


def target_options(*, cluster: str = "--clusterName") -> OptionDecorator:
    """Return `-b/--brokerAddr` and `-c/--clusterName`: one of them is required.

    The command receives `broker` and `cluster`, of which one is None.
    """

    def decorate(command: Command) -> Command:
        command = click.option(
            "-c",
            cluster,
            "cluster",
            metavar="NAME",
            callback=_one_target,
            help="Do so at all brokers of this cluster.",
        )(command)
        return click.option(
            "-b",
            "--brokerAddr",
            "broker",
            metavar="ADDRESS",
            callback=_trimmed,
            is_eager=True,
            help="Do so at the broker at this address (host:port).",
        )(command)

    return decorate


def _trimmed(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del context
    if value is None:
        return None
    value = value.strip()
    if not value and getattr(parameter, "required", False):
        raise click.BadParameter("must not be empty")
    return value


def _one_target(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    value = _trimmed(context, parameter, value)
    if (value is None) == (context.params.get("broker") is None):
        raise click.UsageError("Give either -b/--brokerAddr or -c/--clusterName.", context)
    return value


def _boolean(
    context: click.Context, parameter: click.Parameter, value: str | bool | None
) -> bool | None:
    del context, parameter
    if value is None or isinstance(value, bool):
        return value
    return value.strip().lower() == "true"
