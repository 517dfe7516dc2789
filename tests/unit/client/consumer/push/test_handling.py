from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import pytest

from pyromq.client.consumer.push.handling import (
    ConsumeResult,
    Handler,
    HandlerCaller,
    HandlerResult,
    Retry,
    check_handler,
)
from pyromq.client.errors import OptionError
from pyromq.client.hooks import Consuming, Hooks
from pyromq.client.received import ReceivedMessage
from tests.unit.client.received_messages import QUEUE, received


class Watch:
    def __init__(self) -> None:
        self.seen: list[tuple[bool, str]] = []

    def before_consume(self, consuming: Consuming) -> None:
        consuming.notes["begun"] = True

    def after_consume(self, consuming: Consuming) -> None:
        assert consuming.notes["begun"]
        assert consuming.queue == QUEUE
        self.seen.append((consuming.success, repr(consuming.error)))


def caller(handler: Handler, *, lists: bool = False, hooks: Hooks | None = None) -> HandlerCaller:
    return HandlerCaller(
        handler,
        group="g",
        namespace="",
        takes_lists=lists,
        max_handlers=2,
        hooks=hooks or Hooks(),
    )


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (None, None),
        (ConsumeResult.SUCCESS, None),
        (ConsumeResult.RETRY, Retry()),
        (Retry(3), Retry(3)),
        (ValueError("no"), Retry()),
    ],
)
async def test_valid_results_of_a_handler(result: Any, outcome: Retry | None, hooked: bool) -> None:
    watch = Watch()

    async def handle(message: ReceivedMessage) -> HandlerResult:
        assert message.body == b"body"
        if isinstance(result, ValueError):
            raise result
        answer: HandlerResult = result
        return answer

    call = caller(handle, hooks=Hooks([watch]) if hooked else None)
    assert await call(QUEUE, [received(0)]) == outcome
    error = repr(result) if isinstance(result, ValueError) else "None"
    assert watch.seen == ([(outcome is None, error)] if hooked else [])


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("result", [False, True, 0, "", "success", object])
async def test_invalid_results_of_a_handler(
    result: Any, hooked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """False is not a success: the message is delivered again, and the log tells why."""
    watch = Watch()

    async def handle(message: ReceivedMessage) -> Any:
        return result

    call = caller(handle, hooks=Hooks([watch]) if hooked else None)
    assert await call(QUEUE, [received(0)]) == Retry()
    assert f"handler returned {result!r}" in caplog.text
    assert [success for success, _ in watch.seen] == ([False] if hooked else [])
    with pytest.raises(TypeError, match=r"return None or ConsumeResult\.SUCCESS"):
        await call.call_raising(QUEUE, received(0))


async def test_a_handler_that_expects_lists_gets_advice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(messages: Any) -> None:
        for _ in messages:
            pass

    assert await caller(handle)(QUEUE, [received(0)]) == Retry()
    assert "takes_lists=True" in caplog.text


if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


def lists_of_unknown(messages: list[Unknown]) -> None: ...
def one_of_unknown(message: ReceivedMessage, other: Unknown = None) -> None: ...
def quite_unknown(message: Unknown) -> None: ...


def test_handlers_with_unresolvable_annotations() -> None:
    check_handler(quite_unknown, takes_lists=True)
    check_handler(quite_unknown, takes_lists=False)
    check_handler(one_of_unknown, takes_lists=False)
    check_handler(lists_of_unknown, takes_lists=True)
    with pytest.raises(OptionError, match="would get lists"):
        check_handler(one_of_unknown, takes_lists=True)
    with pytest.raises(OptionError, match="one message at a time"):
        check_handler(lists_of_unknown, takes_lists=False)


async def test_every_form_of_a_handler() -> None:
    here = threading.current_thread()
    calls: list[tuple[Any, bool]] = []

    def plain(argument: Any) -> None:
        calls.append((argument, threading.current_thread() is here))

    async def coroutine(argument: Any) -> None:
        plain(argument)

    def makes_one(argument: Any) -> Awaitable[None]:
        return coroutine(argument)

    class Callable:
        async def __call__(self, argument: Any) -> None:
            plain(argument)

    messages = [received(0), received(1)]
    for handler, on_loop in (
        (plain, False),
        (coroutine, True),
        (makes_one, True),
        (Callable(), True),
    ):
        for lists in (False, True):
            call = caller(handler, lists=lists)
            assert await call(QUEUE, messages if lists else messages[:1]) is None
            call.close()
            assert calls.pop() == (messages if lists else messages[0], on_loop)


async def test_a_failure_is_logged_and_passed_to_hooks(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()

    async def fail(_messages: list[ReceivedMessage]) -> None:
        raise ValueError("broken")

    call = caller(fail, lists=True, hooks=Hooks([watch]))
    assert await call(QUEUE, [received(0), received(1)]) == Retry()
    assert "and 1 more" in caplog.text
    assert "ValueError: broken" in caplog.text
    with pytest.raises(ValueError, match="broken"):
        await call.call_raising(QUEUE, received(0))
    assert watch.seen == [(False, "ValueError('broken')")] * 2

    async def later(_message: ReceivedMessage) -> Retry:
        return Retry(2)

    assert await caller(later).call_raising(QUEUE, received(0)) == Retry(2)


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_handler_cancelled_by_others_has_failed(hooked: bool) -> None:
    """Its own task or its own timeout may cancel a handler as well."""

    async def handle(_message: ReceivedMessage) -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    call = caller(handle, hooks=Hooks([Watch()]) if hooked else None)
    assert await call(QUEUE, [received(0)]) == Retry()
    with pytest.raises(RuntimeError, match="CancelledError"):
        await call.call_raising(QUEUE, received(0))


@pytest.mark.parametrize("hooked", [False, True])
async def test_cancelling_the_caller_ends_the_handler(hooked: bool) -> None:
    begun = asyncio.Event()

    async def handle(_message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.sleep(60)

    call = caller(handle, hooks=Hooks([Watch()]) if hooked else None)
    task = asyncio.ensure_future(call(QUEUE, [received(0)]))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("problem", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_a_plain_function_cannot_end_the_consumer(
    problem: type[BaseException], hooked: bool
) -> None:
    def handle(_message: ReceivedMessage) -> None:
        raise problem

    call = caller(handle, hooks=Hooks([Watch()]) if hooked else None)
    assert await call(QUEUE, [received(0)]) == Retry()
    call.close()


def test_system_exit_in_a_coroutine_leaves_its_message_unconsumed() -> None:
    outcomes: list[Retry | None] = []

    async def handle(_message: ReceivedMessage) -> None:
        sys.exit(3)

    async def work() -> None:
        outcomes.append(await caller(handle)(QUEUE, [received(0)]))
        await asyncio.sleep(60)

    with pytest.raises(SystemExit) as end:
        asyncio.run(work())
    assert (end.value.code, outcomes) == (3, [Retry()])


@pytest.mark.parametrize(
    "values",
    [
        {"delay_level": -2},
        {"delay_level": 1 << 31},
        {"delay_level": "3"},
        {"suspend": -1.0},
        {"suspend": float("nan")},
        {"suspend": "1"},
        {"messages": 5},
    ],
)
def test_an_invalid_retry_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(values))):
        Retry(**values)
