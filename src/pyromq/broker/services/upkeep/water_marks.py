"""Log lines about the broker's backlogs: its lanes, and what is not indexed yet.

RocketMQ's printWaterMark writes four lines a second to watermark.log. Here a line is written while
requests wait in a lane, at most once per ten seconds, and every second with DEBUG. As in RocketMQ,
a line per minute says how far the key index is behind the log.

`check` runs every second on the loop, and also keeps the largest backlog for the runtime info.
"""

from __future__ import annotations

import logging
from typing import Final

from pyromq.base.log_lines import RARELY
from pyromq.broker.services.flow_control import Lanes
from pyromq.store.message_store import MessageStore

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
#: Seconds between two lines about the dispatch, as in RocketMQ.
DISPATCH_SECONDS: Final = 60.0


class WaterMarks:
    """Watches the backlogs of one broker."""

    def __init__(self, lanes: Lanes, store: MessageStore) -> None:
        self._lanes = lanes
        self._store = store
        self._max_dispatch_behind = 0

    @property
    def max_dispatch_behind(self) -> int:
        """Return the most bytes that the key index was ever seen behind the log."""
        self._max_dispatch_behind = max(self._max_dispatch_behind, self._store.dispatch_behind)
        return self._max_dispatch_behind

    def check(self) -> None:
        """Report lanes in which requests wait."""
        _ = self.max_dispatch_behind
        waiting = [lane for lane in self._lanes.all if lane.size]
        if waiting:
            text = ", ".join(
                f"{lane.name} {lane.size} of {lane.capacity}, the first for {lane.head_wait_ms} ms"
                for lane in waiting
            )
            logger.info("requests wait: %s", text, extra=RARELY)
        elif logger.isEnabledFor(logging.DEBUG):
            logger.debug("no request waits in a lane")

    def report_dispatch(self) -> None:
        """Say how far the key index is behind the log."""
        behind, most = self._store.dispatch_behind, self.max_dispatch_behind
        logger.info("dispatch behind commit log %d bytes, at most %d so far", behind, most)
