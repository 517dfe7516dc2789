"""Routes of the production environment, for a NameServer of a test cluster.

With `clusterTest` a NameServer asks the production environment's NameServers for topics that it
does not know, so that programs under test can use production's topics beside their own. Which
those are says NAMESRV_ADDR of the environment, as it does to RocketMQ.

A request that was forwarded once is not forwarded again: NameServers that name each other, or
themselves, do not ask in circles. Runs on the loop.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import GetRouteInfoRequestHeader
from pyromq.remoting.address import AddressError, parse_addresses
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError

logger = logging.getLogger(__name__)

#: In the header of a request that a NameServer has passed on.
_FORWARDED: Final = "forwardedByNameServer"
_TIMEOUT_SECONDS: Final = 3.0


def was_forwarded(request: RemotingCommand) -> bool:
    """Whether a NameServer asks, on behalf of somebody else."""
    return _FORWARDED in request.ext_fields


class ProductionRoutes:
    """Asks the NameServers of the production environment."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._client: RemotingClient | None = None

    async def route(self, topic: str) -> bytes | None:
        """The encoded route, from the first NameServer that knows it; None when none does."""
        named = self._environment.get("NAMESRV_ADDR", "")
        try:
            addresses = parse_addresses(named) if named else []
        except AddressError as error:
            logger.warning("no route of the production environment: NAMESRV_ADDR: %s", error)
            return None
        if self._client is None:
            self._client = RemotingClient()
        for address in addresses:
            fields = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True).encode()
            request = RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={**fields, _FORWARDED: "true"}
            )
            try:
                answer = await self._client.request(address, request, _TIMEOUT_SECONDS)
            except RemotingError as error:
                logger.info("route of %s from the production environment: %s", topic, error)
                continue
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return answer.body
        return None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None
