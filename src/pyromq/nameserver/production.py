"""Look up unknown topics in the production environment, for a NameServer of a test cluster.

With `clusterTest` a NameServer forwards lookups of unknown topics to production's NameServers, so
that programs under test can use production's topics beside their own. Their addresses come from the
`NAMESRV_ADDR` environment variable, as in RocketMQ.

A forwarded request is not forwarded again, so NameServers that name each other cannot loop. Runs on
the loop.
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
from pyromq.tls.client import ClientTls

logger = logging.getLogger(__name__)

#: Header field of a request that a NameServer forwarded.
_FORWARDED: Final = "forwardedByNameServer"
_TIMEOUT_SECONDS: Final = 3.0


def was_forwarded(request: RemotingCommand) -> bool:
    """Return whether another NameServer forwarded this request."""
    return _FORWARDED in request.ext_fields


class ProductionRoutes:
    """A client of production's NameServers."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, *, tls: ClientTls | None = None
    ) -> None:
        self._environment = environment
        self._tls = tls
        self._client: RemotingClient | None = None

    async def route(self, topic: str) -> bytes | None:
        """Return the encoded route from the first NameServer that knows it, or None."""
        named = self._environment.get("NAMESRV_ADDR", "")
        try:
            addresses = parse_addresses(named) if named else []
        except AddressError as error:
            logger.warning(
                "production lookup failed, set NAMESRV_ADDR to host:port[;host:port]: %s", error
            )
            return None
        if self._client is None:
            self._client = RemotingClient(tls=self._tls)
        for address in addresses:
            fields = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True).encode()
            request = RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={**fields, _FORWARDED: "true"}
            )
            try:
                answer = await self._client.request(address, request, _TIMEOUT_SECONDS)
            except RemotingError as error:
                logger.info("production lookup of topic %s failed: %s", topic, error)
                continue
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return answer.body
        return None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None
