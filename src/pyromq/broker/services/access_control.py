"""Access control of a broker: every request passes `acl.validation` before its handler.

`AccessControl.guard` wraps the handlers of all routes, outside of the hooks. Requests of hot codes
are checked frame by frame, and the allowed ones continue as one run. If the compiled kernel can
check signatures (`acl.compiled`), it keeps serving plain sends and pulls, of accounts that were
allowed such a request before; without that it sees no request.

Beside the verdict of the validator, strict mode knows three kinds of requests whose topic is in the
store: look-ups by id, messages that a consumer sends back, and ends of transactions. The record at
the given offset must be a real one, with an entry in its queue: bytes inside a body that look like
a record are not, and could reach into the messages of others.

Refused requests and all administrative ones go to the audit log.

On the loop, except that large bodies are checked in the heartbeat lane.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from pyromq.acl import compiled
from pyromq.acl.audit import AuditLog
from pyromq.acl.auditing import Auditor, host_of
from pyromq.acl.classification import Access, Need, StoredMessage
from pyromq.acl.reload import AclStore
from pyromq.acl.rules import Account, Rules
from pyromq.acl.validation import AccessDeniedError, Validator
from pyromq.base.log_lines import printable
from pyromq.base.memo import Memo
from pyromq.broker.hooks import followed
from pyromq.broker.routes import Route, Routes, wrapped
from pyromq.broker.services.flow_control import Lane
from pyromq.protocol.java.wire_types import INT64, parse_integer
from pyromq.protocol.message.properties import REAL_TOPIC
from pyromq.protocol.message.record import RecordError, decode_record
from pyromq.protocol.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import (
    FrameError,
    RawFrame,
    RemotingCommand,
    RequestError,
    command_from,
)
from pyromq.protocol.wire.header_json import text_fields
from pyromq.remoting.connection import Connection, Handler, HotHandler
from pyromq.remoting.runs import wants_answer
from pyromq.remoting.service import Result
from pyromq.store.queues.consume_queue import ConsumeQueue

#: Bodies above this size are decoded off the loop.
_LARGE_BODY: Final = 64 * 1024


class MessageLookup(Protocol):
    """The part of the store that finds the topic of a message."""

    def seal(self) -> None:
        """Write the messages of this chunk."""

    def is_cold(self, physical_offset: int) -> bool:
        """Whether reading a record would wait for the disk."""

    def read_record(self, physical_offset: int) -> bytes | None:
        """Return the record that starts at this offset."""

    def fetch_record(self, physical_offset: int) -> bytes | None:
        """Return the same, from disk."""

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that exists."""


