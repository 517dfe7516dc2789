"""Keep the list of NameServers as an address server has it (`fetchNamesrvAddrByAddressServer`).

Asks at the start and every two minutes, every ten seconds while no list is known. An answer that is
missing or cannot be parsed changes nothing: the last good list stays. Only a broker without
`namesrvAddr` asks, as in RocketMQ.

Runs on the loop; a thread waits for the answer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pyromq.base.address_server import FETCH_SECONDS, AddressServerError, fetch, url_of
from pyromq.broker.config import BrokerConfig
from pyromq.broker.services.registration import Registration
from pyromq.remoting.address import AddressError, parse_addresses

logger = logging.getLogger(__name__)

#: Seconds until the next question while no list is known.
_RETRY_SECONDS: Final = 10.0


class NameServerLookup:
    """Tells the registration which NameServers there are."""

    def __init__(self, config: BrokerConfig, registration: Registration) -> None:
        self._registration = registration
        self._url = url_of(config.rmq_address_server_domain, config.rmq_address_server_sub_group)
        self._known: list[str] = []
        #: The failure that was logged last.
        self._reported: str | None = None

    def interval(self) -> float:
        """Return the seconds until the next question."""
        return FETCH_SECONDS if self._known else _RETRY_SECONDS

    async def ask(self) -> None:
        """Ask the address server, and register with the NameServers that it names."""
        try:
            addresses = parse_addresses(await asyncio.to_thread(fetch, self._url))
        except (AddressServerError, AddressError) as error:
            self._report(error)
            return
        self._reported = None
        if addresses == self._known:
            return
        logger.info(
            "address server %s names NameServers %s, before: %s",
            self._url,
            ";".join(addresses),
            ";".join(self._known) or "none",
        )
        self._known = addresses
        await self._registration.set_name_servers(addresses)

    def _report(self, error: Exception) -> None:
        """Log a failure once, until it changes."""
        text = str(error)
        if text == self._reported:
            return
        self._reported = text
        kept = f"keeping {';'.join(self._known)}" if self._known else "the broker is not registered"
        logger.warning(
            "no NameServer addresses from %s, %s, asking again in %g s: %s; check "
            "rmqAddressServerDomain and rmqAddressServerSubGroup",
            self._url,
            kept,
            self.interval(),
            error,
        )
