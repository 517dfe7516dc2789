"""Starts the services that watch a running broker: protection, self-check, water marks, watchdog.

`broker.broker` starts this with the periodic work and stops it first. Runs on the loop, except for
the self-check, which reads directories on a thread, and the watchdog's own thread.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pyromq.base.log_lines import MAX_NAMED
from pyromq.base.periodic import PeriodicTasks
from pyromq.base.watchdog import LoopWatchdog
from pyromq.broker.parts import BrokerParts
from pyromq.broker.services.upkeep.protection import (
    PROTECT_SECONDS,
    REPORT_SECONDS,
    BrokerProtection,
)
from pyromq.broker.services.upkeep.water_marks import CHECK_SECONDS, DISPATCH_SECONDS

logger = logging.getLogger(__name__)

#: The first check of the store's files, and the interval after it, as in RocketMQ.
_FIRST_CHECK_SECONDS: Final = 60.0
_SELF_CHECK_SECONDS: Final = 600.0
#: The first line about the dispatch, as in RocketMQ.
_FIRST_DISPATCH_SECONDS: Final = 10.0
#: Seconds that the loop may be held with debugLockEnable.
_DEBUG_LOCK_SECONDS: Final = 1.0


class Upkeep:
    """The watching services of one broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store_config = parts.store.config
        self._store = parts.store
        self._water_marks = parts.water_marks
        self._protection = BrokerProtection(
            parts.config, parts.tables.groups, parts.role, parts.fall_behind
        )
        self._watchdog = LoopWatchdog(
            parts.store.config.root / "debug",
            self._hang_seconds,
            strict=lambda: self._store_config.debug_lock_enable,
        )

    def start(self, periodic: PeriodicTasks) -> None:
        """Start everything; `periodic` ends the tasks, `stop` the watchdog."""
        periodic.start(PROTECT_SECONDS, self._protection.protect)
        periodic.start(REPORT_SECONDS, self._protection.report)
        periodic.start(CHECK_SECONDS, self._water_marks.check)
        periodic.start(
            DISPATCH_SECONDS, self._water_marks.report_dispatch, first=_FIRST_DISPATCH_SECONDS
        )
        periodic.start(
            _SELF_CHECK_SECONDS, self.check_store, first=_FIRST_CHECK_SECONDS, name="self-check"
        )
        self._watchdog.start(asyncio.get_running_loop())

    def stop(self) -> None:
        """End the watchdog."""
        self._watchdog.stop()

    async def check_store(self) -> None:
        """Log the faults of the store's files."""
        faults = await asyncio.to_thread(self._store.self_check())
        for fault in faults[:MAX_NAMED]:
            logger.error("store is damaged: %s", fault)
        if len(faults) > MAX_NAMED:
            logger.error("store is damaged: %d further files", len(faults) - MAX_NAMED)

    def _hang_seconds(self) -> float:
        seconds = self._config.loop_hang_millis / 1000
        if not self._store_config.debug_lock_enable:
            return seconds
        return min(seconds or _DEBUG_LOCK_SECONDS, _DEBUG_LOCK_SECONDS)
