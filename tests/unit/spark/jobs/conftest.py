"""Commands without Spark: the session is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pyromq.spark.jobs import running
from tests.unit.spark.stores.test_builds import no_spark

__all__ = ["no_spark"]


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = SimpleNamespace(getActiveStageIds=list)

    @contextmanager
    def open_session(settings: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))

    monkeypatch.setattr(running, "open_session", open_session)
