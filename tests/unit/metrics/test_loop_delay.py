from __future__ import annotations

import time

from pyromq.metrics.loop_delay import LoopDelay
from tests.support.patience import until


async def test_a_blocked_loop_is_noticed() -> None:
    delay = LoopDelay()
    delay.start()
    await until(lambda: delay.histogram.count)
    time.sleep(0.3)  # noqa: ASYNC251 - blocks the loop on purpose
    await until(lambda: delay.histogram.sum >= 0.1)
    delay.stop()
    delay.stop()


async def test_a_stopped_one_measures_no_more() -> None:
    delay = LoopDelay()
    delay.start()
    delay.stop()
    assert delay.histogram.count == 0
    assert delay.last == 0.0
