"""Retry requests to an origin that does not respond, with exponential backoff.

A stream or a running task survives a broker's restart and minutes without a cluster. Pauses double
from one attempt to the next, and each attempt is logged. The caller's `patience` says how long to
wait for servers: not at all where a user waits for the result and the address may be wrong,
`reconnectTimeout` where the servers have responded before. A refusal (no permission, an invalid
filter) is a response, so it only gets the configured number of retries.

Used by the driver's planning and by tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from pyromq.spark.origins.origin import OriginError, UnreachableError

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

#: The longest pause between two attempts, in seconds.
MAX_PAUSE: Final = 15.0


def with_retries(ask: Callable[[], _Answer], backoff: Backoff) -> _Answer:
    """Return the result of `ask`, retried as `backoff` allows.

    Its patience is for servers that cannot be reached; any other failure only gets its retries.
    """
    while True:
        try:
            return ask()
        except (OriginError, OSError) as error:
            if not backoff.wait(error, is_patient=isinstance(error, UnreachableError)):
                raise


class Backoff:
    """Pauses between attempts: at least `retries` of them, then until `patience` seconds passed.

    An attempt that makes progress calls `reset`.
    """

    def __init__(
        self,
        first_pause: float,
        retries: int = 0,
        *,
        patience: float = 0.0,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._first_pause = first_pause
        self._retries = retries
        self._patience = patience
        # Looked up now, not at import time, so that tests can replace them.
        self._sleep = sleep or time.sleep
        self._clock = clock or time.monotonic
        self.reset()

    def reset(self) -> None:
        """Start over, with all retries and the whole patience."""
        self._attempts = 0
        self._since: float | None = None

    def wait(self, problem: object, *, is_patient: bool = True) -> bool:
        """Log the problem and pause. Return False, at once, if there should be no next attempt."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        pause = self._first_pause * 2 ** min(self._attempts, 20)
        pause = min(pause, max(MAX_PAUSE, self._first_pause))
        left = self._since + self._patience - now if is_patient else 0.0
        self._attempts += 1
        if self._attempts > self._retries and left <= 0:
            return False
        if self._attempts > self._retries:
            pause = min(pause, left)
        logger.warning(
            "attempt %d failed, retrying in %.1f s%s: %s",
            self._attempts,
            pause,
            f", for at most {left:.0f} s more" if left > 0 else "",
            problem,
        )
        self._sleep(pause)
        return True
