"""The server as its connections see it.

The connection type is a parameter, so that this module stays below `remoting.connection`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from pyromq.remoting.lateness import Lateness
from pyromq.remoting.limits import PeerLimits
from pyromq.remoting.service import Service

Peer = TypeVar("Peer")


class Host(Protocol[Peer]):
    """The server, as its connections see it."""

    #: What to do with requests; replaced as a whole.
    service: Service[Peer]
    #: Caps on what all connections hold together.
    limits: PeerLimits
    lateness: Lateness
    max_frame: int
    #: The open connections, and the requests in progress of all of them.
    connections: set[Peer]
    tasks: set[asyncio.Task[None]]
    #: Whether new connections are refused.
    stopping: bool
