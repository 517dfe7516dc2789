"""How long tests wait, and what servers are told so that a machine that stalls breaks no test.

A machine with other work stops a process for a second or more, at any time. So whatever waits for
a condition has one generous deadline, and the servers of a test refuse nothing because it came
late, unless that is what the test is about. Called on any thread. Nothing of pyromq is imported.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

#: What waits for a condition gives up after so many seconds, below pytest's own limit of a test.
DEADLINE = 45.0

_WITHOUT_LIMIT = str(10 * 60 * 1000)
#: Settings of a broker, ours or Java's, with which no stall makes it refuse a request.
PATIENT_PROPERTIES = {
    "waitTimeMillsInSendQueue": _WITHOUT_LIMIT,
    "waitTimeMillsInPullQueue": _WITHOUT_LIMIT,
    "waitTimeMillsInHeartbeatQueue": _WITHOUT_LIMIT,
    "waitTimeMillsInTransactionQueue": _WITHOUT_LIMIT,
    "osPageCacheBusyTimeOutMills": _WITHOUT_LIMIT,
    "syncFlushTimeout": _WITHOUT_LIMIT,
}


#: Pauses between checks of a condition. Many conditions ask a server, and a test that waits for
#: seconds would keep a core busy: pauses grow.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.002, 0.02, 1.1


async def until(condition: Callable[[], Any | Awaitable[Any]]) -> None:
    """Wait for a condition, which may be a coroutine function."""
    deadline = time.monotonic() + DEADLINE
    pause = _FIRST_PAUSE
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        _check(deadline, condition)
        await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * _GROWTH)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition that another thread or process brings about."""
    deadline = time.monotonic() + DEADLINE
    pause = _FIRST_PAUSE
    while not condition():
        _check(deadline, condition)
        time.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * _GROWTH)


def _check(deadline: float, condition: Callable[[], object]) -> None:
    if time.monotonic() < deadline:
        return
    try:
        text = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        text = repr(condition)
    raise AssertionError(f"this did not come true within {DEADLINE:g} s: {text}")
