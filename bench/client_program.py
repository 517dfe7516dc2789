"""Runs pyromq's client for bench/client.py; the counterpart of bench/java/ClientBench.java.

bench/client.py starts it as a process:

    client_program produce NAMESRV TOPIC LEAD_IN MESSAGES IN_FLIGHT SIZE single|accumulate
    client_program consume NAMESRV TOPIC LEAD_IN MESSAGES one|list

Prints "first" after the first message and, at the end, one line of JSON with the figures of
the messages after the lead-in. Imports only what an application would, because start-up time
counts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyromq.client import Batching, Message, Producer, PushConsumer, ReceivedMessage, StartFrom

_SEND_TIMEOUT = 30.0


async def produce(
    namesrv: str, topic: str, lead_in: int, messages: int, in_flight: int, size: int, how: str
) -> None:
    """Send with a fixed number of sends in flight, one task each."""
    body = b"x" * size
    watch = _StopWatch(messages)
    batching = Batching() if how == "accumulate" else None
    async with Producer(
        namesrv, group="ClientBenchProducer", batching=batching, send_timeout=_SEND_TIMEOUT
    ) as producer:
        await producer.send(Message(topic, body))
        _say("first")

        async def send_some(numbers: itertools.count[int]) -> None:
            send = producer.send
            for number in numbers:
                if number >= lead_in + messages:
                    return
                if number == lead_in:
                    watch.begin()
                await send(Message(topic, body))

        numbers = itertools.count(1)
        await asyncio.gather(*(send_some(numbers) for _ in range(in_flight)))
        watch.end()


async def consume(namesrv: str, topic: str, lead_in: int, messages: int, how: str) -> None:
    """Consume in a new group from the first message on, until all are handled."""
    watch = _StopWatch(messages)
    done = asyncio.Event()
    consumed = 0

    def count(more: int) -> None:
        nonlocal consumed
        before, consumed = consumed, consumed + more
        if before == 0:
            _say("first")
        if before < lead_in <= consumed:
            watch.begin()
        if before < lead_in + messages <= consumed:
            watch.end()
            done.set()

    async def handle_one(message: ReceivedMessage) -> None:
        del message
        count(1)

    async def handle_list(received: list[ReceivedMessage]) -> None:
        count(len(received))

    consumer = PushConsumer(
        namesrv,
        group=f"ClientBenchConsumer{time.time_ns()}",
        handler=handle_list if how == "list" else handle_one,
        takes_lists=how == "list",
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
    )
    async with consumer:
        await done.wait()


class _StopWatch:
    """Measures elapsed and CPU time of the messages after the lead-in."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._began = self._cpu = 0.0

    def begin(self) -> None:
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    def end(self) -> None:
        seconds = time.perf_counter() - self._began
        figures = {
            "messages": self._messages,
            "seconds": seconds,
            "cpu_seconds": time.process_time() - self._cpu,
            "rss_mib": _rss_mib(),
        }
        _say(json.dumps(figures))


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def main(arguments: list[str]) -> None:
    """Run the command line."""
    kind, namesrv, topic, lead_in, messages, *others = arguments
    if kind == "produce":
        in_flight, size, how = others
        work = produce(namesrv, topic, int(lead_in), int(messages), int(in_flight), int(size), how)
    else:
        work = consume(namesrv, topic, int(lead_in), int(messages), others[0])
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
