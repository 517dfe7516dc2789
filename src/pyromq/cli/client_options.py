"""The options of commands that talk to servers: cluster, identity, encryption.

`client_options` adds them to a command that uses clients and passes them on as `cluster`.
`identity_options` is for commands that send single requests to servers; they get an `identity`.
Called while a command is parsed, on the main thread.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
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
from pyromq.protocol.wire import acl
from pyromq.remoting.client import RemotingClient
from pyromq.tls.client import client_tls
from pyromq.tls.command_options import tls_options


@dataclass(frozen=True, slots=True)
class Cluster:
    """The NameServers' addresses and the options every client takes."""

    namesrv: str
    options: ClientOptions


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends requests, and how they are encrypted."""

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool | Tls = False

    def client(self, **options: Any) -> RemotingClient:
        """Return a client with these options that signs its requests, if there are keys."""
        return RemotingClient(
            **options,
            tls=client_tls(self.tls),
            before_request=acl.signer(self.access_key, self.secret_key),
        )


def identity_options(command: Command) -> Command:
    """Add keys and TLS; pass them on as `identity`."""

    @functools.wraps(command)
    def with_options(access_key: str, secret_key: str, tls: bool | Tls, **others: Any) -> Any:
        if bool(access_key) != bool(secret_key):
            raise click.UsageError("--access-key and --secret-key must be given together.")
        return command(identity=Identity(access_key, secret_key, tls), **others)

    return add_options(access_key_option, secret_key_option, tls_options)(with_options)


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