class AccessControl:
    """Guards the routes of a broker."""

    def __init__(
        self,
        rules: AclStore,
        *,
        strict: bool,
        replay_window: int,
        audit: AuditLog,
    ) -> None:
        self.rules = rules
        self.validator = Validator(rules.rules, strict=strict, replay_window=replay_window)
        self.auditor = Auditor(audit)
        self._compiled = compiled.load(replay_window if strict else 0)
        self._rules_changed(rules.rules)
        self._hosts: Memo[str, str] = Memo(host_of)
        rules.listeners.append(self._rules_changed)

    @property
    def is_strict(self) -> bool:
        """Whether the mode is strict."""
        return self.validator.strict

    def _rules_changed(self, rules: Rules) -> None:
        self.validator.rules = rules
        if self._compiled is not None:
            self._compiled.set_rules(rules)

    def signatures_for(self, connection: Connection) -> Any:
        """Return the kernel's check of frames, None for a caller that needs none.

        Only for handlers whose frame taker `guard` has kept.
        """
        assert self._compiled is not None
        rules = self.validator.rules
        if rules.global_white and rules.is_white(self._hosts[connection.remote_address]):
            return None
        return self._compiled.signatures

    def guard(self, routes: Routes, store: MessageLookup, lane: Lane) -> Routes:
        """Return the routes with a check before each handler."""

        def guarded(route: Route) -> Route:
            if route.hot is not None:
                # The slow path of a hot handler runs behind the same check.
                hot = wrapped(route.hot, lambda run: self._guarded_hot(route, run))
                if self._compiled is not None:
                    hot = dataclasses.replace(hot, taker=route.hot.taker)
                return dataclasses.replace(route, hot=hot)
            assert route.plain is not None
            return dataclasses.replace(route, plain=_Guard(self, route, store, lane))

        return routes.changed(guarded)

    def host_of(self, connection: Connection) -> str:
        """Return the address of a caller without its port."""
        return self._hosts[connection.remote_address]

    # Runs

    def _guarded_hot(self, route: Route, handler: HotHandler) -> HotHandler:
        code, access, kernel = route.code, route.access, self._compiled

        def serve(connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
            host = self._hosts[connection.remote_address]
            check = self.validator.check
            allowed: list[RawFrame] = []
            try:
                for frame in frames:
                    fields = _fields_of(frame)
                    try:
                        account = check(host, code, access, fields, frame[2])
                    except AccessDeniedError as error:
                        self.auditor.refused(connection.remote_address, code, fields, error)
                        if wants_answer(frame):
                            answer = command_from(frame).answer(error.code, error.remark)
                            answers.append(answer.encode())
                    else:
                        allowed.append(frame)
                        if kernel is not None and account is not None:
                            kernel.allow(code, account, fields)
            finally:
                # A frame that cannot be read ends the connection; those before it are served.
                if allowed:
                    handler(connection, allowed, answers)

        return serve


class _Admitted(NamedTuple):
    """A request as it may be served: its sender, and what was left out of a heartbeat."""

    account: Account | None
    request: RemotingCommand
    left_out: Sequence[Need] = ()


class _Guard:
    """Checks single requests of one code."""

    def __init__(
        self, control: AccessControl, route: Route, store: MessageLookup, lane: Lane
    ) -> None:
        assert route.plain is not None
        self._control = control
        self._validator = control.validator
        self._access: Access = route.access
        self._handler: Handler = route.plain
        self._store = store
        self._lane = lane

    def __call__(self, connection: Connection, request: RemotingCommand) -> Result:
        host = self._control.host_of(connection)
        if len(request.body) > _LARGE_BODY:
            return self._serve_large(connection, request, host)
        try:
            admitted = self._admit(host, request)
        except AccessDeniedError as error:
            self._control.auditor.refused(
                connection.remote_address, request.code, request.ext_fields, error
            )
            raise
        return self._serve(connection, admitted)

    async def _serve_large(
        self, connection: Connection, request: RemotingCommand, host: str
    ) -> RemotingCommand | None:
        try:
            admitted = await self._lane.run(lambda: self._admit(host, request), len(request.body))
        except AccessDeniedError as error:
            self._control.auditor.refused(
                connection.remote_address, request.code, request.ext_fields, error
            )
            raise
        return await _awaited(self._serve(connection, admitted))

    def _admit(self, host: str, request: RemotingCommand) -> _Admitted:
        """Return the sender and the request as it may be served. Raises AccessDeniedError."""
        validator, access = self._validator, self._access
        account = validator.check(host, request.code, access, request.ext_fields, request.body)
        heartbeat = None if account is None else validator.heartbeat(account, access, request.body)
        if heartbeat is None or not heartbeat.refused:
            return _Admitted(account, request)
        changed = dataclasses.replace(request, body=heartbeat.body)
        return _Admitted(account, changed, heartbeat.refused)

    def _serve(self, connection: Connection, admitted: _Admitted) -> Result:
        account, request, left_out = admitted
        if account is not None and left_out:
            self._control.auditor.left_out(connection.remote_address, request, account, left_out)
        stored = self._access.stored
        if account is not None and stored is not None and self._validator.strict:
            return self._serve_stored(connection, request, account, stored)
        if self._access.is_admin and not self._access.is_routine_of(account):
            return followed(
                connection,
                request,
                self._handler,
                lambda answer: self._control.auditor.answered(
                    connection.remote_address, request, account, answer
                ),
            )
        return self._handler(connection, request)

    # Messages in the store

    def _serve_stored(
        self,
        connection: Connection,
        request: RemotingCommand,
        account: Account,
        stored: StoredMessage,
    ) -> Result:
        text = request.ext_fields.get(stored.offset_field)
        if text is None:
            return self._handler(connection, request)  # which refuses it
        offset = parse_integer(text, INT64)
        self._store.seal()  # the message may be of the same chunk
        if self._store.is_cold(offset):
            return self._serve_cold(connection, request, account, stored, offset)
        self._check(connection, request, account, stored, self._topic_at(offset))
        return self._handler(connection, request)

    async def _serve_cold(
        self,
        connection: Connection,
        request: RemotingCommand,
        account: Account,
        stored: StoredMessage,
        offset: int,
    ) -> RemotingCommand | None:
        topic = await self._lane.run(lambda: self._topic_at(offset))
        self._check(connection, request, account, stored, topic)
        return await _awaited(self._handler(connection, request))

    def _check(
        self,
        connection: Connection,
        request: RemotingCommand,
        account: Account,
        stored: StoredMessage,
        topic: str | None,
    ) -> None:
        if topic is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "can not find message by the offset, "
                + printable(request.ext_fields[stored.offset_field], 20),
            )
        try:
            self._validator.check_stored(account, topic, stored.permission)
        except AccessDeniedError as error:
            self._control.auditor.refused(
                connection.remote_address, request.code, request.ext_fields, error
            )
            raise

    def _topic_at(self, offset: int) -> str | None:
        """Return the topic of the message at an offset; None if there is no message."""
        data = self._store.fetch_record(offset)
        try:
            record = None if data is None else decode_record(data)
        except RecordError:
            return None
        if record is None:
            return None
        queue = self._store.find_queue(record.topic, record.queue_id)
        entry = None if queue is None else queue.entry(record.queue_offset)
        if entry is None or entry.physical_offset != offset or entry.size != record.size:
            return None
        if record.topic in (SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC):
            return record.properties.get(REAL_TOPIC, record.topic)
        return record.topic


async def _awaited(result: Result) -> RemotingCommand | None:
    return await result if isinstance(result, Awaitable) else result


def _fields_of(frame: RawFrame) -> dict[str, str]:
    """Return the extFields of a raw frame as texts. Raises FrameError."""
    fields: Any = frame[1].get("extFields")
    if fields is None:
        return {}
    if type(fields) is not dict:
        raise FrameError(f"extFields has type {type(fields).__name__}, expected an object")
    for value in fields.values():
        if type(value) is not str:
            try:
                return text_fields(fields)
            except ValueError as error:
                raise FrameError(str(error)) from error
    return fields
