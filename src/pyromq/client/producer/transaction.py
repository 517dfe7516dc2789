"""Send messages that are delivered only if a local transaction commits.

    async def execute(half):
        await database.pay(order, half.transaction_id)
        return TransactionState.COMMIT

    async def check(message):
        paid = await database.is_paid(message.msg_id)
        return TransactionState.COMMIT if paid else TransactionState.ROLLBACK

    async with TransactionProducer("127.0.0.1:9876", group="payments", check=check) as producer:
        await producer.send_in_transaction(Message("orders", b"..."), execute)

1. The broker stores the message as a half message, which no consumer sees. If that fails, nothing
   is executed.
2. `execute` runs the local transaction and returns its outcome. None or an exception means that
   the outcome is unknown.
3. The producer sends the outcome to the broker (END_TRANSACTION, oneway), which delivers a
   committed message. If the request is lost or the outcome is unknown, the broker asks members of
   the producer's group later, repeatedly, and `check` answers. `check` must therefore know the
   transactions of other members and of earlier runs.

A half message that was stored but not flushed or replicated in time is rolled back without
executing, as in Java. A retried send may store two half messages; `check` then decides on the
other one.

If a broker asks again about a message whose check is in flight, only its latest request is
answered; Java answers both, which may deliver the message twice. `execute` and `check` may be
coroutine functions, which run on the event loop, or plain functions, which run in threads. The
producer runs on the event loop that started it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, ParamSpec, Unpack

from pyromq.client.arguments import check_callable, check_count, refusal
from pyromq.client.errors import ClientError, IllegalMessageError, TopicNotFoundError
from pyromq.client.handler_threads import (
    HandlerThreads,
    call_in_thread,
    failure_of,
    is_coroutine_function,
)
from pyromq.client.hooks import EndingTransaction
from pyromq.client.message import (
    HalfMessage,
    Message,
    check_message,
    check_topic,
    message_fields,
)
from pyromq.client.producer.options import ProducerOptions
from pyromq.client.producer.producer import Producer, check_send
from pyromq.client.producer.sending import Outgoing
from pyromq.client.producer.sync import SyncTransactionProducer
from pyromq.client.producer.targets import QueueSelector
from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.client.results import (
    Check,
    Execute,
    SendResult,
    SendStatus,
    TransactionResult,
    TransactionState,
)
from pyromq.client.session.routes import TEMPLATE_TOPIC
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.properties import PRODUCER_GROUP
from pyromq.protocol.message.record import decode_record
from pyromq.protocol.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_ROLLBACK,
)
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand
from pyromq.protocol.wire.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from pyromq.remoting.client import ClientHandler, RemotingError

logger = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")

#: Threads for `execute` functions.
_MAX_EXECUTE_THREADS: Final = 64
#: Checks waiting or running; further ones are left to the broker's next attempt.
_MAX_CHECKS_IN_FLIGHT: Final = 2000
#: Time limit of `close` for transactions and checks in flight.
_CLOSE_SECONDS: Final = 10.0
_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.5, 30.0

_FLAGS: Final = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: TRANSACTION_NOT,
}


class TransactionProducer(Producer):
    """A producer that can also send messages in transactions.

    All members of `group` must be able to `check` its transactions. At most `max_checks` checks
    run at the same time. Brokers of `topics` know this producer from its start and can ask about
    transactions that earlier runs left open; other brokers can ask after the first message sent
    to them. See `ProducerOptions` for the other options.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        group: str,
        check: Check,
        max_checks: int = 16,
        topics: Sequence[str] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_callable("check", check)
        check_count("max_checks", max_checks)
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise refusal("topics", topics, "expected a list of names")
        topics = list(topics)
        for topic in topics:
            check_topic(topic)
        super().__init__(namesrv, group=group, **options)
        self._check = check
        self._topics = [*topics, TEMPLATE_TOPIC]
        self._checks = asyncio.Semaphore(max_checks)
        self._execute_threads = HandlerThreads(_MAX_EXECUTE_THREADS, group)
        self._check_threads = HandlerThreads(max_checks, group)
        #: Checks not answered yet, by message id.
        self._asked: dict[str, _Question] = {}
        #: Transactions and checks in flight, each with its task.
        self._in_progress: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._introduction: asyncio.Task[None] | None = None

    @classmethod
    def sync(
        cls: Callable[_Arguments, TransactionProducer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> SyncTransactionProducer:
        """Return a producer for programs without an event loop, from the same arguments."""
        return SyncTransactionProducer(partial(cls, *args, **kwargs))

    async def start(self) -> None:
        """Get ready to send, and register with the brokers that may check. Idempotent."""
        await super().start()
        if self._introduction is None:
            self._introduction = asyncio.create_task(self._introduce())

    async def close(self) -> None:
        """Wait for transactions and checks in flight, then close as any producer does. Idempotent.

        Brokers ask other members of the group about transactions whose outcome they do not know.
        """
        if self._introduction is not None:
            self._introduction.cancel()
            await asyncio.gather(self._introduction, return_exceptions=True)
        current = asyncio.current_task()
        waiting = [end for end, task in self._in_progress.items() if task is not current]
        if waiting:
            await asyncio.wait(waiting, timeout=_CLOSE_SECONDS)
        others = [task for task in self._tasks if task is not current]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._execute_threads.close()
        self._check_threads.close()
        await super().close()

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        argument: Any = None,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - of one attempt to send the half
    ) -> TransactionResult:
        """Store `message`, call `execute`, and commit or roll back as it returns.

        `execute` gets a `HalfMessage` that carries `argument`. Raises what `send` raises if the
        half message was not stored. An exception of `execute` is logged and returned in the
        result, with the state UNKNOWN.
        """
        check_message(message)
        check_callable("execute", execute)
        check_send(queue, select, timeout)
        if message.delay_level:
            raise IllegalMessageError("a delayed message cannot be part of a transaction")
        if message.is_reply:
            raise IllegalMessageError("a reply cannot be part of a transaction")
        self._session.check_running()
        outgoing = Outgoing(message, self._compress_over)
        outgoing.prepare_transaction(self._group_name)
        if queue is None and (select is not None or message.ordering_key):
            queue = await self._targets.select(message, select)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_progress[end] = asyncio.current_task()
        try:
            (result,) = await self._deliver(outgoing, queue, timeout)
            half = _half_of(message, result, argument)
            state, error = await self._execute(half, execute, result)
            await self._report(message, result, state, error)
        finally:
            del self._in_progress[end]
            end.set_result(None)
        return TransactionResult(state, result, error)

    # The local transaction and its outcome

    async def _execute(
        self, half: HalfMessage, execute: Execute, result: SendResult
    ) -> tuple[TransactionState, Exception | None]:
        if result.status is not SendStatus.SEND_OK:
            logger.warning(
                "transaction %s rolled back: its half message was stored with status %s",
                half.transaction_id,
                result.status.name,
            )
            return TransactionState.ROLLBACK, None
        try:
            threads = self._execute_threads
            with_context = bool(self.hooks.publish)
            return _state(await _call(execute, half, threads, with_context=with_context)), None
        except Exception as error:
            logger.warning(
                "transaction %s of topic %s failed to execute: outcome unknown",
                half.transaction_id,
                half.topic,
                exc_info=error,
            )
            return TransactionState.UNKNOWN, error

    async def _report(
        self,
        message: Message,
        result: SendResult,
        state: TransactionState,
        error: Exception | None,
    ) -> None:
        """Send the outcome to the broker. If that fails, the broker will ask for it."""
        try:
            route = (await self._targets.plan(message.topic)).route
            address = route.master_of(result.queue.broker_name)
            if address is None:
                raise route.no_master(message.topic, result.queue.broker_name)
            header = EndTransactionRequestHeader(
                producer_group=self._group_name,
                tran_state_table_offset=result.queue_offset,
                commit_log_offset=decode_message_id(result.offset_msg_id.partition(",")[0])[2],
                commit_or_rollback=_FLAGS[state],
                msg_id=result.msg_id,
                transaction_id=result.transaction_id,
            )
            self._call_hooks(message, result.msg_id, result.msg_id, address, state)
            await self._send_end(
                address,
                header,
                result.queue.broker_name,
                None if error is None else f"execution failed: {error!r}",
            )
        except (ClientError, RemotingError, ValueError) as failure:
            logger.warning(
                "sending %s of transaction %s failed, its broker will ask: %s",
                state.name,
                result.msg_id,
                failure,
            )

    # Checks

    def _handlers(self) -> dict[int, ClientHandler]:
        return {
            **super()._handlers(),
            RequestCode.CHECK_TRANSACTION_STATE: self._take_question,
        }

    def _take_question(self, address: str, command: RemotingCommand) -> None:
        """Handle CHECK_TRANSACTION_STATE: END_TRANSACTION answers it after the check."""
        header = CheckTransactionStateRequestHeader.decode(command.ext_fields)
        message = self._message_of(address, command.body)
        group = message.all_properties.get(PRODUCER_GROUP)
        if group != self._group_name:
            logger.warning(
                "check from %s ignored: group %s is not ours (%s)", address, group, self._group_name
            )
            return
        known = self._asked.get(message.msg_id)
        if known is not None:
            known.address, known.header = address, header
            return
        if len(self._asked) >= _MAX_CHECKS_IN_FLIGHT or not self._session.running:
            logger.warning(
                "check from %s dropped: transaction %s, %d checks in flight",
                address,
                message.msg_id,
                len(self._asked),
            )
            return
        question = _Question(address, header, message)
        self._asked[message.msg_id] = question
        task = asyncio.create_task(self._answer(question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_progress[end] = task
        task.add_done_callback(lambda _: self._answered(end))

    def _answered(self, end: asyncio.Future[None]) -> None:
        del self._in_progress[end]
        if not end.done():
            end.set_result(None)

    async def _answer(self, question: _Question) -> None:
        message = question.message
        state, remark = TransactionState.UNKNOWN, None
        try:
            async with self._checks:
                try:
                    state = _state(await _call(self._check, message, self._check_threads))
                except Exception as error:
                    logger.warning("check of transaction %s failed", message.msg_id, exc_info=error)
                    remark = f"check failed: {error!r}"
        finally:
            # From here on, another request of the broker starts another check.
            del self._asked[message.msg_id]
        asked = question.header
        header = EndTransactionRequestHeader(
            producer_group=self._group_name,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=_FLAGS[state],
            msg_id=message.msg_id,
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
        )
        logger.info("transaction %s checked: %s", message.msg_id, state.name)
        self._call_hooks(
            message, message.msg_id, message.msg_id, question.address, state, is_checked=True
        )
        try:
            await self._send_end(
                question.address, header, message.queue.broker_name or None, remark
            )
        except RemotingError as failure:
            logger.warning(
                "sending %s of transaction %s failed, its broker will ask again: %s",
                state.name,
                message.msg_id,
                failure,
            )

    # Helpers, in call order

    async def _introduce(self) -> None:
        """Find the brokers that may check; the session sends heartbeats to those it finds."""
        backoff = _MIN_BACKOFF_SECONDS
        missing = [self._session.wrap(topic) for topic in self._topics]
        while True:
            for topic in list(missing):
                try:
                    await self._session.routes.get(topic)
                except TopicNotFoundError:
                    # No broker can ask about a topic that does not exist.
                    logger.debug("topic %s does not exist yet", topic)
                except ClientError as error:
                    logger.warning(
                        "finding the brokers of topic %s failed, retrying in %g s: %s",
                        topic,
                        backoff,
                        error,
                    )
                    continue
                missing.remove(topic)
            if not missing:
                return
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)

    def _message_of(self, address: str, body: bytes) -> ReceivedMessage:
        record = decode_record(body)
        names = [
            name
            for route in self._session.routes.known()
            for name, replicas in route.addresses.items()
            if address in replicas.values()
        ]
        queue = MessageQueue(
            self._session.unwrap(record.topic), names[0] if names else "", record.queue_id
        )
        (message, *_) = decode_messages(body, queue, record.topic)
        return message

    def _call_hooks(
        self,
        message: Message | ReceivedMessage,
        msg_id: str,
        transaction_id: str,
        address: str,
        state: TransactionState,
        *,
        is_checked: bool = False,
    ) -> None:
        if self.hooks.transaction:
            self.hooks.end_transaction(
                EndingTransaction(
                    self.group,
                    self._session.settings.namespace,
                    message,
                    msg_id,
                    transaction_id,
                    state,
                    address,
                    is_checked,
                )
            )

    async def _send_end(
        self,
        address: str,
        header: EndTransactionRequestHeader,
        broker_name: str | None,
        remark: str | None,
    ) -> None:
        ext_fields = header.encode()
        if broker_name is not None:
            ext_fields["bname"] = broker_name
        await self._session.remoting.send_oneway(
            address,
            RemotingCommand(
                RequestCode.END_TRANSACTION,
                ext_fields=ext_fields,
                remark=remark,
                flag=FLAG_ONEWAY,
            ),
        )


class _Question:
    """A broker's latest request to check a message."""

    __slots__ = ("address", "header", "message")

    def __init__(
        self, address: str, header: CheckTransactionStateRequestHeader, message: ReceivedMessage
    ) -> None:
        self.address = address
        self.header = header
        self.message = message


def _half_of(message: Message, result: SendResult, argument: Any) -> HalfMessage:
    return HalfMessage(**message_fields(message), transaction_id=result.msg_id, argument=argument)


async def _call(
    function: Callable[[Any], Any],
    argument: Any,
    threads: HandlerThreads,
    *,
    with_context: bool = False,
) -> Any:
    try:
        if is_coroutine_function(function):
            return await function(argument)
        return await call_in_thread(function, argument, threads, with_context=with_context)
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise failure_of(error) from error


def _state(outcome: object) -> TransactionState:
    if outcome is None:
        return TransactionState.UNKNOWN
    if not isinstance(outcome, TransactionState):
        raise TypeError(f"expected a TransactionState or None, got {outcome!r}")
    return outcome
