"""TLS of one server process: its ports, its own connections, and the reload of its certificates.

    tls = ServerTls(config)
    tls.load()                                     # reads the files; raises TlsError
    factory = tls.protect(lambda: Connection(...)) # for loop.create_server, any number of ports
    options = tls.arguments(host)                  # for loop.create_connection
    tls.start()                                    # watches the files from now on
    ...
    await tls.stop()

Invariants
1. A server whose TLS is configured but not usable does not start.
2. If any of the files changes, a complete new context replaces the old one: new connections use
   it, open ones stay. If the files do not fit together, as half way through a renewal, the old
   context stays, one line says why, and the next look tries again.

`load` reads files on the caller's thread; a reload reads them in a thread. The rest runs on the
loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from pyromq.base.periodic import PeriodicTasks
from pyromq.tls.certificates import self_signed_context
from pyromq.tls.client import ClientTls
from pyromq.tls.contexts import Loaded, client_context, expanded, server_context
from pyromq.tls.errors import TlsError
from pyromq.tls.first_byte import FirstByte
from pyromq.tls.handshakes import Handshakes
from pyromq.tls.settings import TlsMode, TlsSettings
from pyromq.tls.transport import ServedProtocol

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
#: How a file looks from outside: device, inode, size and time of the last change.
_Look = tuple[int, int, int, int] | None

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class ServerTls:
    """The TLS of a server."""

    def __init__(self, settings: TlsSettings, *, look_seconds: float = _LOOK_SECONDS) -> None:
        self._settings = settings
        self._look_seconds = look_seconds
        self.handshakes = Handshakes(settings.max_tls_handshakes, settings.tls_handshake_seconds)
        #: For this server's own connections, None if they are plain; trusts nobody before `load`.
        self.client: ClientTls | None = None
        if settings.connects_with_tls:
            self.client = ClientTls(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self._context: ssl.SSLContext | None = None
        #: When the certificates expire, in seconds since the epoch: of the ports (`server`) and of
        #: own connections (`client`), if they have one.
        self.expiry: dict[str, float] = {}
        self._looks: dict[str, _Look] = {}
        #: Why the files could not be loaded when they were last tried, or an empty string.
        self._fault = ""
        self._periodic = PeriodicTasks()

    def load(self) -> None:
        """Read certificates and keys. Raises TlsError."""
        self._looks = self._look()
        server, client = self._build()
        self._take(server, client)

    def start(self) -> None:
        """Watch the files."""
        if self._looks:
            self._periodic.start(self._look_seconds, self.reload_if_changed)

    async def stop(self) -> None:
        """Stop watching, and end the thread of the handshakes. Idempotent."""
        await self._periodic.stop()
        self.handshakes.stop()

    # Ports

    def protect(
        self, factory: Callable[[], ServedProtocol], mode: TlsMode | None = None
    ) -> ProtocolFactory:
        """Return a protocol factory for a port of a mode, by default tls.server.mode."""
        mode = self._settings.mode if mode is None else mode
        if mode is TlsMode.DISABLED:
            return cast(ProtocolFactory, factory)
        return lambda: FirstByte(factory(), mode, self._current, self.handshakes)

    @property
    def replication_mode(self) -> TlsMode:
        """Return the mode of the ports on which brokers copy their logs."""
        return self._settings.replication_mode

    def protect_replication(self, factory: Callable[[], ServedProtocol]) -> ProtocolFactory:
        """Return a protocol factory for the replication port."""
        return self.protect(factory, self.replication_mode)

    def _current(self) -> ssl.SSLContext:
        assert self._context is not None, "load comes before listening"
        return self._context

    # Own connections

    @property
    def replication_client(self) -> ClientTls | None:
        """Return the TLS of a replica's connection to its master."""
        settings = self._settings
        # An unset mode follows tls.server.mode, which says nothing about the master's port.
        is_set = settings.tls_replication_mode is not None
        return None if is_set and settings.replication_mode is TlsMode.DISABLED else self.client

    def arguments(self, host: str) -> dict[str, Any]:
        """Return the arguments for `loop.create_connection` to another server."""
        return {} if self.client is None else self.client.arguments(host)

    # Reload

    async def reload_if_changed(self) -> None:
        """Load the files again if one has changed, or if they did not fit together before."""
        looks = await asyncio.to_thread(self._look)
        if looks == self._looks and not self._fault:
            return
        try:
            server, client = await asyncio.to_thread(self._build)
        except TlsError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                logger.error("TLS files changed but cannot be used, the old ones stay: %s", error)
            return
        finally:
            self._looks = looks
        self._fault = ""
        self._take(server, client)

    def _build(self) -> tuple[Loaded | None, Loaded | None]:
        settings = self._settings
        server = client = None
        if settings.serves_tls:
            is_test = settings.tls_test_mode_enable
            server = self_signed_context() if is_test else server_context(settings)
        if settings.connects_with_tls:
            client = client_context(settings)
        return server, client

    def _take(self, server: Loaded | None, client: Loaded | None) -> None:
        if server is not None:
            self._context = server.context
            self._note_expiry("server", server)
            level = logging.INFO if server.is_sound else logging.WARNING
            logger.log(level, "TLS of the ports: %s", server.note)
        if client is not None and self.client is not None:
            self.client.context = client.context
            self._note_expiry("client", client)
            logger.info("TLS of own connections: %s", client.note)

    def _note_expiry(self, use: str, loaded: Loaded) -> None:
        self.expiry.pop(use, None)
        if loaded.expires is not None:
            self.expiry[use] = loaded.expires

    def _look(self) -> dict[str, _Look]:
        return {path: _look_at(path) for path in self._files()}

    def _files(self) -> Iterator[str]:
        settings = self._settings
        if settings.tls_test_mode_enable:
            return
        paths: list[str | None] = []
        if settings.serves_tls:
            paths += [
                settings.tls_server_cert_path,
                settings.tls_server_key_path,
                settings.tls_server_trust_cert_path,
            ]
        if settings.connects_with_tls:
            paths += [
                settings.tls_client_cert_path,
                settings.tls_client_key_path,
                settings.tls_client_trust_cert_path,
            ]
        yield from (expanded(path) for path in paths if path)


def _look_at(path: str) -> _Look:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
