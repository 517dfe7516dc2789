"""GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG.

Both carry a `.properties` text as their body. An update is answered when it is in the file
and in effect (`services.live_config`); the answer's remark names the keys that wait for
the next start or have no effect. What cannot be used is refused with the reason, and nothing is
changed.
The methods are handlers of `broker.routes`.
"""

from __future__ import annotations

import logging
from typing import Final

from pyromq.base.settings import ConfigError
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.live_config import LiveConfig
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.java.properties import PropertiesError, parse_properties
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import GetBrokerConfigResponseHeader

logger = logging.getLogger(__name__)

#: Bytes of a change: all settings together are a few thousand.
MAX_CHANGE_SIZE: Final = 64 * 1024


class ConfigAdminHandlers:
    """Shows and changes the broker's settings."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.GET_BROKER_CONFIG, self.get_config),
            Route(RequestCode.UPDATE_BROKER_CONFIG, self.update_config),
        )

    def get_config(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_BROKER_CONFIG: all settings in effect, and their version."""
        version = self._config.version.encode().decode()
        return request.answer(
            ext_fields=GetBrokerConfigResponseHeader(version).encode(),
            body=self._config.text().encode(),
        )

    async def update_config(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UPDATE_BROKER_CONFIG: checked, saved and, where that is possible, in effect."""
        if len(request.body) > MAX_CHANGE_SIZE:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"nothing was changed: the change has {len(request.body)} bytes, limit "
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
                f"nothing was changed: {self._config.file} cannot be written: {error.strerror}",
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
