"""Instruments on the broker's hot paths: histograms of latencies, filled while requests are served.

Only a broker with metrics has them (`BrokerParts.instruments`); without, nothing is timed. An
observation covers a run of requests or a chunk, never a single plain message, and under load only
one run in thirty-two is timed and stands for all (`metrics.histogram.Sampler`), so that a message
costs a few nanoseconds:

| histogram | one observation |
| --- | --- |
| put | the seal of a chunk |
| flush | an fsync of the log, on the flush thread |
| acknowledgement | the wait of a chunk for fsync, replica or quorum |
| pull | a run of pulls |
| delivery, end_to_end | a message of a run of pulls |
| rpc | a request, or a run of sends or pulls with the number of its requests |

Called on the loop, `flushed` on the flush thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter, time
from typing import Any, Final

from pyromq.broker.hooks import followed
from pyromq.metrics.histogram import LONG, SHORT, Histogram, Sampler
from pyromq.protocol.message.record import HEAD_SIZE_V4, born_timestamp_at, store_timestamp_at
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import PREFIX_SIZE, RawFrame, RemotingCommand, header_length
from pyromq.remoting.connection import Connection, Handler, HotHandler
from pyromq.remoting.service import Result

#: RocketMQ 5.x' bounds of rpc latencies, in milliseconds.
RPC_BOUNDS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
#: Bytes of a record that the time of a message needs.
_TIMES_END: Final = HEAD_SIZE_V4

SUCCESS: Final = "success"
#: In place of the response code of a run.
_ANY: Final = "any"


class BrokerInstruments:
    """The histograms of one broker."""

    def __init__(self, *, now: Callable[[], float] = time) -> None:
        """`now` returns seconds since the epoch."""
        self._now = now
        self.put = Histogram(SHORT)
        self.flush = Histogram(SHORT)
        self.acknowledgement = Histogram(SHORT)
        self.pull = Histogram(SHORT)
        self.delivery = Histogram(LONG)
        self.end_to_end = Histogram(LONG)
        #: By request, response and result.
        self.rpc: dict[tuple[str, str, str], Histogram] = {}
        self._sends = self._rpc(RequestCode.SEND_MESSAGE_V2, SUCCESS, SUCCESS)
        self._pulls = self._rpc(RequestCode.PULL_MESSAGE, SUCCESS, SUCCESS)
        #: Which runs of plain sends and of plain pulls are timed.
        self.send_sampler, self.pull_sampler = Sampler(), Sampler()
        self._seal_sampler, self._delivery_sampler = Sampler(), Sampler()

    # The store

    def sealed(self, nanoseconds: int) -> None:
        """Note the seal of a chunk, which has just ended."""
        sampler = self._seal_sampler
        if sampler.skip:
            sampler.skip -= 1
            return
        self.put.observe(nanoseconds / 1_000_000_000, sampler.weight(perf_counter()))

    def flushed(self, seconds: float) -> None:
        """Note an fsync of the log."""
        self.flush.observe(seconds)

    def timed_end(
        self, end_chunk: Callable[[], asyncio.Future[Any] | None]
    ) -> Callable[[], asyncio.Future[Any] | None]:
        """Time how long the responses of chunks wait."""

        def end() -> asyncio.Future[Any] | None:
            waiting = end_chunk()
            if waiting is not None:
                waiting.add_done_callback(partial(self._acknowledged, perf_counter()))
            return waiting

        return end

    def _acknowledged(self, begun: float, _: object) -> None:
        self.acknowledgement.observe(perf_counter() - begun)

    # Requests

    def sent(self, begun: float, count: int) -> None:
        """Note a run of plain sends that `send_sampler` chose, with `count` messages.

        The kernel does not tell codes and batches apart: all count as SEND_MESSAGE_V2, per message.
        """
        now = perf_counter()
        self._sends.observe((now - begun) * 1000, count * self.send_sampler.weight(now))

    def pulled(self, begun: float, responses: list[bytes]) -> None:
        """Note a run of plain pulls that `pull_sampler` chose, with its responses."""
        now = perf_counter()
        weight = self.pull_sampler.weight(now)
        self.pull.observe(now - begun, weight)
        self._pulls.observe((now - begun) * 1000, len(responses) * weight)
        last = responses[-1]
        self._note_times(last, PREFIX_SIZE + header_length(last), weight)

    def delivered(self, record: bytes | memoryview) -> None:
        """Note that the message of a record leaves now."""
        sampler = self._delivery_sampler
        if sampler.skip:
            sampler.skip -= 1
        else:
            self._note_times(record, 0, sampler.weight(perf_counter()))

    def _note_times(self, record: bytes | memoryview, start: int, weight: int) -> None:
        if len(record) < start + _TIMES_END:
            return
        now = self._now()
        self.delivery.observe(max(0.0, now - store_timestamp_at(record, start) / 1000), weight)
        self.end_to_end.observe(max(0.0, now - born_timestamp_at(record, start) / 1000), weight)

    def timed_runs(self, handlers: Mapping[int, HotHandler]) -> dict[int, HotHandler]:
        """Time the runs that handlers serve; their responses are not looked at."""
        return {code: self._timed_run(code, handler) for code, handler in handlers.items()}

    def _timed_run(self, code: int, handler: HotHandler) -> HotHandler:
        found = self._rpc(RequestCode(code), _ANY, SUCCESS)

        def serve(connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
            begun = perf_counter()
            handler(connection, frames, answers)
            found.observe((perf_counter() - begun) * 1000, len(frames))

        return serve

    def timed_handlers(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Time every request that its handler serves alone."""
        return {code: self._timed(handler) for code, handler in handlers.items()}

    def _timed(self, handler: Handler) -> Handler:
        def serve(connection: Connection, request: RemotingCommand) -> Result:
            begun = perf_counter()
            return followed(connection, request, handler, partial(self._served, begun, request))

        return serve

    def _served(
        self, begun: float, request: RemotingCommand, answer: RemotingCommand | None
    ) -> None:
        try:
            name = RequestCode(request.code)
        except ValueError:
            return
        result = SUCCESS
        response = "none"
        if answer is not None:
            response = _response_name(answer.code)
            if answer.code == ResponseCode.SYSTEM_ERROR:
                result = "process_request_failed"
        if request.is_oneway:
            result = "oneway"
        self._rpc(name, response, result).observe((perf_counter() - begun) * 1000)

    def _rpc(self, code: RequestCode, response: str, result: str) -> Histogram:
        key = (code.name.lower(), response, result)
        found = self.rpc.get(key)
        if found is None:
            found = self.rpc[key] = Histogram(RPC_BOUNDS)
        return found


def _response_name(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return "other"
