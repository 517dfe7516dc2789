"""Command-line options for TLS, shared by the clients of `pyromq.cli` and the Spark jobs.

    @click.command()
    @tls_options
    def command(tls: bool | Tls) -> None: ...

Callers apply the options while their command's module is imported, on the main thread.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import click

from pyromq.base.command_options import Command, OptionDecorator, add_options
from pyromq.tls.client import Tls, client_tls
from pyromq.tls.errors import TlsError

_OPTIONS: Final[tuple[OptionDecorator, ...]] = (
    click.option(
        "--tls",
        is_flag=True,
        help="Encrypt connections; servers need a certificate that an authority of the system has "
        "signed.",
    ),
    click.option(
        "--tls-ca",
        metavar="FILE",
        help="Encrypt connections and trust the authorities in this PEM file instead.",
    ),
    click.option("--tls-cert", metavar="FILE", help="Present the certificate in this PEM file."),
    click.option("--tls-key", metavar="FILE", help="Read the key of --tls-cert from this file."),
    click.option(
        "--tls-key-password",
        metavar="TEXT",
        envvar="ROCKETMQ_TLS_KEY_PASSWORD",
        show_envvar=True,
        help="Decrypt --tls-key with this password. Prefer the environment variable: other users "
        "of the machine can read the command line.",
    ),
    click.option(
        "--tls-server-name",
        metavar="NAME",
        help="Expect this name in the certificates of servers, instead of the host of their "
        "address.",
    ),
    click.option(
        "--tls-insecure",
        is_flag=True,
        help="Encrypt connections without verifying certificates: the server may be anybody.",
    ),
)


def tls_options(command: Command) -> Command:
    """Add `--tls` and its relatives; the command receives them as `tls`."""

    @functools.wraps(command)
    def with_options(
        tls: bool,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        tls_key_password: str | None,
        tls_server_name: str | None,
        tls_insecure: bool,
        **others: Any,
    ) -> Any:
        given = (tls_ca, tls_cert, tls_key, tls_server_name)
        options: bool | Tls = tls
        if tls_insecure or any(value is not None for value in given):
            try:
                options = Tls(
                    *given[:3], tls_key_password, tls_server_name, verify=not tls_insecure
                )
                client_tls(options)  # a bad file is a matter of the command line
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            except TlsError as error:
                raise click.ClickException(str(error)) from error
        return command(tls=options, **others)

    return add_options(*_OPTIONS)(with_options)
