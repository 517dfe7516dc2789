"""TLS for connections to servers.

RocketMQ's servers present a certificate that nobody has signed unless told otherwise, and
its clients check none unless told otherwise. So does `tls=True` here: the bytes are hidden,
the server is not proved. For more, give an `ssl.SSLContext` with your own authority.
"""

from __future__ import annotations

import ssl


def client_context(tls: bool | ssl.SSLContext) -> ssl.SSLContext | None:
    """What a client's connections use; None for plain TCP."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
