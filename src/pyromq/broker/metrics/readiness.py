"""Whether a broker can do its job now: the answer of /readyz.

| check | passes |
| --- | --- |
| running | the broker has neither failed nor begun to stop |
| store | the store runs and refuses no messages: its disk has room, its last fsync succeeded |
| registered | a NameServer knows the broker, if it has any |
| accepts_sends | startAcceptSendRequestTimeStamp has passed |
| following | a replica is connected to its master |
| leader | a node of a raft group knows its leader |

Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from pyromq.broker.parts import BrokerParts
from pyromq.broker.services.registration import Registration


class Readiness:
    """The checks of one broker."""

    def __init__(
        self,
        parts: BrokerParts,
        registration: Registration,
        fault: Callable[[], str | None],
    ) -> None:
        """`fault` returns why the broker as a whole is of no use, or None."""
        self._config = parts.config
        self._store = parts.store
        self._figures = parts.replication_figures
        self._registration = registration
        self._fault = fault
        self._now = parts.clock

    def __call__(self) -> dict[str, str | None]:
        """Return the reason of each check that fails, by name, and None for the others."""
        checks = {
            "running": self._fault(),
            "store": self._store.fault,
            "registered": self._unregistered(),
            "accepts_sends": self._refuses_until(),
        }
        figures = self._figures()
        if figures.get("following") is not None:
            following = figures["following"]
            checks["following"] = (
                None
                if following["is_connected"]
                else f"not connected to the master {following['master'] or '(unknown)'}"
            )
        if figures.get("raft") is not None:
            raft = figures["raft"]
            checks["leader"] = (
                None if raft["leader"] is not None else f"group {raft['group']} has no leader"
            )
        return checks

    def _unregistered(self) -> str | None:
        registered = self._registration.registered
        if not registered or any(registered.values()):
            return None
        return f"no NameServer of {';'.join(registered)} has the broker"

    def _refuses_until(self) -> str | None:
        begin = self._config.start_accept_send_request_time_stamp
        if self._now() >= begin:
            return None
        return f"sends are refused until startAcceptSendRequestTimeStamp={begin}"
