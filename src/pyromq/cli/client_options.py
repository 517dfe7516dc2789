"""The options of every client command: cluster, identity, encryption.

`client_options` adds them to a command and passes them on as `cluster`. Called while a command
is parsed, on the main thread.
"""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass
from typing import Any

import click

from pyromq.base.command_options import (
    Command,
    access_key_option,
    add_options,
    namesrv_option,
    secret_key_option,
    security_token_option,
    tls_option,
)
from pyromq.client import ClientOptions


@dataclass(frozen=True, slots=True)
class Cluster:
    """The NameServers' addresses and the options every client takes."""

    namesrv: str
    options: ClientOptions


def client_options(command: Command) -> Command:
    """Add `--namesrv`, `--namespace`, keys and TLS; pass them on as `cluster`."""

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

    return add_options(
        namesrv_option,
        click.option("--namespace", default="", help="Use the topics and groups of this tenant."),
        access_key_option,
        secret_key_option,
        security_token_option,
        tls_option,
        click.option(
            "--tls-ca",
            metavar="FILE",
            help="Encrypt connections and require a certificate signed by this authority (PEM).",
        ),
    )(with_options)


def _context(authority: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        # An SSLError is an OSError without strerror.
        reason = error.strerror or str(error)
        raise click.ClickException(f"cannot load --tls-ca {authority}: {reason}") from error
    # NameServers hand out broker addresses, but certificates name hosts.
    context.check_hostname = False
    return context
