"""PULL_MESSAGE: the messages of a queue from an offset on, now or when there are some.

LITE_PULL_MESSAGE of 5.x clients is the same.

A pull that finds nothing and may wait is parked (`services.long_poll`) and runs again
when a message arrives or its time is over. Checks, answers and their order are those
of RocketMQ's PullMessageProcessor.

Compiling SQL92 expressions and looking into records for them takes time, which all pulls of a
turn of the loop share (`services.turns`): when it is over, pulls wait for the next turn.

Runs on the loop; a run of frames at a time.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final, TypeVar

import orjson

from pyromq.broker.handlers.pull_filters import PullFilter, PullFilters
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Pool, Route, Routes, runs
from pyromq.broker.services.long_poll import ParkedPull
from pyromq.protocol.java.wire_types import INT64, parse_integer
from pyromq.protocol.message.sysflag import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    is_readable,
)
from pyromq.protocol.wire import header_json
from pyromq.protocol.wire.bodies import MASTER_ID, DataVersion, SubscriptionGroupConfig
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FrameError,
    RawFrame,
    RemotingCommand,
    RequestError,
    command_from,
    pack_prefix,
)
from pyromq.protocol.wire.headers import PullMessageRequestHeader
from pyromq.remoting.connection import Connection
from pyromq.store.queues.bulk_reading import BulkRecords
from pyromq.store.results import GetResult, GetStatus

T = TypeVar("T")

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

#: So many plans are remembered; those of long expressions are not.
_MAX_PLANS: Final = 65_536
_MAX_REMEMBERED_LENGTH: Final = 1024
#: Pulls of a run, each with an answer of up to 256 KiB, before the server checks whether the client
#: reads.
_MAX_RUN: Final = 8
#: So many bulk pulls of one connection are read at a time: their answers take memory.
_MAX_BULK: Final = 8
#: Of a bulk pull that filters.
_MAX_FILTERED: Final = 1024
_MAX_FILTERED_BYTES: Final = 1024 * 1024
#: A pull waits for the entries of its queue, for its records, and once more for either.
_MAX_WAITS: Final = 3

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class _Plan:
    """What the pulls of a consumer from a queue have in common, and that they may be served.

    Checked anew when topics, groups or subscriptions have changed.
    """

    __slots__ = (
        "consumers",
        "expression_type",
        "group",
        "group_config",
        "groups",
        "is_checked",
        "max_bytes",
        "max_count",
        "message_filter",
        "queue_id",
        "sub_version",
        "subscription",
        "suspend_ms",
        "sys_flag",
        "topic",
        "topics",
    )

    #: Set when the checks are passed.
    is_checked: bool
    group_config: SubscriptionGroupConfig
    message_filter: PullFilter | None
    #: The versions of the tables that it was checked against.
    topics: DataVersion
    groups: DataVersion
    consumers: int

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        max_count: int,
        sys_flag: int,
        suspend_ms: int,
        sub_version: int,
        subscription: str | None,
        expression_type: str | None,
        max_bytes: int,
    ) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.max_count = max_count
        self.sys_flag = sys_flag
        self.suspend_ms = suspend_ms
        self.sub_version = sub_version
        self.subscription = subscription
        self.expression_type = expression_type
        #: 0: the usual limits count.
        self.max_bytes = max_bytes


class _Pull:
    """One pull: from which offset, and by which plan."""

    __slots__ = ("commit_offset", "offset", "plan")

    def __init__(self, plan: _Plan, offset: int, commit_offset: int) -> None:
        self.plan = plan
        self.offset = offset
        self.commit_offset = commit_offset


class PullHandlers:
    """Gives messages to consumers."""

    def __init__(self, parts: BrokerParts) -> None:
        tables, long_poll = parts.tables, parts.long_poll
        self._config = parts.config
        self._store = parts.store
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._consumers = tables.consumers
        self._long_poll = long_poll
        self._turns = long_poll.turns
        self._is_replica = parts.is_replica
        self._filters = PullFilters(parts.config, tables.consumers, tables.filters, long_poll.turns)
        #: Reads what is not in memory.
        self._lane = parts.lanes.pull
        self._stats = parts.stats
        #: Called with group, topic, queue id and the messages of each answer that leaves.
        self._on_found = parts.hooks.found if parts.hooks.consume else None
        self._plans: dict[tuple[str | None, ...], _Plan] = {}
        #: How many bulk pulls of a connection are under way.
        self._in_bulk: Counter[Connection] = Counter()
        long_poll.run_again = self._run_again

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.PULL_MESSAGE, hot=runs(self.pull), pool=Pool.PULL, max_run=_MAX_RUN),
            Route(
                RequestCode.LITE_PULL_MESSAGE, hot=runs(self.pull), pool=Pool.PULL, max_run=_MAX_RUN
            ),
        )

    def pull(self, connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
        """A run of PULL_MESSAGE."""
        for frame in frames:
            if self._turns.is_over:
                self._pull_later(connection, frame)
            else:
                self._pull_one(connection, frame, answers)

    def _pull_later(self, connection: Connection, frame: RawFrame) -> None:
        """Let a pull wait for a turn of the loop that has time for it."""
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
        late: list[bytes] = []
        try:
            self._pull_one(connection, frame, late)
            if late:
                connection.write_parts(late)
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)
        return False

    def _pull_one(self, connection: Connection, frame: RawFrame, answers: list[bytes]) -> None:
        header = frame[1]
        oneway = header.get("flag", 0) & FLAG_ONEWAY
        try:
            pull = self._pull_of(connection, header.get("extFields") or {})
        except (ValueError, RequestError, KeyError, TypeError, AttributeError) as error:
            if not oneway:
                answers.append(_refused(command_from(frame), error).encode())
            return
        plan = pull.plan
        if plan.sys_flag & PULL_COMMIT_OFFSET and not self._is_replica:
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
            self._serve_bulk(connection, frame, pull, answers)
        else:
            self._serve(connection, frame, pull, answers, waits=_MAX_WAITS)

    def _serve_bulk(
        self, connection: Connection, frame: RawFrame, pull: _Pull, answers: list[bytes]
    ) -> None:
        """Have a thread read the megabytes that a pull asks for."""
        plan = pull.plan
        bulk = self._store.plan_bulk(
            plan.topic, plan.queue_id, pull.offset, plan.max_count, plan.max_bytes
        )
        if bulk is None:
            self._serve(connection, frame, pull, answers, waits=_MAX_WAITS)
            return
        if self._in_bulk[connection] >= _MAX_BULK:
            busy = RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{_MAX_BULK} bulk pulls of this connection are under way: wait for their answers",
            )
            answers.append(_refused(command_from(frame), busy).encode())
            return

        def answer(records: BulkRecords | None, late: list[bytes]) -> None:
            if records is None:
                self._serve(connection, frame, pull, late, waits=_MAX_WAITS)
                return
            queue = self._store.queue(plan.topic, plan.queue_id)
            next_offset = pull.offset + records.messages
            result = GetResult(GetStatus.FOUND, next_offset, queue.min_offset, queue.next_offset)
            result.pieces, result.size = [records.records], len(records.records)
            result.count = records.messages
            self._answer(frame, pull, result, ResponseCode.SUCCESS, late)

        def ended() -> None:
            self._in_bulk[connection] -= 1
            if not self._in_bulk[connection]:
                del self._in_bulk[connection]

        self._in_bulk[connection] += 1
        self._later(connection, frame, pull, bulk.read, answer, answers, ended)

    def _serve(
        self,
        connection: Connection,
        frame: RawFrame,
        pull: _Pull,
        answers: list[bytes],
        *,
        waits: int,
    ) -> None:
        """Answer a checked pull, or park it, or have its messages read from the disk first."""
        result = self._get(pull, pull.offset, may_wait=waits > 0)
        if result.bring_in is not None:
            self._read_later(connection, frame, pull, result.bring_in, answers, waits - 1)
            return
        code = _code(result, pull.offset)
        if code is ResponseCode.PULL_NOT_FOUND and pull.plan.sys_flag & PULL_SUSPEND:
            if self._long_poll.stopping:
                answers.append(_refused(command_from(frame), _stopping()).encode())
            else:
                self._park(connection, frame, pull, answers)
            return
        self._answer(frame, pull, result, code, answers)

    def _read_later(
        self,
        connection: Connection,
        frame: RawFrame,
        pull: _Pull,
        bring_in: Callable[[], None],
        answers: list[bytes],
        waits: int,
    ) -> None:
        """Serve the pull when a thread has brought in what it reads."""
        self._later(
            connection,
            frame,
            pull,
            bring_in,
            lambda _, late: self._serve(connection, frame, pull, late, waits=waits),
            answers,
        )

    def _later(
        self,
        connection: Connection,
        frame: RawFrame,
        pull: _Pull,
        work: Callable[[], T],
        serve: Callable[[T, list[bytes]], None],
        answers: list[bytes],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Have a thread do some work, then serve the pull with its result.

        `ended` is called when the thread has done, or was not asked at all.
        """
        try:
            done = self._lane.submit(work)
        except RequestError as busy:
            ended()
            answers.append(_refused(command_from(frame), busy).encode())
            return

        def go_on(read: asyncio.Future[T]) -> None:
            ended()
            if connection.closed or read.cancelled():
                return
            late: list[bytes] = []
            error = read.exception()
            try:
                if isinstance(error, RequestError):
                    raise error
                if error is not None:
                    raise RequestError(ResponseCode.SYSTEM_ERROR, f"reading failed: {error}")
                self._recheck(connection, pull)
                serve(read.result(), late)
            except (RequestError, ValueError) as refused:
                late = [_refused(command_from(frame), refused).encode()]
            if late:
                connection.write_parts(late)

        done.add_done_callback(go_on)

    def settings_changed(self) -> None:
        """Check every pull anew."""
        self._plans.clear()

    def _pull_of(self, connection: Connection, ext: dict[str, str]) -> _Pull:
        """A checked pull; raises ValueError, RequestError or what a strange header causes."""
        try:
            key = (
                ext["consumerGroup"],
                ext["topic"],
                ext["queueId"],
                ext["maxMsgNums"],
                ext["sysFlag"],
                ext["suspendTimeoutMillis"],
                ext["subVersion"],
                ext.get("subscription"),
                ext.get("expressionType"),
                ext.get("maxMsgBytes"),
            )
            plan = self._plans.get(key)
            if plan is not None and self._holds(plan):
                return _Pull(
                    plan,
                    parse_integer(ext["queueOffset"], INT64),
                    parse_integer(ext["commitOffset"], INT64),
                )
        except (KeyError, TypeError, ValueError):
            key = None  # what is wrong with it, or only unusual, the typed header knows
        header = PullMessageRequestHeader.decode(header_json.text_fields(ext))
        plan = _Plan(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.max_msg_nums,
            header.sys_flag,
            header.suspend_timeout_millis,
            header.sub_version,
            # Of no use without the flag, and it may be of any length.
            header.subscription if header.sys_flag & PULL_SUBSCRIPTION else None,
            header.expression_type if header.sys_flag & PULL_SUBSCRIPTION else None,
            min(header.max_msg_bytes or 0, self._config.bulk_pull_max_bytes),
        )
        self._check(connection, plan)
        if key is not None and not _reads_records(plan) and _is_short(key):
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return _Pull(plan, header.queue_offset, header.commit_offset)

    def _recheck(self, connection: Connection, pull: _Pull) -> None:
        """Check a pull that has waited; its plan may be that of others, too."""
        plan = pull.plan
        if not plan.is_checked or not self._holds(plan) or _reads_records(plan):
            plan = copy.copy(plan)
            self._check(connection, plan)
            pull.plan = plan

    def _holds(self, plan: _Plan) -> bool:
        """Whether nothing has changed since a plan was checked."""
        return (
            plan.topics is self._topics.data_version
            and plan.groups is self._groups.data_version
            and plan.consumers == self._consumers.version
        )

    def _check(self, connection: Connection, plan: _Plan) -> None:
        """RocketMQ's checks, in its order."""
        config = self._config
        if not is_readable(config.broker_permission):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] pulling message is forbidden",
            )
        group = self._groups.find(plan.group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{plan.group}] does not exist",
            )
        if not group.consume_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {plan.group}",
            )
        topic = self._topics.get(plan.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{plan.topic}] not exist, apply first please!",
            )
        if not is_readable(topic.perm):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{plan.topic}] pulling message is forbidden",
            )
        if not 0 <= plan.queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{plan.queue_id}] is illegal, topic:[{plan.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{connection.remote_address}]",
            )
        plan.is_checked = True
        plan.group_config = group
        plan.topics = self._topics.data_version
        plan.groups = self._groups.data_version
        plan.consumers = self._consumers.version
        if plan.sys_flag & PULL_SUBSCRIPTION:
            plan.message_filter = self._filters.of_pull(
                plan.topic, plan.expression_type, plan.subscription
            )
        else:
            plan.message_filter = self._filters.of_group(plan.topic, group, plan.sub_version)

    def _get(self, pull: _Pull, offset: int, *, may_wait: bool = False) -> GetResult:
        plan = pull.plan
        if _reads_records(plan):
            begun = perf_counter()
            result = self._look(plan, offset, may_wait=may_wait)
            self._turns.charge(begun)
            return result
        return self._look(plan, offset, may_wait=may_wait)

    def _look(self, plan: _Plan, offset: int, *, may_wait: bool) -> GetResult:
        if plan.max_bytes > 0:
            return self._get_bulk(plan, offset, may_wait=may_wait)
        return self._store.get(
            plan.topic,
            plan.queue_id,
            offset,
            plan.max_count,
            plan.message_filter,
            may_wait=may_wait,
        )

    def _get_bulk(self, plan: _Plan, offset: int, *, may_wait: bool) -> GetResult:
        # What is left to this way is filtered entry by entry: not too much of it on the loop.
        return self._store.get(
            plan.topic,
            plan.queue_id,
            offset,
            min(plan.max_count, _MAX_FILTERED),
            plan.message_filter,
            may_wait=may_wait,
            max_bytes=min(plan.max_bytes, _MAX_FILTERED_BYTES),
        )

    def _answer(
        self,
        frame: RawFrame,
        pull: _Pull,
        result: GetResult,
        code: ResponseCode,
        answers: list[bytes],
    ) -> None:
        plan = pull.plan
        if code is ResponseCode.SUCCESS:
            self._stats.pulled(plan.group, plan.topic, plan.queue_id, result.count, result.size)
            if self._on_found is not None:
                self._on_found(plan.group, plan.topic, plan.queue_id, result)
        else:
            self._stats.missed += 1
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
            answers.append(pack_prefix(4 + length + result.size, length))
            answers.append(header)
            answers += result.pieces
            return
        if code is ResponseCode.PULL_OFFSET_MOVED:
            logger.info(
                "%s queue %d, group %s: offset %d corrected to %d, there are %d to %d",
                pull.plan.topic,
                pull.plan.queue_id,
                pull.plan.group,
                pull.offset,
                result.next_offset,
                result.min_offset,
                result.max_offset,
            )
        answer = command_from(frame).answer(
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
        answers.append(answer.encode())

    def _suggested_broker(self, group: SubscriptionGroupConfig, result: GetResult) -> int:
        if not self._config.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if result.suggest_replica else group.broker_id

    def _park(
        self, connection: Connection, frame: RawFrame, pull: _Pull, answers: list[bytes]
    ) -> None:
        # One that cannot be answered later is refused now; what its answer needs is kept.
        request = command_from(frame)
        self._stats.missed += 1
        weight = 0
        if pull.plan.subscription is not None:
            weight = len(pull.plan.subscription)
            self._forget_filter(pull)
        frame = (frame[0], {"code": request.code, "opaque": request.opaque}, b"")
        wait_ms = (
            pull.plan.suspend_ms
            if self._config.long_polling_enable
            else self._config.short_polling_time_mills
        )
        try:
            self._long_poll.park(
                self._store.queue(pull.plan.topic, pull.plan.queue_id),
                ParkedPull(connection, frame, pull.offset, wait_ms / 1000, pull, weight),
            )
        except RequestError as refusal:
            answers.append(_refused(request, refusal).encode())

    def _forget_filter(self, pull: _Pull) -> None:
        """Let a waiting pull keep its own expression only: what was made of it takes much more."""
        plan = pull.plan
        if _reads_records(plan) or len(plan.subscription or "") > _MAX_REMEMBERED_LENGTH:
            pull.plan = plan = copy.copy(plan)
            plan.message_filter = None
            plan.is_checked = False

    def _run_again(self, parked: ParkedPull[_Pull], *, is_over: bool) -> bytes | None:
        """Return the answer of a parked pull, or None to keep waiting."""
        answer = self._try_again(parked, is_over=is_over)
        if answer is None and parked.pull.plan.subscription is not None:
            self._forget_filter(parked.pull)
        return answer

    def _try_again(self, parked: ParkedPull[_Pull], *, is_over: bool) -> bytes | None:
        pull = parked.pull
        before = pull.plan
        try:
            # Topic, group and subscription may have changed meanwhile.
            self._recheck(parked.connection, pull)
        except (RequestError, ValueError) as error:
            return _refused(command_from(parked.frame), error).encode()
        if before.is_checked and pull.plan.message_filter != before.message_filter:
            parked.offset = pull.offset
        result = self._get(pull, parked.offset)
        while result.status is GetStatus.NO_MATCHED_MESSAGE and not is_over:
            # What was filtered out once need not be looked at again.
            parked.offset = result.next_offset
            if parked.offset >= result.max_offset:
                return None
            if _reads_records(pull.plan):
                break  # its client asks for the rest: that may take long
            result = self._get(pull, parked.offset)
        code = _code(result, pull.offset)
        if code is ResponseCode.PULL_NOT_FOUND and not is_over:
            return None
        if code is ResponseCode.PULL_NOT_FOUND and self._long_poll.stopping:
            return _refused(command_from(parked.frame), _stopping()).encode()
        if code is ResponseCode.PULL_NOT_FOUND and parked.offset != pull.offset:
            # Everything so far was filtered out: the client goes on behind it.
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        answers: list[bytes] = []
        self._answer(parked.frame, pull, result, code, answers)
        return b"".join(answers)


def _is_short(key: tuple[str | None, ...]) -> bool:
    # Some clients send numbers that are no texts.
    return sum(len(text) for text in key if isinstance(text, str)) <= _MAX_REMEMBERED_LENGTH


def _reads_records(plan: _Plan) -> bool:
    """Whether the plan's filter is one that looks into records."""
    return plan.message_filter is not None and plan.message_filter.reads_records


def _code(result: GetResult, offset: int) -> ResponseCode:
    code = _CODES.get(result.status)
    if code is not None:
        return code
    # There is no queue, or nothing in it.
    return ResponseCode.PULL_OFFSET_MOVED if offset != 0 else ResponseCode.PULL_NOT_FOUND


def _stopping() -> RequestError:
    """Why a pull cannot wait here: its client asks again in three seconds.

    Told that nothing was found, it would ask at once, on a connection that closes now, and Java's
    4.9 client waits thirty seconds for an answer that was under way when a connection broke.
    """
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")


def _refused(request: RemotingCommand, error: Exception) -> RemotingCommand:
    if isinstance(error, RequestError):
        return request.answer(error.code, error.remark)
    if isinstance(error, FrameError):
        raise error
    return request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
