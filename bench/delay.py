"""The case `delay`: how late delayed messages reach a waiting consumer.

One connection sends 2,000 messages a second with delay level 1 (1 s), evenly; another has a
waiting pull for each queue, as RocketMQ's consumer has. A message carries the time at which it
was sent, so its lateness is the time at which it was received, less that and the second: what
the send itself took is in it. The first seconds are not counted, so that Java has compiled the
path. Every accepted message must come exactly once, none early, or the run fails; sends that a
broker was too busy for are counted. Called by bench/__main__.py.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import uvloop
from rich.console import Console

from bench.frames import QUEUES
from bench.process import cpu_seconds
from bench.servers import Server, ServerError, create_topic, wait_for_first_send
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import RemotingCommand
from pyromq.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2
from pyromq.protocol.record import decode_records
from pyromq.remoting.client import RemotingClient

RATE = 2_000
SECONDS = 20.0
QUICK_SECONDS = 5.0
#: pyromq's lateness divided by Java's, median and p99.
BOUND = 0.5

_LEAD_IN_SECONDS = 5.0
_DELAY_NS = 1_000_000_000
#: Store timestamps are whole milliseconds, rounded down.
_EARLY_NS = 1_000_000
_TOPIC = "BenchmarkDelay"
_STEP_SECONDS = 0.001
_PATIENCE_SECONDS = 15.0
#: Number, and nanoseconds since 1970.
_STAMP = struct.Struct(">QQ")
_PADDING = bytes(128 - _STAMP.size)
_WAIT_AND_SUBSCRIPTION = 0x6

#: Figures of one server in one round.
Figures = dict[str, float]


def measure_delay(
    servers: Sequence[Server], data: Path, seconds: float, rounds: int, console: Console
) -> tuple[str, bool]:
    """Measure each server in turn; returns a table, and if it is enough."""
    figures: dict[str, list[Figures]] = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers:
            console.print(f"round {number + 1} of {rounds}: {server.name}")
            figures[server.name].append(_measure(server, data, seconds))
    medians = {
        name: {figure: median(each[figure] for each in rounds_of) for figure in rounds_of[0]}
        for name, rounds_of in figures.items()
    }
    return render(medians, seconds)


def _measure(server: Server, data: Path, seconds: float) -> Figures:
    directory = data / f"{server.name}-{os.getpid()}"
    try:
        pid = server.start(directory)
        wait_for_first_send(server, pid)
        create_topic(server.port, _TOPIC)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(f"127.0.0.1:{server.port}", pid, seconds))
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
        os.sync()  # the next server shall not pay for what this one left to be written


async def _run(address: str, pid: int, seconds: float) -> Figures:
    """Send and receive; the lateness of everything behind the lead-in."""
    first = int(RATE * _LEAD_IN_SECONDS)
    total = first + int(RATE * seconds)
    late = np.full(total, np.iinfo(np.int64).max, dtype=np.int64)
    came = np.zeros(total, dtype=np.int64)
    sender, receiver = RemotingClient(), RemotingClient()
    pulls = [
        asyncio.create_task(_receive(receiver, address, queue_id, late, came))
        for queue_id in range(QUEUES)
    ]
    gc.disable()  # a pause here would look like the server's
    try:
        before = cpu_seconds(pid)
        began = time.perf_counter()
        refused = await _send(sender, address, total)
        came[refused] = 1
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not came.all():
            if time.monotonic() > deadline:
                raise ServerError(f"{np.count_nonzero(came == 0)} of {total} never came")
            for pull in pulls:
                if pull.done():
                    pull.result()
            await asyncio.sleep(0.01)
        taken = time.perf_counter() - began
        cpu = cpu_seconds(pid) - before
    finally:
        gc.enable()
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        await sender.close()
        await receiver.close()
    if came.max() > 1:
        raise ServerError(f"{np.count_nonzero(came > 1)} messages came more than once")
    if late.min() < -_EARLY_NS:
        raise ServerError(f"a message came {-late.min() / 1e6:.1f} ms early")
    measured = np.delete(late, [*range(first), *refused]) / 1e6
    p50, p99, worst = np.percentile(measured, (50, 99, 100)).tolist()
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "worst_ms": worst,
        "cpu_us": cpu / total * 1e6,
        "server_cores": cpu / taken,
        "refused": len(refused),
    }


async def _send(client: RemotingClient, address: str, total: int) -> list[int]:
    """Send so many messages, evenly; the numbers of those that the broker was too busy for."""
    sends: list[asyncio.Task[RemotingCommand]] = []
    began = time.perf_counter()
    while len(sends) < total:
        due = min(total, int((time.perf_counter() - began) * RATE) + 1)
        sends += [
            asyncio.create_task(client.request(address, _message(number), 10.0))
            for number in range(len(sends), due)
        ]
        await asyncio.sleep(_STEP_SECONDS)
    refused = []
    for number, answer in enumerate(await asyncio.gather(*sends)):
        if answer.code == ResponseCode.SYSTEM_BUSY:
            refused.append(number)
        elif answer.code != ResponseCode.SUCCESS:
            raise ServerError(f"a send was refused with {answer.code}: {answer.remark}")
    return refused


def _message(number: int) -> RemotingCommand:
    now = time.time_ns()
    header = SendMessageRequestHeaderV2(
        producer_group="BenchmarkDelayProducer",
        topic=_TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=number % QUEUES,
        sys_flag=0,
        born_timestamp=now // 1_000_000,
        flag=0,
        properties=f"UNIQ_KEY\x017F0000010000000000000000{number:08X}\x02WAIT\x01true\x02"
        "DELAY\x011\x02TAGS\x01TagA",
        reconsume_times=0,
    )
    return RemotingCommand(
        RequestCode.SEND_MESSAGE_V2,
        ext_fields=header.encode(),
        body=_STAMP.pack(number, now) + _PADDING,
    )


async def _receive(
    client: RemotingClient,
    address: str,
    queue_id: int,
    late: np.ndarray[tuple[int], np.dtype[np.int64]],
    came: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    """Pull one queue, always waiting for the next message."""
    offset = 0
    while True:
        header = PullMessageRequestHeader(
            consumer_group="BenchmarkDelayConsumer",
            topic=_TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=_WAIT_AND_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=15_000,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        request = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.encode())
        answer = await client.request(address, request, 30.0)
        now = time.time_ns()
        for record in decode_records(answer.body):
            number, sent = _STAMP.unpack_from(record.body)
            late[number] = now - sent - _DELAY_NS
            came[number] += 1
        offset = int(answer.ext_fields["nextBeginOffset"])


def render(medians: dict[str, Figures], seconds: float) -> tuple[str, bool]:
    """The figures as text, and whether the bounds are kept."""
    lines = [
        f"lateness at a waiting consumer, {RATE:,} delayed messages/s of 1 s, {seconds:g} s",
        f"{'':32}" + "".join(f"{name:>12}" for name in medians),
    ]
    for figure, label in (
        ("p50_ms", "lateness, median, ms"),
        ("p99_ms", "lateness, p99, ms"),
        ("worst_ms", "lateness, worst, ms"),
        ("cpu_us", "server CPU µs per message"),
        ("server_cores", "cores the server used"),
        ("refused", "sends it was too busy for"),
    ):
        values = "".join(f"{figures[figure]:12,.2f}" for figures in medians.values())
        lines.append(f"{label:32}{values}")
    kept = True
    if {"java", "pyromq"} <= medians.keys():
        ratios = {
            name: medians["pyromq"][figure] / medians["java"][figure]
            for name, figure in (("median", "p50_ms"), ("p99", "p99_ms"))
        }
        kept = all(ratio <= BOUND for ratio in ratios.values())
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        lines.append(
            f"ratio to Java: {told} (bound: at most {BOUND:g}, {'kept' if kept else 'MISSED'})"
        )
    return "\n".join(lines) + "\n", kept
