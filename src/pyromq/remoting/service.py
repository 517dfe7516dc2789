"""What a server does with requests: the handlers of each code and the callbacks around them.

A `Service` is complete before the server starts and never changes. To serve differently, such as
refusing sends while a broker stops, give the server another one (`RemotingServer.serve`).

The connection type is a parameter so that this module stays below `remoting.connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from pyromq.protocol.wire.frame import RawFrame, RemotingCommand, RequestError

Peer = TypeVar("Peer")

#: The result of a handler: the response, an awaitable of it, or None if the request gets no
#: response or the handler sends it later itself.
Result: TypeAlias = RemotingCommand | Awaitable[RemotingCommand | None] | None


class LatePolicy(Protocol):
    """Refuses requests that waited too long for the loop."""

    @property
    def shortest_limit(self) -> float:
        """Seconds of waiting below which no request is refused; may change at run time."""

    def refuse(self, code: int, waited: float, queue_size: int) -> RequestError | None:
        """Return the refusal of a request, or None to serve it.

        `waited` is in seconds; `queue_size` requests of the same chunk wait after this one.
        """


@dataclass(frozen=True, slots=True)
class Service(Generic[Peer]):
    """The behaviour of a server: everything that is not sockets and limits."""

    #: Handlers of single requests, by code. Codes without any handler are answered
    #: REQUEST_CODE_NOT_SUPPORTED.
    handlers: Mapping[int, Callable[[Peer, RemotingCommand], Result]]
    #: Serves the plain requests at the head of a chunk from its bytes, before it is split into
    #: frames. Gets the chunk and the position of a frame, appends encoded responses, and returns
    #: the position of the first frame that it leaves to the handlers.
    take_frames: Callable[[Peer, bytes, int, list[bytes]], int] | None = None
    #: Handlers of runs of raw frames, by code; they take precedence over `handlers`. A hot handler
    #: appends its responses as encoded frames, in any number of buffers, and leaves out those that
    #: come later or are not wanted (oneway). A FrameError ends the run and the connection.
    hot_handlers: Mapping[int, Callable[[Peer, list[RawFrame], list[bytes]], None]] = field(
        default_factory=dict
    )
    #: Caps on the run length of hot codes with large responses.
    max_runs: Mapping[int, int] = field(default_factory=dict)
    #: Codes of requests that change nothing. They are cancelled when their connection is lost.
    queries: Collection[int] = ()
    #: Called after the handlers of a chunk and before its responses are written. If it returns a
    #: future, the responses wait for it.
    on_chunk_end: Callable[[], asyncio.Future[Any] | None] | None = None
    #: Rewrites responses that waited, given the future's result.
    late_answers: Callable[[bytes, Any], bytes] | None = None
    late_requests: LatePolicy | None = None
    on_disconnect: Callable[[Peer], object] | None = None
