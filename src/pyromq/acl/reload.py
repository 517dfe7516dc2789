"""Keep the rules current: read the files at the start and again when one of them changes.

Every `INTERVAL_SECONDS` the time, size and inode of each file are compared with those of the last
load; any difference loads all files. A bad file at the start is an error. Later it changes nothing:
the last good rules stay in force, an error is logged at once and again every minute until the files
are good, and `AclStore.fault` says why.

What RocketMQ forgets on a reload works here: an emptied file loses its accounts, an added or
removed white list counts at once.

Owned by the loop; files are read on a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pyromq.acl.files import AclFileError, AclFiles
from pyromq.acl.rules import Rules
from pyromq.base.clock import Clock, now_ms

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0
_REMINDER_MILLIS: Final = 60_000


class AclStore:
    """The rules in force and the files that they come from."""

    def __init__(self, files: AclFiles, clock: Clock = now_ms) -> None:
        self.files = files
        self.rules = Rules()
        #: Why the files on disk are not in force; None if they are.
        self.fault: str | None = None
        #: Called with the new rules after a change.
        self.listeners: list[Callable[[Rules], None]] = []
        self._clock = clock
        self._stamps: object = None
        self._reminded = 0
        #: Held while files are read or written.
        self.lock = asyncio.Lock()

    def load(self) -> Rules:
        """Read the files at the start. Raises AclFileError or OSError."""
        self._stamps = self.files.stamps()
        self._take(self.files.load())
        return self.rules

    async def poll(self) -> None:
        """Read the files again if one of them has changed. Called every INTERVAL_SECONDS."""
        async with self.lock:
            await self.reload()

    async def reload(self, *, force: bool = False) -> None:
        """Read the files if they have changed, or in any case. The caller holds `lock`."""
        try:
            stamps = await asyncio.to_thread(self.files.stamps)
            if stamps == self._stamps and not force:
                self._remind()
                return
            self._stamps = stamps
            rules = await asyncio.to_thread(self.files.load)
        except (AclFileError, OSError) as error:
            self.fault = str(error)
            self._reminded = 0
            self._remind()
        else:
            self.fault = None
            self._take(rules)

    def _take(self, rules: Rules) -> None:
        for warning in rules.warnings:
            logger.warning("access control: %s", warning)
        logger.info(
            "access control: %d accounts and %d white-list entries in force, from %d files",
            len(rules.accounts),
            len(rules.global_white),
            len(rules.files),
        )
        self.rules = rules
        for listener in self.listeners:
            listener(rules)

    def _remind(self) -> None:
        now = self._clock()
        if self.fault is None or now - self._reminded < _REMINDER_MILLIS:
            return
        self._reminded = now
        logger.error(
            "ACCESS CONTROL NOT RELOADED, the last good rules stay in force: %s", self.fault
        )
