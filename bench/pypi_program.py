"""Runs a PyPI client (`rocketmq`) for bench/client.py.

Runs in an environment with that package only, so it imports nothing else. Arguments and output
match bench/client_program.py. The first message is sent synchronously, the others asynchronously
with a fixed number in flight, or by as many threads if the package has no asynchronous send.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any


def produce(
    namesrv: str, topic: str, lead_in: int, messages: int, in_flight: int, size: int
) -> None:
    """Send with a fixed number of sends in flight."""
    from rocketmq.client import Message, Producer  # type: ignore[import-not-found]

    body = b"x" * size
    producer = Producer("PypiBenchProducer")
    _name_server(producer, namesrv)
    producer.start()

    def message() -> Any:
        made = Message(topic)
        made.set_body(body)
        return made

    producer.send_sync(message())
    _say("first")
    room = threading.Semaphore(in_flight)
    failures: list[Exception] = []

    def done(_result: object) -> None:
        room.release()

    def failed(error: Exception) -> None:
        failures.append(error)
        room.release()

    def send_sync(made: Any) -> None:
        try:
            producer.send_sync(made)
        except Exception as error:
            failures.append(error)
        room.release()

    is_asynchronous = hasattr(producer, "send_async")
    for number in range(1, lead_in + messages):
        if number == max(lead_in, 1):
            began, cpu = time.perf_counter(), time.process_time()
        room.acquire()
        if is_asynchronous:
            producer.send_async(message(), done, failed)
        else:
            threading.Thread(target=send_sync, args=(message(),)).start()
    for _ in range(in_flight):
        room.acquire()
    if failures:
        raise SystemExit(f"{len(failures)} messages were not stored: {failures[0]!r}")
    _report(messages, began, cpu)


def consume(namesrv: str, topic: str, lead_in: int, messages: int) -> None:
    """Consume in a new group until all messages are handled."""
    from rocketmq.client import PushConsumer

    consumer = PushConsumer(f"PypiBenchConsumer{time.time_ns()}")
    _name_server(consumer, namesrv)
    lock = threading.Lock()
    finished = threading.Event()
    state = {"consumed": 0, "began": 0.0, "cpu": 0.0}

    def handle(_message: object) -> None:
        with lock:
            state["consumed"] += 1
            consumed = state["consumed"]
            if consumed == 1:
                _say("first")
            if consumed == max(lead_in, 1):
                state["began"], state["cpu"] = time.perf_counter(), time.process_time()
            if consumed == lead_in + messages:
                _report(messages, state["began"], state["cpu"])
                finished.set()

    consumer.subscribe(topic, handle)
    consumer.start()
    finished.wait()


def _name_server(client: Any, namesrv: str) -> None:
    if hasattr(client, "set_namesrv_addr"):
        client.set_namesrv_addr(namesrv)
    else:
        client.set_name_server_address(namesrv)


def _report(messages: int, began: float, cpu: float) -> None:
    seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text()
    figures = {
        "messages": messages,
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
        "rss_mib": int(status.partition("VmRSS:")[2].split()[0]) / 1024,
    }
    _say(json.dumps(figures))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    kind, name_servers, of_topic, lead, count, *others = sys.argv[1:]
    if kind == "produce":
        produce(name_servers, of_topic, int(lead), int(count), int(others[0]), int(others[1]))
    else:
        consume(name_servers, of_topic, int(lead), int(count))
    # Its threads do not always exit: skip destructors that would wait for them.
    os._exit(0)
