"""Certificates for tests: an authority, a server's and a client's, and bad ones of every kind."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

from pyromq.tls.certificates import DEFAULT_HOSTS, Authority, make_test_certificates
from pyromq.tls.client import Tls, client_tls
from pyromq.tls.settings import TlsSettings


class Certificates:
    """A directory as `pyromq tls make-test-certs` makes it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        make_test_certificates(directory)
        self._authority = Authority.new("another authority of the same tests")

    def __getitem__(self, name: str) -> str:
        return str(self.directory / name)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return Path(self[name]).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Replace a file's content in place, as careless tools do."""
        Path(self[name]).write_bytes(content)

    def values(self, mode: str = "enforcing", **changes: Any) -> dict[str, Any]:
        """The fields of a server's configuration that turn on mutual TLS."""
        return {
            "tls_server_mode": mode,
            "tls_server_cert_path": self["server.pem"],
            "tls_server_key_path": self["server.key"],
            "tls_server_need_client_auth": "require",
            "tls_server_trust_cert_path": self["ca.pem"],
            "tls_client_cert_path": self["client.pem"],
            "tls_client_key_path": self["client.key"],
            "tls_client_trust_cert_path": self["ca.pem"],
            **changes,
        }

    def settings(self, mode: str = "enforcing", **changes: Any) -> TlsSettings:
        """The same as a configuration."""
        settings = TlsSettings(**self.values(mode, **changes))
        settings.check_tls()
        return settings

    def tls(self, **changes: Any) -> Tls:
        """What a client needs that is allowed in."""
        values = {"ca": self["ca.pem"], "cert": self["client.pem"], "key": self["client.key"]}
        return Tls(**{**values, **changes})

    def client_hello(self) -> bytes:
        """The first bytes of a client."""
        tls = client_tls(self.tls())
        assert tls is not None
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        return outgoing.read()

    def foreign(self) -> dict[str, str]:
        """A client certificate of an authority that the server does not know."""
        return self._write("foreign", *self._authority.issue("a stranger"))

    def expired(self) -> dict[str, str]:
        """A client certificate of the right authority that has expired."""
        return self._write("expired", *self.authority().issue("too late", days=-1))

    def authority(self) -> Authority:
        """The authority of the directory."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(self.read("ca.key"), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        certificate = x509.load_pem_x509_certificate(self.read("ca.pem"))
        return Authority(certificate, key)

    def renew_server(self, *hosts: str) -> tuple[bytes, bytes]:
        """A new server certificate and its key, not written yet."""
        return self.authority().issue("pyromq test server, renewed", hosts or DEFAULT_HOSTS)

    def _write(self, name: str, cert: bytes, key: bytes) -> dict[str, str]:
        self.write(f"{name}.pem", cert)
        self.write(f"{name}.key", key)
        return {"cert": self[f"{name}.pem"], "key": self[f"{name}.key"]}
