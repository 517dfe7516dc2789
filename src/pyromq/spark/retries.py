"""Questions to an origin, asked again when it does not answer.

A broker that restarts, a NameServer that is away for a moment: neither should end a query.
Tasks need no such thing, Spark runs them again. Used by the driver's planning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from pyromq.spark.options import ReadOptions
from pyromq.spark.origin import OriginError

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


def with_retries(
    options: ReadOptions,
    ask: Callable[[], _Answer],
    sleep: Callable[[float], object] = time.sleep,
) -> _Answer:
    """What `ask` gives; an OriginError is raised only after `fetchOffset.numRetries` more tries."""
    for attempt in range(options.fetch_retries):
        try:
            return ask()
        except (OriginError, OSError) as error:
            logger.warning(
                "asking for offsets failed, attempt %d of %d: %s",
                attempt + 1,
                options.fetch_retries + 1,
                error,
            )
            sleep(options.fetch_retry_interval)
    return ask()
