"""TLS for connections to servers.

By default RocketMQ's servers present a self-signed certificate and its clients verify none.
`tls=True` does the same: traffic is encrypted, but the server is not authenticated. To
authenticate it, pass an `ssl.SSLContext` with your own certificate authority.
"""

from __future__ import annotations

import ssl


def client_context(tls: bool | ssl.SSLContext) -> ssl.SSLContext | None:
    """Return the context for a client's connections, or None for plain TCP."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
