"""Call the publish hooks around a producer's methods.

A producer with such hooks replaces its own methods by those of `observed_methods`; one without
runs no code of this module. Each call of the application is seen once, before its messages are
encoded, whatever is batched or retried afterwards. A request also calls `send`, which is seen as
well.

Runs on the producer's event loop, in the task of the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Final

from pyromq.client.hooks import Hooks, Publishing, PublishOperation
from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import SendResult, TransactionResult

_Method = Callable[..., Awaitable[Any]]
_BATCH: Final = PublishOperation.BATCH


def observed_methods(
    producer: object,
    hooks: Hooks,
    *,
    group: str,
    namespace: str,
    address_of: Callable[[str], str],
) -> dict[str, _Method]:
    """Return the methods of a producer that publish, with the hooks around them.

    `address_of` returns the address of a broker by its name.
    """

    async def call(
        operation: PublishOperation,
        method: _Method,
        messages: Sequence[Message],
        *args: Any,
        **kw: Any,
    ) -> Any:
        publishing = Publishing(operation, group, namespace, messages)
        hooks.before_publish(publishing)
        given = publishing.messages
        try:
            outcome = await method(given if operation is _BATCH else given[0], *args, **kw)
            _note(publishing, outcome)
            if publishing.results:
                publishing.address = address_of(publishing.results[0].queue.broker_name)
            return outcome
        except BaseException as error:
            publishing.error = error
            raise
        finally:
            hooks.after_publish(publishing)

    def with_message(operation: PublishOperation, method: _Method) -> _Method:
        @wraps(method)
        async def publish(message: Any, *args: Any, **kw: Any) -> Any:
            if not isinstance(message, Message):
                return await method(message, *args, **kw)  # refuses it
            return await call(operation, method, [message], *args, **kw)

        return publish

    def with_messages(method: _Method) -> _Method:
        @wraps(method)
        async def publish(messages: Any, *args: Any, **kw: Any) -> Any:
            together = [*messages] if isinstance(messages, Iterable) else []
            if not together or not all(isinstance(each, Message) for each in together):
                return await method(together or messages, *args, **kw)  # refuses them
            return await call(_BATCH, method, together, *args, **kw)

        return publish

    found = {}
    for operation in PublishOperation:
        method = getattr(producer, operation.value, None)
        if method is not None:
            found[operation.value] = (
                with_messages(method) if operation is _BATCH else with_message(operation, method)
            )
    return found


def _note(publishing: Publishing, outcome: object) -> None:
    if isinstance(outcome, SendResult):
        publishing.results = [outcome]
    elif isinstance(outcome, list):
        publishing.results = outcome
    elif isinstance(outcome, ReceivedMessage):
        publishing.reply = outcome
    elif isinstance(outcome, TransactionResult):
        publishing.results = [outcome.result]
        publishing.state = outcome.state
        publishing.error = outcome.error
