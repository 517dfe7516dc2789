"""Makes certificates for tests: an authority, a server's and a client's, or a self-signed one.

Needs the `cryptography` package (extra `pyromq[tls]`), which is imported when a certificate is
made. Keys are P-256, unencrypted PKCS#8, which OpenSSL and Java read; their files have mode 0600.

Used by `pyromq tls make-test-certs`, by servers in test mode, and by tests.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyromq.base.atomic_file import write_file
from pyromq.tls.contexts import KeyPair, Loaded, new_server_context
from pyromq.tls.errors import TlsError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DEFAULT_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_PUBLIC, _PRIVATE = 0o644, 0o600
#: Clocks of two machines may differ.
_SKEW: Final = dt.timedelta(minutes=5)
_TLS_FILE: Final = """\
# For servers: tls.config.file={directory}/tls.properties
tls.server.mode=enforcing
tls.test.mode.enable=false
tls.server.certPath={directory}/server.pem
tls.server.keyPath={directory}/server.key
tls.server.need.client.auth=require
tls.server.authClient=true
tls.server.trustCertPath={directory}/ca.pem
tls.client.certPath={directory}/client.pem
tls.client.keyPath={directory}/client.key
tls.client.authServer=true
tls.client.trustCertPath={directory}/ca.pem
"""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: its certificate and its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    @classmethod
    def new(cls, name: str = "pyromq test authority", *, days: float = 30) -> Authority:
        """Make an authority. Raises TlsError without the `cryptography` package."""
        key = _new_key()
        return cls(_certificate(name, key, None, (), days), key)

    def issue(
        self, name: str, hosts: Sequence[str] = (), *, days: float = 30
    ) -> tuple[bytes, bytes]:
        """Return the certificate chain and the key of a new certificate, in PEM format.

        With `hosts` it is for a server, without it for a client. Negative `days` make a certificate
        that has expired.
        """
        key = _new_key()
        certificate = _certificate(name, key, self, hosts, days)
        return _pem(certificate) + _pem(self.certificate), _key_pem(key)


def make_test_certificates(
    directory: Path, hosts: Sequence[str] = DEFAULT_HOSTS, *, days: float = 30
) -> list[Path]:
    """Write ca, server and client certificates with keys, and a TLS file; return the paths.

    Raises TlsError, or OSError.
    """
    authority = Authority.new(days=days)
    directory = directory.absolute()
    server, server_key = authority.issue("pyromq test server", hosts, days=days)
    client, client_key = authority.issue("pyromq test client", days=days)
    files = {
        "ca.pem": (_pem(authority.certificate), _PUBLIC),
        "ca.key": (_key_pem(authority.key), _PRIVATE),
        "server.pem": (server, _PUBLIC),
        "server.key": (server_key, _PRIVATE),
        "client.pem": (client, _PUBLIC),
        "client.key": (client_key, _PRIVATE),
        "tls.properties": (_TLS_FILE.format(directory=directory).encode(), _PRIVATE),
    }
    for name, (content, mode) in files.items():
        write_file(directory / name, content, mode=mode)
    return [directory / name for name in files]


def self_signed_context() -> Loaded:
    """Return the context of a server in test mode. Raises TlsError."""
    key = _new_key()
    certificate = _certificate("pyromq test mode", key, None, DEFAULT_HOSTS, 365)
    context = new_server_context()
    # OpenSSL reads a chain only from files.
    with tempfile.TemporaryDirectory() as name:
        cert_file, key_file = Path(name, "cert"), Path(name, "key")
        cert_file.write_bytes(_pem(certificate))
        write_file(key_file, _key_pem(key), mode=_PRIVATE)
        KeyPair(str(cert_file), str(key_file)).load_into(context)
    return Loaded(context, "test mode: a self-signed certificate, which nobody can verify")


def _new_key() -> EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError:
        raise TlsError(
            "making a certificate needs the package cryptography, which is not installed: "
            "pip install 'pyromq[tls]'"
        ) from None
    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    authority: Authority | None,
    hosts: Sequence[str],
    days: float,
) -> x509.Certificate:
    """Return a certificate, signed by an authority, or by its own key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = key if authority is None else authority.key
    is_authority = authority is None and not hosts
    end = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - abs(dt.timedelta(days=days)) - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), True)
        .add_extension(_key_usage(signs_certificates=is_authority), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(map(_general_name, hosts)), False
        )
    if not is_authority:
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), False)
    return builder.sign(signer, hashes.SHA256())


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
