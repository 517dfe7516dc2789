"""Messages that count only if something else has happened: transactions in two phases.

    async def execute(half):
        await database.pay(order, half.transaction_id)
        return TransactionState.COMMIT

    async def check(message):
        paid = await database.is_paid(message.msg_id)
        return TransactionState.COMMIT if paid else TransactionState.ROLLBACK

    async with TransactionProducer("127.0.0.1:9876", group="payments", check=check) as producer:
        await producer.send_in_transaction(Message("orders", b"..."), execute)

1. The message is stored as a half, which nobody sees. If that fails, nothing is executed.
2. `execute` does the local part. It says how that ended; raising, or returning None, means
   that this is not known.
3. The broker is told the outcome (END_TRANSACTION, without an answer): a committed message
   goes to its consumers. If that gets lost, or the outcome is not known, the broker asks a
   member of the producer's group later, again and again: `check` answers. So `check` must
   know about transactions of other members and of earlier runs.

A half that was stored but not flushed or replicated in time is rolled back without being
executed, as Java does. A half whose send was tried again may be stored twice: then `check`
decides about the other one.

While a check is under way, a broker that asks again about the same message gets the answer
for its latest question; Java answers both, which may deliver the message twice. `execute` and
`check` may be coroutine functions, which run on the event loop, or plain ones, which run in
threads. On the event loop of its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, Unpack

from pyromq.client.arguments import check_callable, check_count, refusal
from pyromq.client.errors import ClientError, IllegalMessageError, TopicNotFoundError
from pyromq.client.handler_threads import (
    HandlerThreads,
    call_in_thread,
    failure_of,
    is_coroutine_function,
)
from pyromq.client.hooks import EndingTransaction
from pyromq.client.message import Message, check_message, check_topic, message_fields
from pyromq.client.producer.producer import Producer, ProducerOptions, QueueSelector, check_send
from pyromq.client.producer.sending import Outgoing
from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.client.results import SendResult, SendStatus, TransactionState
from pyromq.client.session.routes import MASTER_ID, TEMPLATE_TOPIC
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

if TYPE_CHECKING:
    from pyromq.client.sync import SyncTransactionProducer

logger = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")

#: Threads for plain functions that execute transactions.
_MAX_EXECUTING: Final = 64
#: Questions of brokers that wait for their turn; more are left for the next time.
_MAX_WAITING_CHECKS: Final = 2000
#: How long `close` waits for transactions and checks that are under way.
_CLOSE_SECONDS: Final = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0

_FLAGS: Final = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: TRANSACTION_NOT,
}


@dataclass(slots=True)
class HalfMessage(Message):
    """A message that is stored, but not visible yet; as `execute` gets it."""

    #: By which `check` is asked about it later: the `msg_id` of the message there.
    transaction_id: str = ""
    #: What `send_in_transaction` was given for it.
    argument: Any = None


class TransactionResult(NamedTuple):
    """How a transaction ended."""

    state: TransactionState
    #: Where the half was stored.
    result: SendResult
    #: What `execute` raised.
    error: Exception | None = None

    @property
    def msg_id(self) -> str:
        """The id of the message, and of the transaction."""
        return self.result.msg_id


Execute = Callable[[HalfMessage], TransactionState | Awaitable[TransactionState | None] | None]
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState | None] | None]


class TransactionProducer(Producer):
    """A producer that can also send messages in transactions.

    `group` names everyone who can answer for these transactions; `check` does it. At most
    `max_checks` checks run at the same time. `topics` are those whose brokers shall know this
    producer from the start on: they may ask about what earlier runs have left open; others ask
    once something was sent to them.
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
            raise refusal("topics", topics, "a list of names is needed")
        topics = list(topics)
        for topic in topics:
            check_topic(topic)
        super().__init__(namesrv, group=group, **options)
        self._check = check
        self._topics = [*topics, TEMPLATE_TOPIC]
        self._checks = asyncio.Semaphore(max_checks)
        self._execute_threads = HandlerThreads(_MAX_EXECUTING, group)
        self._check_threads = HandlerThreads(max_checks, group)
        #: Questions that are not answered yet, by the message's id.
        self._asked: dict[str, _Question] = {}
        #: Transactions and checks under way, and whose task each of them is in.
        self._under_way: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._introduction: asyncio.Task[None] | None = None

    @classmethod
    def sync(
        cls: Callable[_Arguments, TransactionProducer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> SyncTransactionProducer:
        """The same for programs without an event loop."""
        from pyromq.client.sync import SyncTransactionProducer

        return SyncTransactionProducer(partial(cls, *args, **kwargs))

    async def start(self) -> None:
        """Make it ready, and let brokers know that it can be asked."""
        await super().start()
        if self._introduction is None:
            self._introduction = asyncio.create_task(self._introduce())

    async def close(self) -> None:
        """Let transactions and checks under way end, then close as any producer.

        Transactions whose end could not be told are asked for at other members of the group.
        """
        if self._introduction is not None:
            self._introduction.cancel()
            await asyncio.gather(self._introduction, return_exceptions=True)
        current = asyncio.current_task()
        waiting = [end for end, task in self._under_way.items() if task is not current]
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
        """Store `message`, call `execute`, and commit the message or not, as that says.

        Raises what `send` raises when the half could not be stored. What `execute` raises is
        logged and in the result; the state is UNKNOWN then.
        """
        check_message(message)
        check_callable("execute", execute)
        check_send(queue, select, timeout)
        if message.delay_level:
            raise IllegalMessageError("a message in a transaction cannot be delayed")
        if message.is_reply:
            raise IllegalMessageError("a reply cannot be sent in a transaction")
        self._session.check_running()
        outgoing = Outgoing(message, self._compress_over)
        outgoing.prepare_transaction(self._group_name)
        if queue is None and (select is not None or message.ordering_key):
            queue = await self._select(message, select)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[end] = asyncio.current_task()
        try:
            (result,) = await self._deliver(outgoing, queue, timeout)
            half = _half_of(message, result, argument)
            state, error = await self._execute(half, execute, result)
            await self._tell_end(message, result, state, error)
        finally:
            del self._under_way[end]
            end.set_result(None)
        return TransactionResult(state, result, error)

    # The local part and its end

    async def _execute(
        self, half: HalfMessage, execute: Execute, result: SendResult
    ) -> tuple[TransactionState, Exception | None]:
        if result.status is not SendStatus.SEND_OK:
            logger.warning(
                "transaction %s is rolled back: its half is stored, but %s",
                half.transaction_id,
                result.status.name,
            )
            return TransactionState.ROLLBACK, None
        try:
            return _state(await _call(execute, half, self._execute_threads)), None
        except Exception as error:
            logger.warning(
                "transaction %s for topic %s: its outcome is not known, as its execution failed",
                half.transaction_id,
                half.topic,
                exc_info=error,
            )
            return TransactionState.UNKNOWN, error

    async def _tell_end(
        self,
        message: Message,
        result: SendResult,
        state: TransactionState,
        error: Exception | None,
    ) -> None:
        """Tell the broker; if that fails, it asks."""
        try:
            route = (await self._plan(message.topic)).route
            address = route.addresses.get(result.queue.broker_name, {}).get(MASTER_ID)
            if address is None:
                raise TopicNotFoundError(
                    message.topic, f"broker {result.queue.broker_name!r} has no master"
                )
            header = EndTransactionRequestHeader(
                producer_group=self._group_name,
                tran_state_table_offset=result.queue_offset,
                commit_log_offset=decode_message_id(result.offset_msg_id.partition(",")[0])[2],
                commit_or_rollback=_FLAGS[state],
                msg_id=result.msg_id,
                transaction_id=result.transaction_id,
            )
            self._tell_hooks(message, result.msg_id, result.msg_id, address, state)
            await self._send_end(
                address,
                header,
                result.queue.broker_name,
                None if error is None else f"execution failed: {error!r}",
            )
        except (ClientError, RemotingError, ValueError) as failure:
            logger.warning(
                "transaction %s: its broker could not be told %s, and will ask: %s",
                result.msg_id,
                state.name,
                failure,
            )

    # Questions of brokers

    def _handlers(self) -> dict[int, ClientHandler]:
        return {
            **super()._handlers(),
            RequestCode.CHECK_TRANSACTION_STATE: self._take_question,
        }

    def _take_question(self, address: str, command: RemotingCommand) -> None:
        """CHECK_TRANSACTION_STATE: answered by END_TRANSACTION when the check has ended."""
        header = CheckTransactionStateRequestHeader.decode(command.ext_fields)
        message = self._message_of(address, command.body)
        group = message.all_properties.get(PRODUCER_GROUP)
        if group != self._group_name:
            logger.warning("%s asks for a transaction of group %s: not ours", address, group)
            return
        known = self._asked.get(message.msg_id)
        if known is not None:
            known.address, known.header = address, header
            return
        if len(self._asked) >= _MAX_WAITING_CHECKS or not self._session.running:
            logger.warning(
                "%s asks for transaction %s: left for the next time, %d checks wait",
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
        self._under_way[end] = task
        task.add_done_callback(lambda _: self._answered(end))

    def _answered(self, end: asyncio.Future[None]) -> None:
        del self._under_way[end]
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
            # From here on a new question starts a new check.
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
        logger.info("transaction %s: %s is answered", message.msg_id, state.name)
        self._tell_hooks(
            message, message.msg_id, message.msg_id, question.address, state, is_checked=True
        )
        try:
            await self._send_end(
                question.address, header, message.queue.broker_name or None, remark
            )
        except RemotingError as failure:
            logger.warning(
                "transaction %s: its broker could not be told %s, and will ask again: %s",
                message.msg_id,
                state.name,
                failure,
            )

    # Helpers, in call order.

    async def _introduce(self) -> None:
        """Find brokers whose questions we can answer: heartbeats go to all that are found."""
        pause = _FIRST_PAUSE_SECONDS
        missing = [self._session.wrap(topic) for topic in self._topics]
        while True:
            for topic in list(missing):
                try:
                    await self._session.routes.get(topic)
                except TopicNotFoundError:
                    # Nobody can ask about a topic that is nowhere, until something is sent to it.
                    logger.debug("topic %s does not exist yet", topic)
                except ClientError as error:
                    logger.warning("brokers of topic %s are not known yet: %s", topic, error)
                    continue
                missing.remove(topic)
            if not missing:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

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

    def _tell_hooks(
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
    """What a broker wants to know, in its latest form."""

    __slots__ = ("address", "header", "message")

    def __init__(
        self, address: str, header: CheckTransactionStateRequestHeader, message: ReceivedMessage
    ) -> None:
        self.address = address
        self.header = header
        self.message = message


def _half_of(message: Message, result: SendResult, argument: Any) -> HalfMessage:
    return HalfMessage(**message_fields(message), transaction_id=result.msg_id, argument=argument)


async def _call(function: Callable[[Any], Any], argument: Any, threads: HandlerThreads) -> Any:
    try:
        if is_coroutine_function(function):
            return await function(argument)
        return await call_in_thread(function, argument, threads)
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise failure_of(error) from error


def _state(outcome: object) -> TransactionState:
    if outcome is None:
        return TransactionState.UNKNOWN
    if not isinstance(outcome, TransactionState):
        raise TypeError(f"a TransactionState is needed, not {outcome!r}")
    return outcome
