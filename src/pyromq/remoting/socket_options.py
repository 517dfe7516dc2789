"""Options of a server's sockets: accept backlog, kernel buffers and write water marks.

The settings are the same for broker and NameServer: `SocketSettings` declares them as fields,
`SocketOptions.of` reads them. 0 leaves an option to the operating system or the event loop.

Used by `remoting.server` on the loop's thread, once per listening socket and per connection.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final, Protocol

from pyromq.base.settings import ConfigError, setting

DEFAULT_BACKLOG: Final = 1024


class SocketConfig(Protocol):
    """The part of a server's configuration that `SocketSettings` declares."""

    @property
    def server_socket_backlog(self) -> int:
        """Connections that wait to be accepted."""

    @property
    def server_socket_snd_buf_size(self) -> int:
        """Bytes of a connection's send buffer in the kernel."""

    @property
    def server_socket_rcv_buf_size(self) -> int:
        """Bytes of a connection's receive buffer in the kernel."""

    @property
    def write_buffer_high_water_mark(self) -> int:
        """Unsent bytes that pause a connection."""

    @property
    def write_buffer_low_water_mark(self) -> int:
        """Unsent bytes that resume a paused connection."""


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """Options of a listening socket and the connections it accepts."""

    backlog: int = DEFAULT_BACKLOG
    send_buffer: int = 0
    receive_buffer: int = 0
    high_water: int = 0
    low_water: int = 0

    @classmethod
    def of(cls, config: SocketConfig) -> SocketOptions:
        """Return the options of a server's configuration."""
        return cls(
            backlog=config.server_socket_backlog,
            send_buffer=config.server_socket_snd_buf_size,
            receive_buffer=config.server_socket_rcv_buf_size,
            high_water=config.write_buffer_high_water_mark,
            low_water=config.write_buffer_low_water_mark,
        )

    def set_buffers(self, listening: socket.socket) -> None:
        """Set the kernel buffers of a socket before it listens; its connections inherit them."""
        if self.send_buffer:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer)
        if self.receive_buffer:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)

    def set_water_marks(self, transport: asyncio.WriteTransport) -> None:
        """Set the write water marks of a new connection."""
        if self.high_water or self.low_water:
            transport.set_write_buffer_limits(self.high_water or None, self.low_water or None)


class SocketSettings:
    """The settings of `SocketOptions`, as fields of a server's configuration."""

    def __init__(self) -> None:
        self.server_socket_backlog = setting(
            "serverSocketBacklog",
            DEFAULT_BACKLOG,
            "Let at most this many connections wait to be accepted.",
            minimum=1,
        )
        self.server_socket_snd_buf_size = setting(
            "serverSocketSndBufSize",
            0,
            "Set the kernel's send buffer of each connection, in bytes; 0 leaves it to the kernel.",
            minimum=0,
        )
        self.server_socket_rcv_buf_size = setting(
            "serverSocketRcvBufSize",
            0,
            "Set the kernel's receive buffer of each connection, in bytes; 0 leaves it to the "
            "kernel.",
            minimum=0,
        )
        self.write_buffer_high_water_mark = setting(
            "writeBufferHighWaterMark",
            0,
            "Stop reading from a connection that has more unsent bytes than this; 0 takes four "
            "times the low water mark, or 64 KiB.",
            minimum=0,
        )
        self.write_buffer_low_water_mark = setting(
            "writeBufferLowWaterMark",
            0,
            "Resume reading once a connection has fewer unsent bytes than this; 0 takes a quarter "
            "of the high water mark.",
            minimum=0,
        )


def check_water_marks(config: SocketConfig) -> None:
    """Raise ConfigError for a low water mark above the high one."""
    high, low = config.write_buffer_high_water_mark, config.write_buffer_low_water_mark
    if high and low > high:
        raise ConfigError(
            f"writeBufferLowWaterMark={low}: expected at most writeBufferHighWaterMark, {high}"
        )
