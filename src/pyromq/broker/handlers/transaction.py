"""END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE.

A producer names the half of its transaction by queue offset and physical offset. A commit stores
the message in its real topic; commit and rollback store a record that marks the half as done. Both
records are in one chunk, which is sealed as a whole. Clients send the end one-way; the checks
(`services.transaction_check`) find the ends that got lost.

Different from RocketMQ, invisible to clients: ending a transaction is idempotent, even if the
producer names the half as it was before a check; a record that is not a half is never taken for
one; every request that expects a response gets one.

Runs on the loop. A lane reads halves that are no longer in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final

from pyromq.acl import classification as access
from pyromq.broker.inner_messages import Stored
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Pool, Route, Routes
from pyromq.broker.transaction_messages import (
    HALF_QUEUE,
    HalfError,
    committed,
    end_of,
    origin_of,
    producer_group,
    resumed,
)
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.properties import MAX_PROPERTIES, PREPARED_QUEUE_OFFSET, REAL_TOPIC
from pyromq.protocol.message.record import MessageRecord, RecordError, decode_record
from pyromq.protocol.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_ROLLBACK,
)
from pyromq.protocol.names import TRANSACTION_HALF_TOPIC
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import EndTransactionRequestHeader
from pyromq.protocol.wire.headers_admin import ResumeCheckHalfMessageRequestHeader
from pyromq.remoting.connection import Connection
from pyromq.store.results import PutError, PutStatus

logger = logging.getLogger(__name__)

_NOT_FOUND: Final = "Find prepared transaction message failed"
_OUTCOMES: Final = {TRANSACTION_COMMIT: "commit", TRANSACTION_ROLLBACK: "rollback"}


class TransactionHandlers:
    """Ends transactions."""

    def __init__(self, parts: BrokerParts) -> None:
        self._store = parts.store
        self._writer = parts.writer
        self._transactions = parts.tables.transactions
        self._lane = parts.lanes.end_transaction
        self._store_host = parts.store_host
        self._role = parts.role
        self._stats = parts.stats

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.END_TRANSACTION,
                access.END_TRANSACTION,
                self.end_transaction,
                pool=Pool.TRANSACTION,
            ),
            Route(RequestCode.RESUME_CHECK_HALF_MESSAGE, access.ADMIN, self.resume_check),
        )

    def end_transaction(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """END_TRANSACTION: commit or roll back a half, or leave it open."""
        header = EndTransactionRequestHeader.decode(request.ext_fields)
        if self._role.is_replica:
            return request.answer(ResponseCode.SLAVE_NOT_AVAILABLE)
        if header.commit_or_rollback == TRANSACTION_NOT:
            logger.info(
                "outcome of transaction %s, group %s, unknown to %s: %s",
                header.msg_id,
                header.producer_group,
                connection.remote_address,
                request.remark or "no reason given",
            )
            return request.answer()
        if header.commit_or_rollback not in _OUTCOMES:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {header.commit_or_rollback}, expected {TRANSACTION_COMMIT} "
                f"(commit), {TRANSACTION_ROLLBACK} (rollback) or 0 (unknown)",
            )
        place = header.commit_log_offset
        if self._store.is_cold(place):
            return self._end_later(connection, request, header)
        record = self._store.read_record(place)
        if record is None:
            self._store.seal()  # the half may be of the same chunk
            record = self._store.read_record(place)
        return self._end(connection, request, header, record)

    async def _end_later(
        self, connection: Connection, request: RemotingCommand, header: EndTransactionRequestHeader
    ) -> RemotingCommand:
        record = await self._lane.run(lambda: self._store.fetch_record(header.commit_log_offset))
        if self._role.is_replica:  # since then
            return request.answer(ResponseCode.SLAVE_NOT_AVAILABLE)
        answer = self._end(connection, request, header, record)
        await self._writer.stored()  # a one-way request has no response that would wait
        return answer

    def _end(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: EndTransactionRequestHeader,
        record: bytes | None,
    ) -> RemotingCommand:
        half = _checked_half(header, record)
        queue = self._store.queue(TRANSACTION_HALF_TOPIC, HALF_QUEUE)
        entry = queue.entry(half.queue_offset)
        if entry is None or entry.physical_offset != half.physical_offset:
            # Bytes that look like a half, for example inside the body of a message.
            raise RequestError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        outcome = _OUTCOMES[header.commit_or_rollback]
        origin = origin_of(half)
        if self._transactions.is_ended(half.queue_offset, origin):
            logger.warning(
                "%s: %s of transaction %s, half %d of group %s, ignored: already ended",
                connection.remote_address,
                outcome,
                header.msg_id,
                half.queue_offset,
                header.producer_group,
            )
            return request.answer()
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            try:
                self._writer.put(committed(half))
            except HalfError as error:
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
            except PutError as error:
                raise self._refusal(error) from error
        if header.commit_or_rollback == TRANSACTION_ROLLBACK or header.from_transaction_check:
            logger.info(
                "%s: %s of transaction %s, half %d of group %s",
                connection.remote_address,
                outcome,
                header.msg_id,
                half.queue_offset,
                header.producer_group,
            )
        self._note_end(half.queue_offset, origin)
        self._stats.transaction_ended(
            half.properties.get(REAL_TOPIC, ""),
            is_commit=header.commit_or_rollback == TRANSACTION_COMMIT,
        )
        return request.answer()

    def _note_end(self, half: int, origin: int) -> None:
        now = self._store.chunk_time()
        for offset in self._transactions.end(half, origin):
            try:
                self._writer.put(end_of(offset, self._store_host, now))
            except PutError as error:
                # The table knows the end while this process lives, and longer once it is saved.
                logger.error("end of half %d not stored: %s", offset, error)
            else:
                self._transactions.end_stored(offset)

    async def resume_check(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """RESUME_CHECK_HALF_MESSAGE: check an abandoned half again."""
        header = ResumeCheckHalfMessageRequestHeader.decode(request.ext_fields)
        try:
            place = decode_message_id(header.msg_id or "")[2]
            self._store.seal()
            record = await self._lane.run(lambda: self._store.fetch_record(place))
            if record is None:
                raise HalfError(f"no message {header.msg_id}")
            if self._role.is_replica:
                raise HalfError("this broker is a replica")
            stored = self._resume(decode_record(record))
        except (ValueError, PutError) as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"Put message back to {TRANSACTION_HALF_TOPIC} failed: {error}",
            ) from error
        await self._writer.stored()
        logger.info("half message %s put back as half %d for checks", header.msg_id, stored.offset)
        return request.answer()

    def _resume(self, record: MessageRecord) -> Stored:
        message = resumed(record)
        before = origin = int(message.properties.get(PREPARED_QUEUE_OFFSET, -1))
        if record.topic == TRANSACTION_HALF_TOPIC:
            before = record.queue_offset
        if max(before, origin) >= self._store.max_offset(TRANSACTION_HALF_TOPIC, HALF_QUEUE):
            raise HalfError(f"message {record.message_id} refers to a half that does not exist")
        if self._transactions.is_ended(before, origin):
            raise HalfError(f"the transaction of message {record.message_id} has ended")
        stored = self._writer.put(message)
        if origin >= 0:
            self._transactions.put_back(before, origin, stored.offset)
        return stored

    def _refusal(self, error: PutError) -> RequestError:
        """Return the refusal of a commit that cannot be stored; the half stays open."""
        if error.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            return RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "The message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {self._store.config.max_message_size}B, "
                f"msg properties length limit {MAX_PROPERTIES}B: {error.reason}",
            )
        if error.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"Service not available now: {error.reason}"
            )
        if error.status is PutStatus.CREATE_MAPEDFILE_FAILED:
            return RequestError(
                ResponseCode.SYSTEM_ERROR, f"Create mapped file failed: {error.reason}"
            )
        return RequestError(ResponseCode.SYSTEM_ERROR, f"{error.status.name}: {error.reason}")


def _checked_half(header: EndTransactionRequestHeader, record: bytes | None) -> MessageRecord:
    """Return the half that a request ends. Raises RequestError with RocketMQ's remarks."""
    half: MessageRecord | None = None
    if record is not None:
        try:
            half = decode_record(record)
        except RecordError:
            logger.exception("record at %d is damaged", header.commit_log_offset)
    if half is None or (half.topic, half.queue_id) != (TRANSACTION_HALF_TOPIC, HALF_QUEUE):
        raise RequestError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
    if producer_group(half) != header.producer_group:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if half.physical_offset != header.commit_log_offset:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
    return half
