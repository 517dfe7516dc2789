"""Tell systemd, or another service manager, how a server is doing: the protocol of sd_notify(3).

With `Type=notify`, the manager counts a server as started when it has said READY=1, not when its
process exists. With `WatchdogSec`, it restarts a server that has been silent for that long: the
watchdog message comes from the event loop, so a loop that hangs is silent.

Without NOTIFY_SOCKET in the environment, nothing happens. The variables are removed from the
environment, so that child processes do not speak for the server. Called on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, MutableMapping
from typing import Self

logger = logging.getLogger(__name__)

_SOCKET = "NOTIFY_SOCKET"
_WATCHDOG = "WATCHDOG_USEC"
_WATCHDOG_PROCESS = "WATCHDOG_PID"
#: Messages per watchdog interval: one may come late.
_PER_INTERVAL = 3


class ServiceManager:
    """The manager's socket, if there is a manager."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self.watchdog_seconds = watchdog_seconds if address else None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Take the variables out of the environment."""
        address = environment.pop(_SOCKET, None)
        interval = environment.pop(_WATCHDOG, "")
        process = environment.pop(_WATCHDOG_PROCESS, "")
        is_ours = not process or process == str(os.getpid())
        is_set = is_ours and interval.isdecimal() and int(interval) > 0
        return cls(address, int(interval) / 1_000_000 if is_set else None)

    def notify(self, *assignments: str) -> None:
        """Send assignments such as READY=1. A failure is logged: the server continues."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]  # an abstract name
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.connect(address)
                sender.sendall("\n".join(assignments).encode())
        except OSError as error:
            logger.warning("cannot notify the service manager at %s: %s", self._address, error)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Send the watchdog message for the duration of a with block."""
        if self.watchdog_seconds is None:
            yield
            return
        task = asyncio.create_task(self._ping_forever(self.watchdog_seconds / _PER_INTERVAL))
        try:
            yield
        finally:
            task.cancel()

    async def _ping_forever(self, seconds: float) -> None:
        while True:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(seconds)
