"""Questions to an origin, asked again when it does not answer.

A broker that restarts, a cluster that is away for minutes: neither ends a stream or a task that
is reading. Pauses double from one attempt to the next, and each is a line in the log. How long
servers are waited for is the caller's `patience`: none where a user waits for an answer and the
address may be wrong, `reconnectTimeout` where the servers have been there before. A refusal
(no permission, a wrong filter) is an answer: only its few first attempts are repeated.

Used by the driver's planning and by tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from pyromq.spark.options import ReadOptions
from pyromq.spark.origins.origin import OriginError, UnreachableError

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

#: The longest pause between two attempts, in seconds.
MAX_PAUSE: Final = 15.0


class Backoff:
    """Pauses between attempts: `retries` of them at least, then until `patience` seconds are over.

    An attempt that got somewhere calls `reset`.
    """

    def __init__(
        self,
        first: float,
        retries: int = 0,
        *,
        patience: float = 0.0,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._first = first
        self._retries = retries
        self._patience = patience
        # Looked up now, not when this module was loaded: tests hold time.
        self._sleep = sleep or time.sleep
        self._clock = clock or time.monotonic
        self.reset()

    def reset(self) -> None:
        """Count from here."""
        self._attempts = 0
        self._since: float | None = None

    def wait(self, problem: object, *, is_patient: bool = True) -> bool:
        """Log, and pause before the next attempt; False: there should be none."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        pause = min(self._first * 2 ** min(self._attempts, 20), max(MAX_PAUSE, self._first))
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


def with_retries(
    options: ReadOptions,
    ask: Callable[[], _Answer],
    sleep: Callable[[float], object] | None = None,
    *,
    patience: float = 0.0,
    clock: Callable[[], float] | None = None,
) -> _Answer:
    """Return what `ask` does; failures are repeated `fetchOffset.numRetries` times.

    Servers that cannot be reached are asked for `patience` seconds at least.
    """
    backoff = Backoff(
        options.fetch_retry_interval,
        options.fetch_retries,
        patience=patience,
        sleep=sleep,
        clock=clock,
    )
    while True:
        try:
            return ask()
        except (OriginError, OSError) as error:
            if not backoff.wait(error, is_patient=isinstance(error, UnreachableError)):
                raise
