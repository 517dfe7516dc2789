"""Turns errors of OpenSSL into sentences that say what is wrong, where, and what to do.

Pure. Used by both ends of a connection, and when certificates are loaded.
"""

from __future__ import annotations

import ssl
from typing import Final

#: OpenSSL's reason to what it means to the end that sees it.
_REASONS: Final = {
    "CERTIFICATE_REQUIRED": "the server wants a client certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server wants a client certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has sent no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority of this end's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer does not accept this end's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not accept this end's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer says that this end's certificate has expired",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer refused the handshake: it wants a client "
    "certificate, or other ciphers",
    "NO_SHARED_CIPHER": "the client offers no cipher that this server accepts",
    "UNSUPPORTED_PROTOCOL": "the peer speaks only versions below TLS 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer speaks no version of TLS that this end accepts",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS on this port",
    "HTTP_REQUEST": "the peer speaks HTTP",
}
_CLOSED: Final = (
    "the server closed the connection during the TLS handshake: it serves no TLS on this port "
    "(tls.server.mode), or refuses this client"
)


class TlsError(Exception):
    """TLS is configured but cannot be used; the text names the setting, the file and the reason."""


def describe(error: BaseException) -> str:
    """Return what went wrong on a TLS connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLEOFError):
        return _CLOSED
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        known = _REASONS.get(reason)
        text = reason.lower().replace("_", " ") or str(error)
        return f"{known} ({text})" if known else f"TLS failed: {text}"
    return str(error) or type(error).__name__


def describe_connect(error: BaseException) -> str:
    """Return why a TLS connection to a server could not be opened."""
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return _CLOSED
    return describe(error)
