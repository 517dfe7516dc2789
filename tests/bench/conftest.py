from __future__ import annotations

import pytest

from bench import load


@pytest.fixture(autouse=True)
def _short_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build few requests: the real rings take seconds."""
    monkeypatch.setattr(load, "_SEND_RING_FRAMES", 2_200)
    monkeypatch.setattr(load, "_BATCH_RING_FRAMES", 64)
