from __future__ import annotations

import pytest

from pyromq.client.consumer import membership as membership_module
from pyromq.client.consumer.push import puller as puller_module


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "MISSING_TOPIC_SECONDS", 0.01)
    monkeypatch.setattr(puller_module, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(puller_module, "_CLAIM_PAUSE_SECONDS", 0.01)
