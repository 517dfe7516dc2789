from __future__ import annotations

import asyncio
from pathlib import Path

from bench.tls import SETTINGS, TlsSocket
from pyromq.broker.config import load_broker_properties
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FrameReader, RemotingCommand
from tests.support.certificates import Certificates
from tests.unit.tls.serving import echoing


def test_the_settings_of_the_servers_are_those_of_ours() -> None:
    loaded = load_broker_properties(SETTINGS)
    assert loaded.warnings == []
    assert loaded.broker.serves_tls


async def test_frames_go_out_one_by_one_and_come_back_together(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    settings = certs.settings("permissive", tls_server_need_client_auth="none")
    frames = [
        RemotingCommand(RequestCode.HEART_BEAT, body=b"x" * size).encode()
        for size in (0, 1, 1000, 40_000)
    ]
    data = b"".join(frames)

    def talk(port: int) -> bytes:
        target = memoryview(bytearray(1 << 20))
        with TlsSocket(port) as client:
            client.setblocking(False)
            assert client.send(memoryview(data)) == len(data)
            count = 0
            while count < len(data):
                got = client.recv_into(target[count:])
                assert got
                count += got
            return bytes(target[:count])

    async with echoing(settings) as echoes:
        received = await asyncio.to_thread(talk, echoes.port)
        assert received == data
        assert len(list(FrameReader().feed(received))) == len(frames)
