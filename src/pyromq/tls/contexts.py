"""Builds `ssl.SSLContext` objects from files, with errors that name the setting and the file.

Invariants
1. TLS 1.2 and 1.3 only. TLS 1.2 is limited to ECDHE with AES-GCM or ChaCha20. Clients cannot
   renegotiate, and there is no compression.
2. A context is complete or not built at all: certificate and key match, and a handshake in memory
   has succeeded with them. So a half-written file never reaches a connection.
3. Servers offer no session resumption: connections live long, and each client certificate is
   verified whenever its client connects.

Reads files; called at start-up and, for a reload, in a thread.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.base.log_lines import RARELY
from pyromq.tls.errors import TlsError, describe
from pyromq.tls.settings import ClientAuth, TlsSettings

logger = logging.getLogger(__name__)

#: The ciphers of TLS 1.2, fastest first. Python leaves those of TLS 1.3 to OpenSSL.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name.
_NO_CHECK_TIME: Final = 0x200000
_CLIENT_AUTH: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


class Loaded(NamedTuple):
    """A context, and a sentence about its certificate for the log."""

    context: ssl.SSLContext
    note: str
    #: Whether the certificate is valid.
    is_sound: bool = True
    #: When the certificate expires, in seconds since the epoch; None if that is unknown.
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate chain and its private key, with the settings that name them."""

    cert: str
    key: str
    password: str | None = None
    cert_setting: str = "tls.server.certPath"
    key_setting: str = "tls.server.keyPath"

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load certificate and key. Raises TlsError."""
        cert, key = expanded(self.cert), expanded(self.key)
        _check_readable(self.cert_setting, cert)
        _check_readable(self.key_setting, key)
        try:
            # A password that is not a string keeps OpenSSL from asking on the terminal.
            context.load_cert_chain(cert, key, lambda: self.password or "")
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(self._fault(error, key)) from error
        if Path(key).stat().st_mode & 0o077:
            logger.warning(
                "%s=%s: other users of this machine can read the key; run chmod 600 %s",
                self.key_setting,
                self.key,
                key,
                extra={**RARELY, "kind": key},
            )

    def _fault(self, error: Exception, key: str) -> str:
        """Return why the pair cannot be loaded: OpenSSL says only "PEM lib" for most reasons."""
        reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
        where = f"{self.cert_setting}={self.cert}, {self.key_setting}={self.key}"
        text = Path(key).read_bytes()
        if reason == "KEY_VALUES_MISMATCH":
            return f"{where}: the key does not belong to the certificate"
        if not _has_certificate(expanded(self.cert)):
            return f"{self.cert_setting}={self.cert}: no certificate in PEM format"
        if b"PRIVATE KEY" not in text:
            return f"{self.key_setting}={self.key}: no private key in PEM format"
        if b"ENCRYPTED" not in text:
            return f"{where}: {(reason or str(error)).lower().replace('_', ' ')}"
        if not self.password:
            return f"{self.key_setting}={self.key}: the key is encrypted, but no password is set"
        blank = (
            "; the password ends with white space" if self.password.strip() != self.password else ""
        )
        return (
            f"{self.key_setting}={self.key}: wrong password, or an encryption that OpenSSL 3 does "
            f"not read (RC4, as in RocketMQ's guide){blank}; convert such a key with: openssl "
            "pkcs8 -provider legacy -provider default -in OLD -topk8 -v1 PBE-SHA1-3DES -out NEW"
        )


def server_context(settings: TlsSettings) -> Loaded:
    """Build the context of a server's ports. Raises TlsError."""
    pair = KeyPair(
        settings.tls_server_cert_path or "",
        settings.tls_server_key_path or "",
        settings.tls_server_key_password,
    )
    context = new_server_context()
    pair.load_into(context)
    if settings.verifies_clients:
        load_authorities(context, "tls.server.trustCertPath", settings.tls_server_trust_cert_path)
        context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    is_sound, validity = _validity(pair)
    note = f"certificate {pair.cert} is {validity}"
    return Loaded(context, note, is_sound, _expiry(pair))


