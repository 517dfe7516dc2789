"""A NameServer and a broker in one process of their own, which watches itself.

    python -m tests.fuzz.fuzzed_servers DIRECTORY

Writes one line of JSON for each line it reads; the first, when both serve, says their ports and
every request code of theirs. Commands: `look` (what happened since the last look), `memory`
(bytes, after a collection and without the locks of queues, which end by themselves), `stop`.

A stall is the time between two runs of a timer on the loop, as far as the loop's thread had the
CPU meanwhile: what the machine's other work took does not count, nor does a wait for a disk. As
that leaves out a thread that keeps the GIL, the same is told by the CPU time of all threads; that
may be too much, since they need not have kept the loop from running.
"""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import gc
import inspect
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import uvloop

from pyromq.broker.broker import Broker
from pyromq.cli.logs import logging_to_files
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.remoting.server import RemotingServer
from tests.support.brokers import local_broker, small_store

TICK_SECONDS: Final = 0.01
LOGS: Final = ("namesrv.log", "store.log", "broker.log")
#: What is kept of each kind of finding.
_MAX_KEPT: Final = 10


async def main(root: Path) -> None:
    watch = Watch()
    logging.getLogger().addHandler(watch)
    name_server = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(root / "kv.json"),
            config_store_path=str(root / "namesrv.properties"),
        )
    )
    await name_server.start()
    broker = Broker(
        local_broker(namesrv_addr=f"127.0.0.1:{name_server.port}"),
        small_store(root / "store", mapped_file_size_commit_log=16 * 1024 * 1024),
    )
    await broker.start()
    servers = {"nameserver": name_server._server, "broker": broker._servers[0]}
    said: Any = {
        "ports": {name: server.port for name, server in servers.items()},
        "codes": [code for name, server in servers.items() for code in codes_of(name, server)],
    }
    for server in servers.values():
        watch.time_handlers(server)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(watch.loop_failed)
    watch.tick(loop)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while True:
        say(said)
        command = (await commands.readline()).decode().strip()
        if command == "look":
            said = watch.look()
        elif command == "memory":
            await forget_locks(broker)
            said = {"memory": anonymous_memory()}
            watch.forgive()
        else:
            break
    await broker.stop()
    await name_server.stop()
    say(watch.look())


def say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def codes_of(name: str, server: RemotingServer) -> list[dict[str, Any]]:
    """Every code of a server, with the classes that its handler reads a request by."""
    codes = []
    service = server.service
    for code in sorted({*service.handlers, *service.hot_handlers}):
        handler = service.handlers.get(code) or service.hot_handlers[code]
        source = "".join(map(inspect.getsource, with_inner(handler)))
        found = {
            kind: name
            for name, kind in re.findall(r"(\w+)\.decode\(\s*request\.(ext_fields|body)", source)
        }
        codes.append(
            {
                "server": name,
                "code": int(code),
                "header": found.get("ext_fields"),
                "body": found.get("body"),
            }
        )
    return codes


def with_inner(handler: Any) -> Iterator[Any]:
    """A handler and, if it is only a wrapper, what it wraps."""
    function = getattr(handler, "__func__", handler)
    if not inspect.isfunction(function):
        return
    yield function
    for cell in function.__closure__ or ():
        yield from with_inner(cell.cell_contents)


class Watch(logging.Handler):
    """Notes stalls and tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self._stall = 0.0
        self._stall_by_all = 0.0
        self._slowest: tuple[float, str] = (0.0, "")
        self._tracebacks: list[str] = []
        self._last: tuple[float, float, float] | None = None

    def look(self) -> dict[str, Any]:
        """Everything since the last look."""
        said = {
            "stall": self._stall,
            "stall by all threads": self._stall_by_all,
            "slowest": self._slowest,
            "tracebacks": self._tracebacks[:_MAX_KEPT],
        }
        self._stall, self._stall_by_all, self._slowest = 0.0, 0.0, (0.0, "")
        self._tracebacks = []
        return said

    def forgive(self) -> None:
        """Count nothing of what this process did to itself."""
        self._last = None

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = (time.monotonic(), time.thread_time(), time.process_time())
        if self._last is not None:
            gap, own, all_threads = (new - old for new, old in zip(now, self._last, strict=True))
            gap -= TICK_SECONDS
            self._stall = max(self._stall, min(gap, own))
            self._stall_by_all = max(self._stall_by_all, min(gap, all_threads))
        self._last = now
        loop.call_later(TICK_SECONDS, self.tick, loop)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            text = logging.Formatter().formatException(record.exc_info)
            self._tracebacks.append(f"{record.getMessage()[:300]}\n{text}")

    def loop_failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._tracebacks.append(f"the loop: {context}"[:2000])

    def time_handlers(self, server: RemotingServer) -> None:
        """Know which request took longest, to name it when there was a stall."""
        service = server.service
        handlers = {
            code: self._timed(handler, lambda request: f"opaque {request.opaque}", code)
            for code, handler in service.handlers.items()
        }
        hot_handlers = {
            code: self._timed(
                handler,
                lambda frames: "opaques " + str([f[1].get("opaque") for f in frames])[:200],
                code,
            )
            for code, handler in service.hot_handlers.items()
        }
        server.serve(dataclasses.replace(service, handlers=handlers, hot_handlers=hot_handlers))

    def _timed(self, handler: Any, name: Callable[[Any], str], code: int) -> Any:
        def timed(connection: Any, request: Any, *more: Any) -> Any:
            begin = time.thread_time()
            try:
                return handler(connection, request, *more)
            finally:
                seconds = time.thread_time() - begin
                if seconds > self._slowest[0]:
                    self._slowest = (seconds, f"code {int(code)}, {name(request)}")

        return timed


async def forget_locks(broker: Broker) -> None:
    """End all leases of queues, as a minute without requests would."""
    locks = broker.queue_locks
    lease, locks._lease = locks._lease, -1.0
    await locks.expire()
    locks._lease = lease


def anonymous_memory() -> int:
    """Bytes of this process that are no file's, without what could be given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        root = Path(sys.argv[1])
        with logging_to_files("INFO", root / "logs", LOGS, max_bytes=1 << 30, max_files=2):
            runner.run(main(root))
