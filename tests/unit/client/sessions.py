"""Sessions of no particular client, for tests of code that uses one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from pyromq.client.options import ClientOptions, Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import HeartbeatData


@asynccontextmanager
async def session_at(namesrv: str, **options: Unpack[ClientOptions]) -> AsyncIterator[Session]:
    """Yield a running session and close it."""
    session = Session(Settings.of(namesrv, options), HeartbeatData)
    session.start()
    try:
        yield session
    finally:
        await session.close()
