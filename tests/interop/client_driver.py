"""RocketMQ clients of several languages, each in a small program that is driven from a test.

A driver is a process that reads commands from standard input and prints what happens, one JSON
object per line, both ways. One process serves many tests, as a start costs more than a case. The
programs are under java/driver, go and node; all speak this protocol, so that a case is written
once, here in Python, and runs with every client that can do what it asks for.

A command is `{"call": number, "do": command, ...}`. It is answered by `{"call": number, "result":
value}` or `{"call": number, "error": text}`, in any order. In between come reports of what the
clients see: `{"report": "message", "client": name, ...}` for each delivery to a consumer,
`{"report": "check", "client": name, ...}` when a transactional producer is asked for a decision.

Commands, with their fields besides `name` and `namesrv`:

- `producer`: `group`, `transactional`, `trace`, `namespace`; of Java, `timeoutMillis` of a
  send with its repetitions, and `attempts`, which results then have.
- `send`: `topic`, `messages`, `mode` (sync, async, oneway, batch, ordered, transaction), `pace` in
  milliseconds, `patient` (repeat until the broker says that it is stored), `batch` (how many at a
  time, else all; Java only). The result has `status`, `msgIds`, `broker`, `queueId` and
  `queueOffset` of each send.
- `request`: `topic`, `body`, `millis` to wait for the reply. `body` and `properties` of the reply.
- `consumer`: `group`, `topic`, `expression`, `sql`, `orderly`, `broadcast`, `maxReconsumeTimes`,
  `replies` (answer each request), `trace`, `namespace`.
- `lite`: `group`, `topic`, `expression`, `sql`, `assign` (all queues, from their beginning).
- `pull`: `group`, `topic`, `expression`. Every message that the group has not had yet.
- `queues`: broker and number of each queue that a consumer owns.
- `reset_offset`: `group`, `topic`, `timestamp`. Queue and new offset of each queue.
- `close`: end the client.

A message is `body`, `tags`, `keys`, `delay` (a level) and `properties`. Some properties tell the
programs what to do with it, so that a new process can go on where a killed one was: `fail` (how
often its consumption fails), `shard` (which queue an ordered one goes to), `local` and `check`
(how a transaction ends at once, and when it is asked for: commit, rollback, unknown).

Called by the interop tests, on one thread; every call blocks, at most for its timeout.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

Line = dict[str, Any]

_CALL_SECONDS = 90.0
_REPORT_SECONDS = 60.0


class ClientError(AssertionError):
    """A client refused a command; the text is the client's."""


class ClientDriver:
    """One process with clients of one language.

    Callers name the clients; a name stands for the newest client that got it, and the process
    knows each under a name of its own. close_all() ends those that are still open. What clients
    write to their user's directory goes to a temporary one.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._home = tempfile.mkdtemp(prefix="client-driver-")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._numbers = itertools.count(1)
        self._answers: dict[int, Line] = {}
        self._reports: dict[tuple[str, str], list[Line]] = defaultdict(list)
        self._names: dict[str, str] = {}
        self._open: list[str] = []
        self._closing: list[int] = []
        self._news = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            [part.replace("{home}", self._home) for part in command],
            cwd=self._home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "HOME": self._home},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self._stderr.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def producer(self, name: str, namesrv: str, group: str, **options: Any) -> None:
        self._make("producer", name, namesrv=namesrv, group=group, **options)

    def consumer(self, name: str, namesrv: str, group: str, topic: str, **options: Any) -> None:
        self._make("consumer", name, namesrv=namesrv, group=group, topic=topic, **options)

    def lite(self, name: str, namesrv: str, group: str, topic: str, **options: Any) -> None:
        self._make("lite", name, namesrv=namesrv, group=group, topic=topic, **options)

    def _make(self, kind: str, name: str, **options: Any) -> None:
        self._names[name] = f"{name}-{next(self._numbers)}"
        self.call(kind, name=name, **options)
        self._open.append(name)

    def send(
        self, name: str, topic: str, messages: Sequence[Line], mode: str = "sync", **options: Any
    ) -> list[Line]:
        """Send all; return what the producer was told of each, once per send."""
        results: list[Line] = self.call(
            "send", name=name, topic=topic, messages=messages, mode=mode, **options
        )
        return results

    def close(self, name: str) -> None:
        self._open.remove(name)
        self.call("close", name=name)

    def close_all(self) -> None:
        """Begin to end the clients that are still open; those of the call before must be done.

        Some take seconds to end, in which the next case can run.
        """
        for call in self._closing:
            self.finish(call)
        self._closing = [self.begin("close", name=name) for name in reversed(self._open)]
        self._open.clear()

    def call(self, command: str, timeout: float = _CALL_SECONDS, **fields: Any) -> Any:
        """Run a command to its end and return its result."""
        return self.finish(self.begin(command, **fields), timeout)

    def begin(self, command: str, **fields: Any) -> int:
        """Give a command and do not wait; finish() takes the number that this returns."""
        number = next(self._numbers)
        if name := fields.get("name"):
            fields["name"] = self._names.get(name, name)
        line = json.dumps({"call": number, "do": command, **fields}) + "\n"
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"the client process has ended: {self._errors()}") from None
        return number

    def finish(self, number: int, timeout: float = _CALL_SECONDS) -> Any:
        """Wait for the answer to a command; return its result or raise ClientError."""
        self._wait(lambda: number in self._answers, timeout, f"call {number}")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer.get("result")

    def reports(self, name: str, kind: str = "message") -> list[Line]:
        """What a client has reported so far."""
        with self._news:
            return list(self._reports[kind, self._names[name]])

    def wait_reports(
        self,
        name: str,
        enough: Callable[[list[Line]], bool],
        timeout: float = _REPORT_SECONDS,
        kind: str = "message",
    ) -> list[Line]:
        """Wait until a client's reports are enough; return them."""
        key = kind, self._names[name]
        try:
            self._wait(lambda: enough(self._reports[key]), timeout, f"{name}'s reports")
        except AssertionError as error:
            lines = self.reports(name, kind)
            fields = ("body", "queueId", "queueOffset", "reconsumeTimes")
            text = "\n".join(str([line.get(field) for field in fields]) for line in lines[-20:])
            raise AssertionError(f"{error}\n{len(lines)} came, the last ones:\n{text}") from None
        return self.reports(name, kind)

    def wait_bodies(
        self, name: str, bodies: Sequence[str], timeout: float = _REPORT_SECONDS
    ) -> list[Line]:
        """Wait until a consumer has had each of these bodies at least once; return all it had."""
        wanted = set(bodies)
        try:
            return self.wait_reports(
                name, lambda lines: wanted <= {line["body"] for line in lines}, timeout
            )
        except AssertionError as error:
            missing = sorted(wanted - {line["body"] for line in self.reports(name)})
            raise AssertionError(f"{name} never had {missing}: {error}") from None

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        with self._news:
            while not condition():
                if self._ended:
                    raise AssertionError(
                        f"the client process ended before {what}: {self._errors()}"
                    )
                if not self._news.wait(deadline - time.monotonic()) and not condition():
                    raise AssertionError(
                        f"{what}: nothing within {timeout:g} s; stderr: {self._errors()}"
                    )

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line = json.loads(text)
            with self._news:
                if "call" in line:
                    self._answers[line["call"]] = line
                else:
                    self._reports[line["report"], line["client"]].append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()[-3000:].decode(errors="replace")
