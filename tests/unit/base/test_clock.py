from __future__ import annotations

import time

from pyromq.base.clock import now_ms


def test_now_is_in_milliseconds_since_the_epoch() -> None:
    before = time.time()
    now = now_ms()
    assert int(before * 1000) <= now <= time.time() * 1000
    assert isinstance(now, int)
