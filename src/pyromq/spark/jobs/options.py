"""Command-line options that several Spark jobs share, and parsers for their values.

    @click.command("archive")
    @cluster_options                      # passes `cluster: ConnectionSettings`
    @spark_options                        # passes `spark: SparkSettings`
    @clear_errors()
    def command(cluster: ConnectionSettings, spark: SparkSettings, ...) -> None:
        with running_job(spark) as job: ...

Importing this module does not load Spark. Called on the main thread.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from pyromq.base.command_options import (
    Command,
    OptionDecorator,
    access_key_option,
    add_options,
    namesrv_option,
    secret_key_option,
)
from pyromq.spark.origins.settings import ConnectionSettings
from pyromq.tls.client import Tls
from pyromq.tls.command_options import tls_options


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where and how Spark runs. Without a `master` it runs on this machine."""

    master: str | None = None
    app_name: str = "pyromq"
    conf: dict[str, str] = field(default_factory=dict)


def cluster_options(command: Command) -> Command:
    """Add `--namesrv`, the keys and `--tls`; the command receives them as `cluster`."""

    @functools.wraps(command)
    def with_options(
        namesrv: str, access_key: str, secret_key: str, tls: bool | Tls, **others: Any
    ) -> Any:
        cluster = connection_settings(namesrv, access_key, secret_key, tls)
        return command(cluster=cluster, **others)

    return add_options(namesrv_option, access_key_option, secret_key_option, tls_options)(
        with_options
    )


def connection_settings(
    namesrv: str, access_key: str, secret_key: str, tls: bool | Tls
) -> ConnectionSettings:
    """Return settings for NameServers that are given as `host:port[;host:port]`."""
    servers = tuple(part.strip() for part in namesrv.split(";") if part.strip())
    return ConnectionSettings(servers, access_key, secret_key, tls)


def spark_options(command: Command) -> Command:
    """Add `--master`, `--conf` and `--app-name`; the command receives them as `spark`."""

    @functools.wraps(command)
    def with_options(
        master: str | None, conf: tuple[str, ...], app_name: str, **others: Any
    ) -> Any:
        settings = SparkSettings(master, app_name, dict(map(_spark_setting, conf)))
        return command(spark=settings, **others)

    return add_options(_master_option, _conf_option, _app_name_option)(with_options)


_master_option: Final[OptionDecorator] = click.option(
    "--master",
    metavar="URL",
    help="Run Spark there: local[4], spark://host:7077, yarn, k8s://..., or sc://host:15002 "
    "for Spark Connect.  [default: this machine, all of its cores]",
)
_conf_option: Final[OptionDecorator] = click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a Spark property, such as spark.executor.memory=4g. Repeatable.",
)
_app_name_option: Final[OptionDecorator] = click.option(
    "--app-name",
    default="pyromq",
    show_default=True,
    help="Give the job this name in Spark.",
)


def _spark_setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.startswith("spark."):
        raise click.UsageError(f"--conf {text!r}: expected spark.KEY=VALUE")
    return key, value


#: For jobs that work on stores.
stores_argument: Final[OptionDecorator] = click.argument(
    "stores", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="STORE..."
)
part_size_option: Final[OptionDecorator] = click.option(
    "--part-size",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    metavar="MIB",
    help="Let each task decode this much of a log.",
)


def parse_optional_time(option: str, text: str | None) -> int | None:
    """Return the milliseconds of a time given to an option, or None if it was not given."""
    return None if text is None else parse_time(option, text)


def parse_time(option: str, text: str, alternatives: str = "") -> int:
    """Return the milliseconds of a time such as 2026-11-16T05:00:00Z. The default zone is UTC.

    `alternatives` names other accepted values in the error message ("earliest or ").
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option} {text!r}: expected {alternatives}a time such as 2026-11-16T05:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
