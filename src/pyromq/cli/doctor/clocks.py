"""The clock of this machine, and how far that of a broker is away from it.

A broker's time is its boot time plus how long it runs, which it tells in whole seconds, so
differences of up to two seconds go unnoticed. Called by `command`, on the main thread.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pyromq.cli.doctor.finding import Finding, fail, ok, warn

#: Result of adjtimex: the clock is not synchronised.
_TIME_ERROR: Final = 5
#: More than the kernel's `struct timex`.
_TIMEX_SIZE: Final = 512
_MAX_STEP_SECONDS: Final = 0.5
_OBSERVED_SECONDS: Final = 0.05
_NOTICED_SECONDS: Final = 2.0
_SERIOUS_SECONDS: Final = 30.0
_RUNTIME: Final = re.compile(
    r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]", re.ASCII
)


def examine_clock(
    state: Callable[[], int | None] | None = None,
    wall: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Finding]:
    """Examine whether the clock is synchronised, and whether it steps."""
    if (state or kernel_state)() == _TIME_ERROR:
        yield warn(
            "clock",
            "the kernel says that the clock is not synchronised",
            "store times, delayed messages, expiry and fail-over compare the clocks of machines",
            "run chrony or systemd-timesyncd",
        )
    else:
        yield ok("clock", "the clock is synchronised")
    before = wall() - steady()
    sleep(_OBSERVED_SECONDS)
    step = wall() - steady() - before
    if abs(step) > _MAX_STEP_SECONDS:
        yield fail(
            "clock steps",
            f"the clock jumped by {step:.1f} s while it was watched",
            "messages may expire early, or be delivered late",
            "let the time service slew the clock instead of setting it",
        )


def kernel_state() -> int | None:
    """Return what adjtimex says about the clock; None if it cannot be asked."""
    try:
        result: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_SIZE))
    except (AttributeError, OSError):
        return None
    return result if result >= 0 else None


def compare_clock(
    address: str, runtime_info: Mapping[str, str], asked: float, answered: float
) -> Finding:
    """Compare a broker's clock with ours, which showed these times around the request."""
    told = broker_time(runtime_info)
    if told is None:
        return ok("broker clock", f"{address} does not tell its time")
    # The truth is somewhere in a second, and somewhere between request and response.
    difference = 0.0
    if told > answered:
        difference = told - answered
    elif told + 1 < asked:
        difference = told + 1 - asked
    text = f"the clock of {address} is {abs(difference):.1f} s "
    text += "ahead of ours" if difference > 0 else "behind ours"
    why = "store times, delayed messages and signatures with a replay window depend on it"
    advice = "run chrony or systemd-timesyncd on both machines"
    if abs(difference) > _SERIOUS_SECONDS:
        return fail("broker clock", text, why, advice)
    if abs(difference) > _NOTICED_SECONDS:
        return warn("broker clock", text, why, advice)
    return ok("broker clock", f"the clock of {address} agrees with ours, within 2 s")


def broker_time(runtime_info: Mapping[str, str]) -> float | None:
    """Return a broker's time, rounded down to a second after its boot; None without figures."""
    found = _RUNTIME.fullmatch(runtime_info.get("runtime", ""))
    boot = runtime_info.get("bootTimestamp", "")
    if found is None or not boot.isdecimal():
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    return int(boot) / 1000 + ((days * 24 + hours) * 60 + minutes) * 60 + seconds
