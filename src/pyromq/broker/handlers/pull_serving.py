"""Serving a checked pull: get its messages from the store and build the response.

`handlers.pull` serves a pull this way when it arrives; `handlers.waiting_pull` and
`handlers.disk_pull` do so later. Response codes are those of RocketMQ's PullMessageProcessor.

Runs on the loop. Reading records for SQL92 filters is charged to the loop iteration
(`services.turns`).
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Final

import orjson

from pyromq.base.sizes import MIB
from pyromq.broker.handlers.pull_plans import Pull, PullPlans
from pyromq.broker.parts import BrokerParts
from pyromq.protocol.wire.bodies import MASTER_ID, SubscriptionGroupConfig
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_RESPONSE,
    FrameError,
    RawFrame,
    RequestError,
    command_from,
    pack_prefix,
)
from pyromq.store.results import GetResult, GetStatus

logger = logging.getLogger(__name__)

_FOUND: Final = (
    (
        b'{"code":0,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d",'
        b'"maxOffset":"%d"},"flag":1,"language":"PYTHON","opaque":%d,"remark":"FOUND",'
        b'"serializeTypeCurrentRPC":"JSON","version":'
    )
    + str(PROTOCOL_VERSION).encode()
    + b"}"
)
assert orjson.loads(_FOUND.replace(b"%d", b"1"))["flag"] == FLAG_RESPONSE
assert orjson.loads(_FOUND.replace(b"%d", b"1"))["language"] == LanguageCode.PYTHON.name

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
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullServing:
    """Reads messages for pulls and answers them."""

    def __init__(self, parts: BrokerParts) -> None:
        self.config = parts.config
        self.store = parts.store
        self.long_poll = parts.long_poll
        self.plans = PullPlans(parts)
        self.stats = parts.stats
        self._turns = parts.long_poll.turns
        #: Called with group, topic, queue id and the messages of each response.
        self._on_found = parts.hooks.found if parts.hooks.consume else None

    def get(self, pull: Pull, offset: int, *, may_wait: bool = False) -> GetResult:
        """Return the messages of a pull from `offset` on.

        With `may_wait` the result may be NOT_IN_MEMORY: a thread has to read from disk first.
        """
        plan = pull.plan
        if plan.max_bytes > 0 or plan.reads_records:
            return self._get_filtered(pull, offset, may_wait=may_wait)
        return self.store.get(
            plan.topic,
            plan.queue_id,
            offset,
            plan.max_count,
            plan.message_filter,
            may_wait=may_wait,
        )

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
            self.stats.pulled(plan.group, plan.topic, plan.queue_id, result.count, result.size)
            if self._on_found is not None:
                self._on_found(plan.group, plan.topic, plan.queue_id, result)
        else:
            self.stats.missed += 1
        suggested = self._suggested_broker(plan.group_config, result)
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

    def _suggested_broker(self, group: SubscriptionGroupConfig, result: GetResult) -> int:
        if not self.config.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if result.suggest_replica else group.broker_id


def response_code(result: GetResult, offset: int) -> ResponseCode:
    """Return RocketMQ's code for a get from `offset`."""
    code = _CODES.get(result.status)
    if code is not None:
        return code
    # The queue does not exist or is empty.
    return ResponseCode.PULL_OFFSET_MOVED if offset != 0 else ResponseCode.PULL_NOT_FOUND


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
