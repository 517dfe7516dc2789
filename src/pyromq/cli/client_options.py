"""The options of every command that is a client: which cluster, as whom, how connected.

`client_options` adds them; the command gets them as `cluster`. Secrets can come from the
environment: a command line is for everybody on the machine to see. Used when a command
starts, on the main thread.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pyromq.cli.running import namesrv_option

if TYPE_CHECKING:
    from pyromq.client import ClientOptions


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the NameServers are, and what every client is told."""

    namesrv: str
    options: ClientOptions


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--namesrv`, `--namespace`, keys and TLS."""

    @functools.wraps(command)
    def with_options(
        namesrv: str,
        namespace: str,
        access_key: str,
        secret_key: str,
        security_token: str,
        tls: bool,
        tls_ca: str | None,
        **others: Any,
    ) -> Any:
        options: ClientOptions = {
            "namespace": namespace,
            "access_key": access_key,
            "secret_key": secret_key,
            "security_token": security_token,
            "tls": tls if tls_ca is None else _context(tls_ca),
        }
        return command(cluster=Cluster(namesrv, options), **others)

    for option in reversed(
        (
            namesrv_option,
            click.option(
                "--namespace", default="", help="The tenant whose topics and groups are meant."
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
                "--security-token",
                envvar="ROCKETMQ_SECURITY_TOKEN",
                show_envvar=True,
                default="",
                help="The token of temporary keys.",
            ),
            click.option(
                "--tls", is_flag=True, help="Encrypt; the server's certificate is not checked."
            ),
            click.option(
                "--tls-ca",
                metavar="FILE",
                help="Encrypt; the server needs a certificate of this authority (PEM).",
            ),
        )
    ):
        with_options = option(with_options)
    return with_options


def _context(authority: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        # An SSLError is an OSError too, with words of its own.
        reason = error.strerror or str(error)
        raise click.ClickException(f"--tls-ca {authority} cannot be used: {reason}") from error
    # Brokers are known by addresses, as NameServers give them; certificates name hosts.
    context.check_hostname = False
    return context
