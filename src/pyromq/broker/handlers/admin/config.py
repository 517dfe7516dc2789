"""GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG.

The body of both is a `.properties` text. The response to an update follows once it is saved and in
effect (`services.live_config`); its remark names the keys that need a restart or have no effect. An
invalid update is refused as a whole, with the reason.
"""

from __future__ import annotations

import logging
from typing import Final

from pyromq.acl import classification as access
from pyromq.base.settings import ConfigError
from pyromq.base.sizes import KIB
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.live_config import LiveConfig
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.java.properties import PropertiesError, parse_properties
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import GetBrokerConfigResponseHeader

logger = logging.getLogger(__name__)

#: Bytes of an update; all settings together are a few thousand.
MAX_CHANGE_SIZE: Final = 64 * KIB


class ConfigAdminHandlers:
    """Shows and changes the broker's settings."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.GET_BROKER_CONFIG, access.PEER, self.get_config),
            Route(RequestCode.UPDATE_BROKER_CONFIG, access.ADMIN, self.update_config),
        )

    def get_config(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_BROKER_CONFIG: return all settings in effect and their version."""
        version = self._config.version.encode().decode()
        return request.answer(
            ext_fields=GetBrokerConfigResponseHeader(version).encode(),
            body=self._config.text().encode(),
        )

    async def update_config(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UPDATE_BROKER_CONFIG: check and save settings, and apply those that need no restart."""
        if len(request.body) > MAX_CHANGE_SIZE:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"nothing was changed: update of {len(request.body)} bytes, limit "
                f"{MAX_CHANGE_SIZE}",
            )
        try:
            changes = parse_properties(request.body)
            if not changes:
                return request.answer()
            applied = await self._config.update(changes)
        except (ConfigError, PropertiesError) as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"nothing was changed: {error}"
            ) from error
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"nothing was changed: cannot write {self._config.file}: {error.strerror}",
            ) from error
        notes = list(applied.ineffective)
        if applied.later:
            notes.insert(0, f"needs a restart: {', '.join(applied.later)}")
        remark = f"saved; {'; '.join(notes)}" if notes else None
        logger.info(
            "settings changed by %s: %s; saved in %s%s",
            connection.remote_address,
            ", ".join(f"{key}={value!r:.200}" for key, value in changes.items()),
            self._config.file,
            "".join(f"; {note}" for note in notes),
        )
        return request.answer(remark=remark)
