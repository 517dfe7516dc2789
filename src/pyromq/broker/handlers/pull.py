"""PULL_MESSAGE: give consumers the messages of a queue from an offset on.

LITE_PULL_MESSAGE of 5.x clients is the same request. The path of a pull:

0. With the compiled kernel, `plain_pulls` serves it from the bytes of its chunk if its plan is
   known and its messages are in memory.
1. `pull_plans` finds the plan of its header fields, checked before, or checks it.
2. `pull_serving` gets the messages from the store and builds the response.
3. Not in memory, or megabytes at once: `disk_pull` has a thread read them first.
4. No messages, and the pull may wait: `waiting_pull` completes it later.

Compiling SQL92 expressions and reading records for them takes time. All pulls share one time budget
per loop iteration (`services.turns`); once it is spent, pulls are put off to the next iteration.

Runs on the loop, a run of frames at a time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from pyromq.acl import classification as access
from pyromq.broker.handlers.disk_pull import DiskPulls
from pyromq.broker.handlers.plain_pulls import PlainPulls
from pyromq.broker.handlers.pull_serving import PullServing, refusal
from pyromq.broker.handlers.waiting_pull import respond_or_wait
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import FrameTaker, Pool, Route, Routes, runs
from pyromq.protocol import kernel
from pyromq.protocol.message.sysflag import PULL_COMMIT_OFFSET
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RawFrame, RequestError, command_from
from pyromq.remoting.connection import Connection

#: Pulls in a run, each with a response of up to 256 KiB, before the server checks whether the
#: client reads.
_MAX_RUN: Final = 8
_CODES: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class PullHandlers:
    """Serves pulls."""

    def __init__(self, parts: BrokerParts) -> None:
        self._offsets = parts.tables.offsets
        self._role = parts.role
        self._store = parts.store
        self._turns = parts.long_poll.turns
        compiled = kernel.load("pulls")
        # A consume hook wants to see every response.
        self._plain = None
        if compiled is not None and not parts.hooks.consume:
            self._plain = PlainPulls(compiled, parts)
        self._serving = PullServing(parts, self._plain)
        self._plans = self._serving.plans
        self._disk_pulls = DiskPulls(self._serving, parts.lanes.pull)

    def routes(self) -> Routes:
        """Return the routes of the family."""
        taker = None if self._plain is None else FrameTaker(_CODES, self._plain.take)
        hot = runs(self.pull, taker)
        return Routes(
            *(
                Route(code, access.PULL, hot=hot, pool=Pool.PULL, max_run=_MAX_RUN)
                for code in _CODES
            )
        )

    def settings_changed(self) -> None:
        """Check every pull again: settings, or the role of the broker, changed."""
        self._plans.clear()

    def pull(self, connection: Connection, frames: list[RawFrame], responses: list[bytes]) -> None:
        """Serve a run of PULL_MESSAGE."""
        for frame in frames:
            if self._turns.is_over:
                self._put_off(connection, frame)
            else:
                self._pull_one(connection, frame, responses)

    def _pull_one(self, connection: Connection, frame: RawFrame, responses: list[bytes]) -> None:
        header = frame[1]
        oneway = header.get("flag", 0) & FLAG_ONEWAY
        try:
            pull = self._plans.pull_of(connection, header.get("extFields") or {})
        except (ValueError, RequestError, KeyError, TypeError, AttributeError) as error:
            if not oneway:
                responses.append(refusal(frame, error))
            return
        plan = pull.plan
        if plan.sys_flag & PULL_COMMIT_OFFSET and not self._role.is_replica:
            self._offsets.commit(
                plan.group,
                plan.topic,
                plan.queue_id,
                pull.commit_offset,
                remote_address=connection.remote_address,
            )
        if oneway:
            return
        if plan.max_bytes > 0 and plan.message_filter is None:
            bulk = self._store.plan_bulk(
                plan.topic, plan.queue_id, pull.offset, plan.max_count, plan.max_bytes
            )
            if bulk is not None:
                self._disk_pulls.start_bulk(connection, frame, pull, bulk, responses)
                return
        result = self._serving.get(pull, pull.offset, may_wait=True)
        if result.bring_in is not None:
            self._disk_pulls.start(connection, frame, pull, result.bring_in, responses)
            return
        respond_or_wait(self._serving, connection, frame, pull, result, responses)

    def _put_off(self, connection: Connection, frame: RawFrame) -> None:
        """Queue a pull for a loop iteration that has time for it."""
        request = command_from(frame)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.add(partial(self._pull_in_turn, connection, frame, done))
        connection.finish_later(request, done)

    def _pull_in_turn(
        self, connection: Connection, frame: RawFrame, done: asyncio.Future[None]
    ) -> bool:
        if connection.closed or done.done():
            done.cancel()
            return False
        responses: list[bytes] = []
        try:
            self._pull_one(connection, frame, responses)
            if responses:
                connection.write_parts(responses)
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)
        return False
