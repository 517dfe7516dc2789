"""A pull that waits for messages (long polling).

A waiting pull completes in one of these cases:

A. Messages arrived that match its filter: it gets them.
B. Messages arrived that do not match. A tag filter skips them, and the pull keeps waiting for later
   ones. An SQL92 filter has to read records, so after a bounded read with more left the client gets
   PULL_RETRY_IMMEDIATELY and asks for the rest itself.
C. Its offset is out of range, because the queue was truncated or deleted: PULL_OFFSET_MOVED. Its
   message is being removed: PULL_RETRY_IMMEDIATELY.
D. Topic, group or subscription changed so that the checks fail: their error. If only the filter
   changed, the pull starts over at its own offset, since the old filter may have skipped messages
   that the new one wants.
E. Its deadline passes, or it is the oldest of too many on one queue: PULL_NOT_FOUND, or
   PULL_RETRY_IMMEDIATELY with a higher offset if all messages so far were filtered out.
F. The broker stops: as E, but SERVICE_NOT_AVAILABLE instead of PULL_NOT_FOUND.
G. Its connection closes: no response.

A-D are `try_complete`, E and F are `expire`, G is `cancel`. `services.long_poll` decides when to
call which, and closes the connection of a pull that raises. On the loop.
"""

from __future__ import annotations

from pyromq.broker.handlers.pull_plans import MAX_CACHED_LENGTH, Pull
from pyromq.broker.handlers.pull_serving import PullServing, refusal, stopping
from pyromq.broker.services.long_poll import ParkedPull
from pyromq.protocol.message.sysflag import PULL_SUSPEND
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RawFrame, RequestError, command_from
from pyromq.remoting.connection import Connection
from pyromq.store.results import GetResult, GetStatus


def respond_or_wait(
    serving: PullServing,
    connection: Connection,
    frame: RawFrame,
    pull: Pull,
    result: GetResult,
    responses: list[bytes],
) -> None:
    """Append the response to a pull, or let the pull wait if it found nothing and may wait."""
    code = serving.code(result, pull.offset)
    if code is not ResponseCode.PULL_NOT_FOUND or not pull.plan.sys_flag & PULL_SUSPEND:
        serving.respond(frame, pull, result, code, responses)
    elif serving.long_poll.stopping:
        responses.append(refusal(frame, stopping()))
    else:
        _wait(serving, connection, frame, pull, responses)


def _wait(
    serving: PullServing,
    connection: Connection,
    frame: RawFrame,
    pull: Pull,
    responses: list[bytes],
) -> None:
    # Parse the header now: a malformed one could not be answered later.
    request = command_from(frame)
    serving.stats.missed += 1
    # Keep only what the response needs.
    frame = (frame[0], {"code": request.code, "opaque": request.opaque}, b"")
    # Waiting on a queue without messages creates the queue, in memory only.
    queue = serving.store.queue(pull.plan.topic, pull.plan.queue_id)
    try:
        serving.long_poll.park(queue, WaitingPull(serving, connection, frame, pull))
    except RequestError as refused:
        responses.append(refusal(frame, refused))


class WaitingPull(ParkedPull):
    """A pull that found nothing and waits for the next message of its queue."""

    __slots__ = ("_frame", "_next_offset", "_serving", "pull")

    def __init__(
        self, serving: PullServing, connection: Connection, frame: RawFrame, pull: Pull
    ) -> None:
        config = serving.config
        wait_ms = (
            pull.plan.suspend_ms if config.long_polling_enable else config.short_polling_time_mills
        )
        super().__init__(connection, wait_ms / 1000, weight=len(pull.plan.subscription or ""))
        self.pull = pull
        self._serving = serving
        self._frame = frame
        #: Everything before it was filtered out.
        self._next_offset = pull.offset
        self._drop_filter()

    def try_complete(self) -> bool:
        """Answer the pull if messages or a change decide it (cases A-D)."""
        try:
            self._recheck()
        except (RequestError, ValueError) as error:
            self.connection.write(refusal(self._frame, error))
            return True
        result = self._next_match()
        code = ResponseCode.PULL_NOT_FOUND
        if result is not None:
            code = self._serving.code(result, self.pull.offset)
        if result is None or code is ResponseCode.PULL_NOT_FOUND:
            self._drop_filter()
            return False
        self._respond(result, code)
        return True

    def expire(self) -> None:
        """Answer the pull with what there is (cases E and F)."""
        try:
            self._recheck()
        except (RequestError, ValueError) as error:
            self.connection.write(refusal(self._frame, error))
            return
        result = self._serving.get(self.pull, self._next_offset)
        code = self._serving.code(result, self.pull.offset)
        if code is ResponseCode.PULL_NOT_FOUND:
            if self._serving.long_poll.stopping:
                self.connection.write(refusal(self._frame, stopping()))
                return
            if self._next_offset != self.pull.offset:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        self._respond(result, code)

    def cancel(self) -> None:
        """Do nothing: the pull holds nothing but itself (case G)."""

    def _recheck(self) -> None:
        """Check the pull again; start over if its filter changed."""
        before = self.pull.plan
        self._serving.plans.recheck(self.connection, self.pull)
        if before.is_checked and self.pull.plan.message_filter != before.message_filter:
            self._next_offset = self.pull.offset

    def _next_match(self) -> GetResult | None:
        """Skip messages that do not match; return None if no others are left."""
        result = self._serving.get(self.pull, self._next_offset)
        while result.status is GetStatus.NO_MATCHED_MESSAGE:
            self._next_offset = result.next_offset
            if self._next_offset >= result.max_offset:
                return None
            if self.pull.plan.reads_records:
                break
            result = self._serving.get(self.pull, self._next_offset)
        return result

    def _respond(self, result: GetResult, code: ResponseCode) -> None:
        responses: list[bytes] = []
        self._serving.respond(self._frame, self.pull, result, code, responses)
        self.connection.write(b"".join(responses))

    def _drop_filter(self) -> None:
        """Keep the expression only, if it is the pull's own: its compiled form is much larger."""
        plan = self.pull.plan
        if plan.subscription is not None and (
            plan.reads_records or len(plan.subscription) > MAX_CACHED_LENGTH
        ):
            self.pull.plan = plan.without_filter()
