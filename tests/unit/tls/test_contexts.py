from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from pyromq.tls.contexts import KeyPair, client_context, new_client_context, server_context
from pyromq.tls.errors import TlsError
from tests.support.certificates import Certificates


@pytest.fixture
def certs(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_server_speaks_tls_1_2_and_1_3_without_renegotiation(certs: Certificates) -> None:
    context = server_context(certs.settings()).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.maximum_version is ssl.TLSVersion.MAXIMUM_SUPPORTED
    assert context.verify_mode is ssl.CERT_REQUIRED
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION, ssl.OP_NO_TICKET):
        assert context.options & option
    old = [each for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert old
    assert all("GCM" in each["name"] or "CHACHA20" in each["name"] for each in old)


@pytest.mark.parametrize(
    ("word", "mode"),
    [("none", ssl.CERT_NONE), ("optional", ssl.CERT_OPTIONAL), ("require", ssl.CERT_REQUIRED)],
)
def test_client_certificates(certs: Certificates, word: str, mode: ssl.VerifyMode) -> None:
    settings = certs.settings(tls_server_need_client_auth=word)
    assert server_context(settings).context.verify_mode is mode


def test_the_end_of_a_certificate_is_told(certs: Certificates) -> None:
    loaded = server_context(certs.settings())
    assert loaded.is_sound
    assert f"certificate {certs['server.pem']} is valid until " in loaded.note
    assert loaded.note.endswith(" GMT")


def test_a_certificate_that_has_expired_is_told(certs: Certificates) -> None:
    cert, key = certs.authority().issue("late", ["localhost"], days=-1)
    Path(certs["server.pem"]).write_bytes(cert)
    Path(certs["server.key"]).write_bytes(key)
    loaded = server_context(certs.settings())
    assert not loaded.is_sound
    assert "refused by clients that verify it: certificate has expired" in loaded.note


def test_a_certificate_for_clients_is_told(certs: Certificates) -> None:
    settings = certs.settings(
        tls_server_cert_path=certs["client.pem"], tls_server_key_path=certs["client.key"]
    )
    loaded = server_context(settings)
    assert not loaded.is_sound
    assert "purpose" in loaded.note


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("server.pem", None, "tls.server.certPath={path}: No such file"),
        ("server.key", None, "tls.server.keyPath={path}: No such file"),
        ("ca.pem", None, "tls.server.trustCertPath={path}: No such file"),
        ("server.pem", b"", "tls.server.certPath={path}: no certificate in PEM format"),
        ("server.key", b"", "tls.server.keyPath={path}: no private key in PEM format"),
        ("ca.pem", b"x", "tls.server.trustCertPath={path}: no certificate in PEM format"),
        ("server.key", "client.key", "{path}: the key does not belong to the certificate"),
    ],
)
def test_a_bad_file_is_named_with_its_setting(
    certs: Certificates, name: str, content: bytes | str | None, reason: str
) -> None:
    path = Path(certs[name])
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        shutil.copy(certs[content], path)
    else:
        path.write_bytes(content)
    with pytest.raises(TlsError) as raised:
        server_context(certs.settings())
    assert reason.format(path=path) in str(raised.value)


def test_half_a_key_is_no_key(certs: Certificates) -> None:
    content = Path(certs["server.key"]).read_bytes()
    for size in range(0, len(content) - 40, 7):
        Path(certs["server.key"]).write_bytes(content[:size])
        with pytest.raises(TlsError):
            server_context(certs.settings())


def encrypted(certs: Certificates, *cipher: str) -> str:
    """The server's key, encrypted with the password "secret"."""
    command = ["openssl", "pkcs8", "-topk8", "-in", certs["server.key"], *cipher]
    target = certs["encrypted.key"]
    subprocess.run([*command, "-out", target, "-passout", "pass:secret"], check=True)
    return target


@pytest.mark.parametrize("cipher", [("-v2", "aes256"), ("-v1", "PBE-SHA1-3DES")])
def test_a_key_with_a_password(certs: Certificates, cipher: tuple[str, ...]) -> None:
    key = encrypted(certs, *cipher)
    server_context(certs.settings(tls_server_key_path=key, tls_server_key_password="secret"))
    with pytest.raises(TlsError, match="the key is encrypted, but no password is set"):
        server_context(certs.settings(tls_server_key_path=key))
    with pytest.raises(TlsError, match=r"wrong password.*ends with white space") as raised:
        server_context(certs.settings(tls_server_key_path=key, tls_server_key_password="secret "))
    assert "secret" not in str(raised.value)


def test_a_key_as_rocketmq_s_guide_makes_it_is_explained(certs: Certificates) -> None:
    providers = ("-provider", "legacy", "-provider", "default")
    key = encrypted(certs, "-v1", "PBE-SHA1-RC4-128", *providers)
    settings = certs.settings(tls_server_key_path=key, tls_server_key_password="secret")
    with pytest.raises(TlsError, match="openssl pkcs8 -provider legacy -provider default"):
        server_context(settings)


def test_own_connections_are_verified_by_default(certs: Certificates) -> None:
    context = client_context(certs.settings()).context
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    context = client_context(certs.settings(tls_client_check_host_name=False)).context
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    context = client_context(certs.settings(tls_client_auth_server=False)).context
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_own_connections_of_test_mode_accept_anything(certs: Certificates) -> None:
    context = client_context(certs.settings(tls_test_mode_enable=True)).context
    assert context.verify_mode is ssl.CERT_NONE


def test_the_authorities_of_the_system_are_the_default() -> None:
    context = new_client_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_bad_client_certificate_is_named(certs: Certificates) -> None:
    settings = certs.settings(tls_client_cert_path=certs["missing"])
    with pytest.raises(TlsError, match=r"tls\.client\.certPath=.*missing: No such file"):
        client_context(settings)


def test_paths_may_begin_at_home(certs: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(certs.directory))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    KeyPair("~/server.pem", "~/server.key").load_into(context)


def test_a_key_that_others_can_read_is_warned_about(
    certs: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    server_context(certs.settings())
    assert caplog.text == ""
    Path(certs["server.key"]).chmod(0o640)
    server_context(certs.settings())
    assert f"other users of this machine can read the key; run chmod 600 {certs['server.key']}" in (
        caplog.text
    )
