"""Which brokers to leave alone for a while: those that failed or were slow.

As RocketMQ's MQFaultStrategy: the slower an answer, the longer its broker is avoided; one
that failed counts as one that took 30 seconds. A broker is avoided only while there is
another one. Pure but for the clock, which the caller gives.
"""

from __future__ import annotations

from typing import Final

#: From this latency on (seconds), a broker is avoided for so long (seconds).
_AVOIDED: Final = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))
_FAILED_LATENCY: Final = 30.0
#: Latencies below need not be noted at all.
QUICK: Final = 0.55


class BrokerFaults:
    """Until when brokers are avoided, by name."""

    def __init__(self) -> None:
        self._avoided_until: dict[str, float] = {}

    def note(self, broker: str, latency: float, now: float) -> None:
        """A broker answered after `latency` seconds."""
        avoided = next((time for least, time in _AVOIDED if latency >= least), 0.0)
        if avoided:
            self._avoided_until[broker] = now + avoided
        else:
            self._avoided_until.pop(broker, None)

    def note_failure(self, broker: str, now: float) -> None:
        """A broker could not be reached, or did not answer in time."""
        self.note(broker, _FAILED_LATENCY, now)

    def forgive(self, broker: str) -> None:
        """A broker that was gone is back. (Java leaves it out until its time is over.)"""
        self._avoided_until.pop(broker, None)

    def __bool__(self) -> bool:
        return bool(self._avoided_until)

    def is_avoided(self, broker: str, now: float) -> bool:
        """Whether another broker should be taken, where there is one."""
        until = self._avoided_until.get(broker)
        if until is None:
            return False
        if until <= now:
            del self._avoided_until[broker]
            return False
        return True
