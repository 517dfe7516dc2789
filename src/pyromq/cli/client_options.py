"""The options of every client command: cluster, identity, encryption.

`client_options` adds them to a command and passes them on as `cluster`. Called while a command
is parsed, on the main thread.
"""

from __future__ import annotations

import functools
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
)
from pyromq.client import ClientOptions, Tls
from pyromq.tls.command_options import tls_options


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
        tls: bool | Tls,
        **others: Any,
    ) -> Any:
        options: ClientOptions = {
            "namespace": namespace,
            "access_key": access_key,
            "secret_key": secret_key,
            "security_token": security_token,
            "tls": tls,
        }
        return command(cluster=Cluster(namesrv, options), **others)

    return add_options(
        namesrv_option,
        click.option("--namespace", default="", help="Use the topics and groups of this tenant."),
        access_key_option,
        secret_key_option,
        security_token_option,
        tls_options,
    )(with_options)
