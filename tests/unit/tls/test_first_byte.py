from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from pyromq.tls.settings import TlsSettings
from tests.support.certificates import Certificates
from tests.support.loops import on_both_loops
from tests.support.patience import DEADLINE, until
from tests.unit.tls.serving import closed, echoing


@on_both_loops
async def test_a_permissive_port_takes_both(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    async with echoing(certs.settings("permissive")) as echoes:
        assert await echoes.ask(b"plain") == b"plain"
        assert await echoes.ask(b"secret", certs.tls()) == b"secret"
        plain, secured = echoes.served
        assert plain.events[:1] == ["made"]
        assert secured.events[:2] == ["made", "secured"]


@on_both_loops
async def test_a_plain_connection_has_no_layer_after_its_first_byte(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    async with echoing(certs.settings("permissive")) as echoes:
        reader, writer = await echoes.connect()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        (served,) = echoes.served
        assert served.transport.get_protocol() is served
        assert served.transport.get_extra_info("ssl_object") is None
        await closed(writer)
        await until(lambda: served.events[-1] == "lost")


@on_both_loops
async def test_an_enforcing_port_closes_plain_connections_without_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certs = Certificates(tmp_path)
    async with echoing(certs.settings("enforcing")) as echoes:
        reader, writer = await echoes.connect()
        writer.write(b"\0\0\0\x10 is a frame")
        async with asyncio.timeout(DEADLINE):
            with contextlib.suppress(ConnectionResetError):  # closed with unread input
                assert await reader.read() == b""
        await closed(writer)
        await until(lambda: echoes.served[0].events == ["made", "lost"])
        assert echoes.served[0].chunks == []
        assert "speaks no TLS: closed (tls.server.mode=enforcing)" in caplog.text
        assert await echoes.ask(b"secret", certs.tls()) == b"secret"


@on_both_loops
async def test_the_protocol_learns_of_a_client_that_says_nothing(tmp_path: Path) -> None:
    async with echoing(Certificates(tmp_path).settings("permissive")) as echoes:
        _, writer = await echoes.connect()
        await until(lambda: echoes.served and echoes.served[0].events == ["made"])
        await closed(writer)
        await until(lambda: echoes.served[0].events == ["made", "lost"])


@on_both_loops
async def test_a_protocol_may_refuse_a_client_before_its_first_byte(tmp_path: Path) -> None:
    async with echoing(Certificates(tmp_path).settings("permissive")) as echoes:
        _, writer = await echoes.connect()
        await until(lambda: echoes.served)
        echoes.served[0].transport.abort()
        writer.write(b"\x16")
        await until(lambda: echoes.served[0].events == ["made", "lost"])
        assert len(echoes.tls.handshakes) == 0
        await closed(writer)


async def test_a_disabled_port_has_no_layer_at_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with echoing(TlsSettings()) as echoes:
        assert await echoes.ask(b"\x16 is nothing special") == b"\x16 is nothing special"
    assert caplog.text == ""
