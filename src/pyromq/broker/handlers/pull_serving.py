"""Serving a checked pull: get its messages from the store and build the response.

`handlers.pull` serves a pull this way when it arrives; `handlers.waiting_pull` and
`handlers.disk_pull` do so later. Response codes are those of RocketMQ's PullMessageProcessor.

A replica may lag behind its master, so an offset outside its queue is most likely a good one: it
answers PULL_RETRY_IMMEDIATELY with the offset unchanged and suggests the group's usual broker,
unless `offsetCheckInSlave` is set.

Runs on the loop. Reading records for SQL92 filters is charged to the loop iteration
(`services.turns`).
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Final

from pyromq.base.sizes import MIB
from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.pull_plans import PlanUser, Pull, PullPlans
from pyromq.broker.parts import BrokerParts
from pyromq.protocol.wire import header_binary, header_json
from pyromq.protocol.wire.bodies import MASTER_ID, SubscriptionGroupConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    PREFIX_SIZE,
    Encoding,
    FrameError,
    RawFrame,
    RemotingCommand,
    RequestError,
    command_from,
    pack_prefix,
)
from pyromq.store.results import GetResult, GetStatus

logger = logging.getLogger(__name__)


def found_pieces(encoding: Encoding) -> list[bytes]:
    """Return the bytes around the values in the header of a response with messages.

    The values, in order: suggested broker, next offset, minimum and maximum offset, opaque. In a
    binary header opaque comes first, then the length of all fields; see `header_binary.pieces`.
    """
    holes = ("\ue000broker", "\ue000next", "\ue000min", "\ue000max")
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    request = RemotingCommand(RequestCode.PULL_MESSAGE, encoding=encoding)
    fields = dict(zip(names, holes, strict=True))
    response = request.answer(ResponseCode.SUCCESS, GetStatus.FOUND.name, fields)
    header = response.encode()[PREFIX_SIZE:]
    cut = header_json.pieces if encoding == Encoding.JSON else header_binary.pieces
    return cut(header, holes)


_FOUND: Final = b"%d".join(found_pieces(Encoding.JSON))

#: Caps on a pull with maxMsgBytes that the loop serves: entry by entry, because it filters, or
#: because there is nothing that a bulk read could return.
_MAX_FILTERED: Final = 1024
_MAX_FILTERED_BYTES: Final = MIB

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
}
#: The queue does not exist or is empty.
_EMPTY: Final = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})
_OUTSIDE: Final = frozenset({GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_TOO_SMALL})
#: A result with one of these names another offset than the one asked for.
_FAULTS: Final = _EMPTY | _OUTSIDE | {GetStatus.OFFSET_FOUND_NULL}


class PullServing:
    """Reads messages for pulls and answers them."""

    def __init__(self, parts: BrokerParts, plain: PlanUser | None = None) -> None:
        """`plain` serves pulls with cached plans before they come here."""
        self.config = parts.config
        self._role = parts.role
        self.store = parts.store
        self.long_poll = parts.long_poll
        self.plans = PullPlans(parts, plain)
        self.stats = parts.stats
        self._turns = parts.long_poll.turns
        #: Called with group, topic, queue id and the messages of each response.
        self._on_found = parts.hooks.found if parts.hooks.consume else None
        self._delivered = None if parts.instruments is None else parts.instruments.delivered

    def get(self, pull: Pull, offset: int, *, may_wait: bool = False) -> GetResult:
        """Return the messages of a pull from `offset` on.

        With `may_wait` the result may be NOT_IN_MEMORY: a thread has to read from disk first.
        """
        plan = pull.plan
        begun = perf_counter()
        if plan.max_bytes > 0 or plan.reads_records:
            result = self._get_filtered(pull, offset, may_wait=may_wait)
        else:
            result = self.store.get(
                plan.topic,
                plan.queue_id,
                offset,
                plan.max_count,
                plan.message_filter,
                may_wait=may_wait,
            )
        if not result.count and result.status in _FAULTS and not self._corrects_offsets:
            result.next_offset = offset
        self.took(perf_counter() - begun)
        return result

    def took(self, seconds: float) -> None:
        """Note how long a get took."""
        milliseconds = int(seconds * 1000)
        if milliseconds > self.stats.slowest_get:
            self.stats.slowest_get = milliseconds

    @property
    def _corrects_offsets(self) -> bool:
        return not self._role.is_replica or self.store.config.offset_check_in_slave

    def _get_filtered(self, pull: Pull, offset: int, *, may_wait: bool) -> GetResult:
        plan = pull.plan
        max_count, max_bytes = plan.max_count, 0
        if plan.max_bytes > 0:
            max_count = min(max_count, _MAX_FILTERED)
            max_bytes = min(plan.max_bytes, _MAX_FILTERED_BYTES)
        begun = perf_counter()
        result = self.store.get(
            plan.topic,
            plan.queue_id,
            offset,
            max_count,
            plan.message_filter,
            may_wait=may_wait,
            max_bytes=max_bytes,
        )
        if plan.reads_records:
            self._turns.charge(begun)
        return result

    def code(self, result: GetResult, offset: int) -> ResponseCode:
        """Return RocketMQ's code for a get from `offset`."""
        code = _CODES.get(result.status)
        if code is not None:
            return code
        if not _is_moved(result, offset):
            return ResponseCode.PULL_NOT_FOUND
        if self._corrects_offsets:
            return ResponseCode.PULL_OFFSET_MOVED
        return ResponseCode.PULL_RETRY_IMMEDIATELY

    def respond(
        self,
        frame: RawFrame,
        pull: Pull,
        result: GetResult,
        code: ResponseCode,
        responses: list[bytes],
    ) -> None:
        """Append the response to a pull."""
        plan = pull.plan
        if code is ResponseCode.SUCCESS:
            self.stats.pulled(
                plan.group,
                plan.topic,
                plan.queue_id,
                result.count,
                result.size,
                next_offset=result.next_offset,
            )
            if self._delivered is not None:
                self._delivered(result.pieces[0])
            if self._on_found is not None:
                self._on_found(plan.group, plan.topic, plan.queue_id, result)
        else:
            self.stats.missed += 1
        suggested = suggested_broker(self.config, plan.group_config, is_slow=result.suggest_replica)
        if code is ResponseCode.PULL_RETRY_IMMEDIATELY and _is_moved(result, pull.offset):
            suggested = plan.group_config.broker_id  # a replica that does not correct the offset
        opaque = frame[1].get("opaque", 0)
        if code is ResponseCode.SUCCESS and frame[0] == 0 and type(opaque) is int:
            header = _FOUND % (
                suggested,
                result.next_offset,
                result.min_offset,
                result.max_offset,
                opaque,
            )
            length = len(header)
            responses.append(pack_prefix(4 + length + result.size, length))
            responses.append(header)
            responses += result.pieces
            return
        if code is ResponseCode.PULL_OFFSET_MOVED:
            logger.info(
                "offset of group %s corrected in %s queue %d: %d to %d, queue holds %d to %d",
                plan.group,
                plan.topic,
                plan.queue_id,
                pull.offset,
                result.next_offset,
                result.min_offset,
                result.max_offset,
            )
        response = command_from(frame).answer(
            code,
            result.status.name,
            {
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(result.next_offset),
                "minOffset": str(result.min_offset),
                "maxOffset": str(result.max_offset),
            },
            b"".join(result.pieces),
        )
        responses.append(response.encode())


def suggested_broker(config: BrokerConfig, group: SubscriptionGroupConfig, *, is_slow: bool) -> int:
    """Return the id of the broker that a consumer should pull from next."""
    if not config.slave_read_enable:
        return MASTER_ID
    return group.which_broker_when_consume_slowly if is_slow else group.broker_id


def _is_moved(result: GetResult, offset: int) -> bool:
    """Return whether a get from `offset` was outside its queue."""
    if result.status in _EMPTY:
        return offset != 0
    return result.status in _OUTSIDE


def refusal(frame: RawFrame, error: Exception) -> bytes:
    """Return the response to a pull that cannot be served. Raises FrameError if it is one."""
    request = command_from(frame)
    if isinstance(error, RequestError):
        return request.answer(error.code, error.remark).encode()
    if isinstance(error, FrameError):
        raise error
    return request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}").encode()


def stopping() -> RequestError:
    """Return the refusal of a stopping broker; clients retry after three seconds.

    PULL_NOT_FOUND would make them retry at once on a connection that is closing, and Java's 4.9
    client then waits thirty seconds for a response that was in flight when the connection broke.
    """
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")