def client_context(settings: TlsSettings) -> Loaded:
    """Build the context of a server's own connections to other servers. Raises TlsError."""
    if settings.tls_test_mode_enable:
        return Loaded(new_client_context(is_verified=False), "any certificate is accepted")
    context = new_client_context(
        is_verified=settings.tls_client_auth_server,
        checks_host=settings.tls_client_check_host_name,
        authorities=settings.tls_client_trust_cert_path,
        setting="tls.client.trustCertPath",
    )
    if not settings.tls_client_cert_path:
        return Loaded(context, "without a client certificate")
    pair = KeyPair(
        settings.tls_client_cert_path,
        settings.tls_client_key_path or "",
        settings.tls_client_key_password,
        "tls.client.certPath",
        "tls.client.keyPath",
    )
    pair.load_into(context)
    return Loaded(context, f"client certificate {pair.cert}", expires=_expiry(pair, is_client=True))


def new_server_context() -> ssl.SSLContext:
    """Return the context of a server, still without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= (
        ssl.OP_NO_RENEGOTIATION
        | ssl.OP_NO_COMPRESSION
        | ssl.OP_NO_TICKET
        | ssl.OP_CIPHER_SERVER_PREFERENCE
    )
    context.num_tickets = 0
    return context


def new_client_context(
    *,
    is_verified: bool = True,
    checks_host: bool = True,
    authorities: str | None = None,
    setting: str = "ca",
) -> ssl.SSLContext:
    """Return the context of a client; without `authorities`, those of the system count."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.check_hostname = checks_host
    if authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        load_authorities(context, setting, authorities)
    return context


def load_authorities(context: ssl.SSLContext, setting: str, path: str | None) -> None:
    """Trust the certificates in a file. Raises TlsError."""
    file = expanded(path or "")
    _check_readable(setting, file)
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        raise TlsError(f"{setting}={path}: no certificate in PEM format") from error


def expanded(path: str) -> str:
    """Return a path with the home directory in place of `~`."""
    return str(Path(path).expanduser())


def _check_readable(setting: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise TlsError(f"{setting}={path}: {error.strerror}") from error


def _has_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        return False
    return True


def _validity(pair: KeyPair) -> tuple[bool, str]:
    """Return whether a certificate is valid, and until when or why not.

    A handshake in memory also proves that the key works.
    """
    try:
        peer = _peer_certificate(pair)
    except ssl.SSLCertVerificationError as error:
        return False, f"refused by clients that verify it: {error.verify_message.rstrip('.')}"
    except ssl.SSLError as error:
        raise TlsError(f"{pair.cert_setting}={pair.cert}: {describe(error)}") from error
    return True, f"valid until {peer.get('notAfter', 'an unknown time')}"


def _expiry(pair: KeyPair, *, is_client: bool = False) -> float | None:
    """Return when a certificate expires or expired, in seconds since the epoch."""
    try:
        found = _peer_certificate(pair, is_client=is_client, more_flags=_NO_CHECK_TIME)
    except ssl.SSLError:
        return None
    expires = found.get("notAfter")
    return float(ssl.cert_time_to_seconds(expires)) if isinstance(expires, str) else None


def _peer_certificate(
    pair: KeyPair, *, is_client: bool = False, more_flags: int = 0
) -> Mapping[str, object]:
    """Return a certificate as the standard library shows it. Raises ssl.SSLError.

    It cannot parse a certificate, but a peer that trusts exactly this one can: it completes a
    handshake in memory. The peer is a client, or a server for the certificate of a client.
    """
    server_side, client_side = new_server_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    pair.load_into(server_side)
    client_side.check_hostname = False
    verifying = client_side
    if is_client:
        pair.load_into(client_side)
        client_side.verify_mode = ssl.CERT_NONE
        verifying = server_side
        verifying.verify_mode = ssl.CERT_REQUIRED
    verifying.verify_flags |= ssl.VerifyFlags(
        ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | more_flags
    )
    verifying.load_verify_locations(cafile=expanded(pair.cert))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return (server if is_client else client).getpeercert() or {}
