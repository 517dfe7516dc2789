"""A Java producer that sends to a raft group all the time, and what must be true afterwards.

    load = JavaLoad(driver, namesrv)
    with load.running():
        load.wait_for(100)               # so many more messages are acknowledged
    load.check(entries)                  # the log of the group

Each message has a body and a key of its own. The producer repeats a send until it was told
SEND_OK, inside of the client and outside, and tells how often it tried: a message is in the log at
least once, and at most as often as it was sent.

Called by tests on one thread, with another one for the sends: meanwhile nobody else may use the
driver.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from tests.interop.client_driver import ClientDriver, Line
from tests.support.patience import DEADLINE, wait_until
from tests.support.raft_files import Stored

TOPIC: Final = "RaftLoad"
_IN_FLIGHT: Final = 3
_MESSAGES: Final = 10
_PACE_MILLIS: Final = 10
#: Of a send with its repetitions inside of the client: a paused leader answers nothing.
_TIMEOUT_MILLIS: Final = 2500
_READ_SECONDS: Final = 2 * DEADLINE


class Sent(NamedTuple):
    """What Java's producer was told of a message."""

    body: str
    queue_id: int
    offset: int
    attempts: int


class JavaLoad:
    """Sends, and remembers what was acknowledged."""

    def __init__(self, driver: ClientDriver, namesrv: str) -> None:
        self._driver = driver
        self._namesrv = namesrv
        self._numbers = iter(range(1 << 40))
        self._is_stopping = False
        self.acknowledged: list[Sent] = []
        #: The longest time without an acknowledgement, in seconds.
        self.longest_pause = 0.0
        driver.producer(
            "load", namesrv, "raft-producers", timeoutMillis=_TIMEOUT_MILLIS, attempts=True
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send meanwhile."""
        self._is_stopping = False
        failures: list[BaseException] = []

        def work() -> None:
            try:
                self._send()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work, name="load", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_stopping = True
            thread.join()
        if failures:
            raise failures[0]

    def wait_for(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) >= before + count)

    def _send(self) -> None:
        calls: deque[int] = deque()
        last = time.monotonic()
        while calls or not self._is_stopping:
            while len(calls) < _IN_FLIGHT and not self._is_stopping:
                calls.append(self._begin())
            for line in self._driver.finish(calls.popleft()):
                assert line["status"] == "SEND_OK", line
                sent = Sent(line["body"], line["queueId"], line["queueOffset"], line["attempts"])
                self.acknowledged.append(sent)
            now = time.monotonic()
            self.longest_pause = max(self.longest_pause, now - last)
            last = now

    def _begin(self) -> int:
        messages = [
            {"body": f"body {number}", "keys": f"key{number}"}
            for number in (next(self._numbers) for _ in range(_MESSAGES))
        ]
        return self._driver.begin(
            "send",
            name="load",
            topic=TOPIC,
            messages=messages,
            mode="sync",
            patient=True,
            pace=_PACE_MILLIS,
        )

    def consume_all(self) -> None:
        """Read as a new group of Java's until everything acknowledged has arrived."""
        missing = {sent.body for sent in self.acknowledged}
        seen = 0

        def is_complete(lines: list[Line]) -> bool:
            nonlocal seen
            missing.difference_update(line["body"] for line in lines[seen:])
            seen = len(lines)
            return not missing

        self._driver.consumer("reader", self._namesrv, "raft-readers", TOPIC)
        try:
            lines = self._driver.wait_reports("reader", is_complete, _READ_SECONDS)
        except AssertionError as error:
            error.add_note(f"never consumed: {sorted(missing)[:5]}")
            raise
        # A message may come twice, but a place has one message.
        places = {(line["queueId"], line["queueOffset"], line["body"]) for line in lines}
        assert len(places) == len({place[:2] for place in places})

    def check(self, entries: Sequence[Stored]) -> None:
        """Check that a log explains all acknowledgements."""
        places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        ends: Counter[int] = Counter()
        for entry in entries:
            record = entry.record()
            assert record.physical_offset == entry.position + 48
            if record.topic == TOPIC:
                assert record.queue_offset == ends[record.queue_id], record
                ends[record.queue_id] += 1
                body = record.body.decode()
                assert record.properties["KEYS"] == body.replace("body ", "key")
                places[body].append((record.queue_id, record.queue_offset))
        assert self.acknowledged
        for sent in self.acknowledged:
            found = places[sent.body]
            assert found.count((sent.queue_id, sent.offset)) == 1, f"{sent} is at {found}"
            assert len(found) <= sent.attempts, f"{sent} is at {found}"
