from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bench import nats
from bench.load import LoadOrder, run
from bench.nats import NatsServer, publish_ring
from bench.servers import NotInstalledError


def test_a_message_names_its_slot_in_the_reply_subject() -> None:
    ring = publish_ring("Topic", 4, 16, 3)
    frame = bytes(ring.data[ring.starts[2] : ring.starts[3]])
    assert frame.startswith(b"PUB topics.Topic _INBOX.3.000002 16\r\n")
    assert frame.endswith(b"\r\n")
    assert len(frame) == len(b"PUB topics.Topic _INBOX.3.000002 16\r\n") + 16 + 2


def test_without_go_the_reason_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats, "_CACHE", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NotInstalledError, match="go not found on PATH"):
        NatsServer().prepare()


@pytest.mark.skipif(
    not (nats._CACHE / nats.VERSION / "nats-server").exists(), reason="nats-server is not built"
)
def test_acknowledged_messages_are_in_the_stream(tmp_path: Path) -> None:
    server = NatsServer()
    try:
        pid = server.start(tmp_path)
        server.wait_until_ready(pid)
        result = run(LoadOrder("send128", "nats", server.port, os.getpid(), 4_000, 1))
        assert server.stored("BenchmarkSend128") == result.accepted
    finally:
        server.stop()
