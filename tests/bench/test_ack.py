from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import load
from bench.ack import AckServer
from bench.load import LoadOrder, run


@pytest.mark.parametrize("case", ["send128", "batch"])
def test_every_request_is_acknowledged(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_SEND_RING_FRAMES", 96)  # several laps
    server = AckServer()
    try:
        server.wait_until_ready(server.start(tmp_path))
        result = run(LoadOrder(case, "rocketmq", server.port, os.getpid(), 32_000, 1))
    finally:
        server.stop()
    assert (result.messages, result.refused) == (32_000, 0)
