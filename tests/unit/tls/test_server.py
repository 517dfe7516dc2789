from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from pyromq.tls.client import Tls, client_tls
from pyromq.tls.errors import TlsError
from pyromq.tls.server import ServerTls
from pyromq.tls.settings import TlsSettings
from tests.support.certificates import Certificates
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until
from tests.unit.tls.serving import Echo, closed, echoing

Log = pytest.LogCaptureFixture


@pytest.fixture
def certs(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def serial_number(echoes: Any, certs: Certificates) -> str:
    """The serial number of the certificate that a new connection gets."""
    _, writer = await echoes.connect(certs.tls())
    number = writer.get_extra_info("peercert")["serialNumber"]
    await closed(writer)
    return str(number)


def test_unusable_files_stop_the_start(certs: Certificates) -> None:
    Path(certs["server.key"]).unlink()
    with pytest.raises(TlsError, match=r"tls\.server\.keyPath=.*: No such file"):
        ServerTls(certs.settings()).load()


def test_a_server_without_tls_reads_no_file(certs: Certificates) -> None:
    tls = ServerTls(TlsSettings(tls_server_key_path="/nothing"))
    tls.load()
    assert tls.client is None
    assert tls.arguments("host") == {}
    assert tls.protect(Echo) is Echo
    assert certs


def test_own_connections(certs: Certificates) -> None:
    tls = ServerTls(certs.settings())
    before = tls.arguments("host")["ssl"]
    assert before.verify_mode is ssl.CERT_REQUIRED
    assert before.get_ca_certs() == []
    tls.load()
    assert len(tls.arguments("host")["ssl"].get_ca_certs()) == 1
    assert tls.replication_client is tls.client
    assert ServerTls(certs.settings(tls_replication_mode="disabled")).replication_client is None
    permissive = ServerTls(certs.settings("disabled", tls_enable=True))
    assert permissive.replication_client is permissive.client is not None


def test_the_replication_port_may_stay_plain(certs: Certificates) -> None:
    tls = ServerTls(certs.settings(tls_replication_mode="disabled"))
    assert tls.protect_replication(Echo) is Echo
    assert tls.protect(Echo) is not Echo


async def test_test_mode_serves_a_certificate_that_nobody_can_verify(certs: Certificates) -> None:
    async with echoing(TlsSettings(tls_server_mode="enforcing", tls_test_mode_enable=True)) as it:
        assert await it.ask(b"x", Tls(verify=False)) == b"x"
        with pytest.raises(ssl.SSLCertVerificationError):
            await it.ask(b"x", certs.tls())


@on_both_loops
async def test_a_renewed_certificate_is_used_and_open_connections_stay(
    tmp_path: Path, caplog: Log
) -> None:
    caplog.set_level("INFO")
    certs = Certificates(tmp_path)
    async with echoing(certs.settings(), look_seconds=0.01) as echoes:
        before = await serial_number(echoes, certs)
        reader, writer = await echoes.connect(certs.tls())
        cert, key = certs.renew_server()
        certs.write("server.pem", cert)
        await until(lambda: "cannot be used" in caplog.text)
        assert await serial_number(echoes, certs) == before
        await asyncio.sleep(0.1)  # several looks: it is said once
        assert caplog.text.count("TLS files changed but cannot be used, the old ones stay") == 1
        assert "the key does not belong to the certificate" in caplog.text
        certs.write("server.key", key)
        await until(lambda: caplog.text.count("TLS of the ports: certificate") == 2)
        assert await serial_number(echoes, certs) != before
        writer.write(b"still here")
        async with asyncio.timeout(DEADLINE):
            assert await reader.readexactly(10) == b"still here"
        await closed(writer)


async def test_a_certificate_for_the_same_key_is_enough(certs: Certificates, caplog: Log) -> None:
    """RocketMQ waits until both files have changed."""
    caplog.set_level("INFO")
    async with echoing(certs.settings()) as echoes:
        before = await serial_number(echoes, certs)
        certs.write("server.pem", certs.read("server.pem") + b"\n")
        await echoes.tls.reload_if_changed()
        assert caplog.text.count("TLS of the ports: certificate") == 2
        assert await serial_number(echoes, certs) == before
        await echoes.tls.reload_if_changed()
        assert caplog.text.count("TLS of the ports: certificate") == 2


async def test_an_authority_can_be_replaced(certs: Certificates) -> None:
    async with echoing(certs.settings()) as echoes:
        assert await echoes.ask(b"x", certs.tls()) == b"x"
        stranger = certs.foreign()
        chain = certs.read("foreign.pem")
        certs.write("ca.pem", chain[chain.rindex(b"-----BEGIN") :])
        await echoes.tls.reload_if_changed()
        insecure = {"ca": None, "verify": False}
        assert await echoes.ask(b"x", certs.tls(**stranger, **insecure)) == b"x"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            assert await echoes.ask(b"x", certs.tls(**insecure)) == b"x"


async def test_files_that_vanish_change_nothing(certs: Certificates, caplog: Log) -> None:
    async with echoing(certs.settings()) as echoes:
        shutil.move(certs["server.pem"], certs["kept"])
        await echoes.tls.reload_if_changed()
        assert "tls.server.certPath" in caplog.text
        assert await echoes.ask(b"x", certs.tls()) == b"x"
        shutil.move(certs["kept"], certs["server.pem"])
        await echoes.tls.reload_if_changed()
        assert await echoes.ask(b"x", certs.tls()) == b"x"


@pytest.mark.parametrize("kind", ["missing", "foreign", "expired"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_without_a_good_certificate_are_refused(
    certs: Certificates, kind: str, version: ssl.TLSVersion, caplog: Log
) -> None:
    files: dict[str, Any] = {"cert": None, "key": None}
    if kind != "missing":
        files = certs.foreign() if kind == "foreign" else certs.expired()
    tls = client_tls(certs.tls(**files))
    assert tls is not None
    tls.context.maximum_version = version
    async with echoing(certs.settings()) as echoes:

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", echoes.port, **tls.arguments("localhost")
            )
            writer.write(b"let me in")
            return await reader.read(100)

        with pytest.raises((ssl.SSLError, ConnectionError)):
            assert await asyncio.wait_for(ask(), DEADLINE)
        await until(lambda: echoes.served[0].events == ["made", "lost"])
        assert echoes.served[0].chunks == []
        reasons = {
            "missing": "the client has sent no certificate",
            "foreign": "certificate refused: ",
            "expired": "certificate refused: certificate has expired",
        }
        assert f"TLS handshake failed: {reasons[kind]}" in caplog.text


async def test_a_certificate_may_be_optional(certs: Certificates) -> None:
    async with echoing(certs.settings(tls_server_need_client_auth="optional")) as echoes:
        assert await echoes.ask(b"x", certs.tls(cert=None, key=None)) == b"x"
        assert await echoes.ask(b"x", certs.tls()) == b"x"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            assert await echoes.ask(b"x", certs.tls(**certs.foreign())) == b"x"


def test_when_certificates_expire(certs: Certificates) -> None:
    tls = ServerTls(certs.settings(tls_enable="true"))
    assert tls.expiry == {}
    tls.load()
    assert tls.expiry.keys() == {"server", "client"}
    assert all(abs(expires - time.time()) < 400 * 86_400 for expires in tls.expiry.values())
    expired = certs.expired()
    changes = {"tls_client_cert_path": expired["cert"], "tls_client_key_path": expired["key"]}
    tls = ServerTls(certs.settings(tls_enable="true", **changes))
    tls.load()
    assert tls.expiry["client"] < time.time() < tls.expiry["server"]


def test_a_server_without_tls_has_no_certificate(certs: Certificates) -> None:
    tls = ServerTls(certs.settings("disabled"))
    tls.load()
    assert tls.expiry == {}
