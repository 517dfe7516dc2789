from __future__ import annotations

import dataclasses

import pytest

from pyromq.remoting.connection import Connection
from pyromq.remoting.service import Service
from tests.unit.remoting.talking import ECHO, echo


def test_a_service_needs_handlers_alone_and_never_changes() -> None:
    service: Service[Connection] = Service({ECHO: echo})

    assert service.hot_handlers == {}
    assert service.on_chunk_end is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        service.handlers = {}  # type: ignore[misc]
