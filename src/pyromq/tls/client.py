"""TLS of connections to servers: which authorities to trust, and which certificate to present.

    Producer("rocketmq.example.com:9876", tls=Tls(ca="ca.pem", cert="me.pem", key="me.key"))

By default the server's certificate must be signed by a trusted authority and name the host of the
address. NameServers hand out addresses of brokers, usually as IP addresses: their certificates need
these addresses as subject alternative names, or clients set `server_name`.

`ClientTls` is what connections use; its context may be replaced while it is in use.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from typing import Any

from pyromq.tls.contexts import KeyPair, new_client_context


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client verifies servers, and how it identifies itself. Files are in PEM format."""

    #: Trusts the authorities in this file, instead of the system's.
    ca: str | None = None
    #: Presents the certificate chain in this file to servers that ask for one. It needs `key`.
    cert: str | None = None
    #: The file of the private key that belongs to `cert`.
    key: str | None = None
    #: Decrypts the private key.
    key_password: str | None = field(default=None, repr=False)
    #: Expects this name in every server's certificate, instead of the host of its address.
    server_name: str | None = None
    #: False accepts any certificate: traffic is encrypted, but the server may be anybody.
    verify: bool = True
    #: False accepts a trusted certificate of another host.
    check_hostname: bool = True

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key", "key_password", "server_name"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"Tls.{name}: expected a text or None, got {type(value).__name__}")
        for name in ("verify", "check_hostname"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"Tls.{name}: expected True or False")
        if bool(self.cert) != bool(self.key):
            raise ValueError("Tls.cert and Tls.key must be given together")
        if not self.verify and (self.ca or self.server_name):
            raise ValueError("Tls.verify=False contradicts Tls.ca and Tls.server_name")


class ClientTls:
    """The TLS of outgoing connections."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        #: Used by the next connection.
        self.context = context
        self._server_name = server_name

    def arguments(self, host: str) -> dict[str, Any]:
        """Return the arguments for `loop.create_connection` to a host."""
        return {"ssl": self.context, "server_hostname": self._server_name or host}

    def wrap(self, connected: socket.socket, host: str) -> ssl.SSLSocket:
        """Do the handshake on a connected socket."""
        return self.context.wrap_socket(connected, server_hostname=self._server_name or host)


def client_tls(tls: bool | Tls | ssl.SSLContext) -> ClientTls | None:
    """Return the TLS of a client's connections, or None for plain ones. Raises TlsError.

    True verifies servers with the authorities of the system.
    """
    if isinstance(tls, ssl.SSLContext):
        return ClientTls(tls)
    if not tls:
        return None
    options = Tls() if tls is True else tls
    context = new_client_context(
        is_verified=options.verify,
        checks_host=options.check_hostname,
        authorities=options.ca,
        setting="tls.ca",
    )
    if options.cert and options.key:
        KeyPair(options.cert, options.key, options.key_password, "tls.cert", "tls.key").load_into(
            context
        )
    return ClientTls(context, options.server_name)
