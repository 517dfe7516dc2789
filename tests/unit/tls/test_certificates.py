from __future__ import annotations

import ssl
import sys
from pathlib import Path

import pytest

from pyromq.tls.certificates import Authority, make_test_certificates, self_signed_context
from pyromq.tls.errors import TlsError


def test_all_files_are_written_and_keys_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "certs"
    paths = make_test_certificates(directory, ["broker-1", "10.0.0.1", "::1"])
    modes = {path.name: path.stat().st_mode & 0o777 for path in paths}
    assert modes == {
        "ca.pem": 0o644,
        "ca.key": 0o600,
        "server.pem": 0o644,
        "server.key": 0o600,
        "client.pem": 0o644,
        "client.key": 0o600,
        "tls.properties": 0o600,
    }
    for name in ("server", "client"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / f"{name}.pem", directory / f"{name}.key")


def test_the_server_certificate_names_its_hosts(tmp_path: Path) -> None:
    from cryptography import x509

    make_test_certificates(tmp_path, ["broker-1", "10.0.0.1", "::1"])
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker-1"]
    addresses = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["10.0.0.1", "::1"]


def test_keys_are_unencrypted_pkcs8_which_java_reads(tmp_path: Path) -> None:
    make_test_certificates(tmp_path)
    assert (tmp_path / "server.key").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")


def test_a_certificate_may_have_expired() -> None:
    import datetime as dt

    from cryptography import x509

    cert, _ = Authority.new().issue("late", days=-1)
    leaf = x509.load_pem_x509_certificates(cert)[0]
    assert leaf.not_valid_before_utc < leaf.not_valid_after_utc < dt.datetime.now(dt.UTC)


def test_test_mode_makes_a_usable_context() -> None:
    loaded = self_signed_context()
    assert "self-signed" in loaded.note
    assert loaded.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == "cryptography" or name.startswith("cryptography."):
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(TlsError, match=r"pip install 'pyromq\[tls\]'"):
        Authority.new()
