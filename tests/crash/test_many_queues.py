"""Far more queues than descriptors: sends, pulls, starts, a kill, a deletion, a check."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import DeleteTopicRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.store.offline.check import check_store
from tests.support.crash import BrokerProcess
from tests.support.patience import DEADLINE
from tests.support.requests import pull_request, send_request

QUEUES_PER_TOPIC = 100
_IN_FLIGHT = 64


class Shape(NamedTuple):
    """How much there is of everything."""

    topics: int
    open_files: int

    def queues(self) -> Iterable[tuple[str, int]]:
        return (
            (f"T{topic}", queue_id)
            for queue_id in range(QUEUES_PER_TOPIC)
            for topic in range(self.topics)
        )


class Peer:
    """Asks a broker for one thing of each queue, several at a time."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._address = broker.address
        self._client = RemotingClient()

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        answer = await self._client.request(self._address, request, DEADLINE)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    async def ask_all(
        self,
        queues: Iterable[tuple[str, int]],
        request: Callable[[str, int], RemotingCommand],
        check: Callable[[str, int, RemotingCommand], None] = lambda *_: None,
    ) -> None:
        waiting = iter(queues)

        async def work() -> None:
            for topic, queue_id in waiting:
                check(topic, queue_id, await self.ask(request(topic, queue_id)))

        await asyncio.gather(*(work() for _ in range(_IN_FLIGHT)))

    async def close(self) -> None:
        await self._client.close()


def create(topic: str, _: int) -> RemotingCommand:
    fields = {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
    numbers = {"readQueueNums": QUEUES_PER_TOPIC, "writeQueueNums": QUEUES_PER_TOPIC}
    numbers |= {"perm": 6, "topicSysFlag": 0}
    fields |= {name: str(value) for name, value in numbers.items()} | {"order": "false"}
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)


def send(topic: str, queue_id: int) -> RemotingCommand:
    body = f"{topic} {queue_id}".encode()
    return send_request(
        RequestCode.SEND_MESSAGE_V2, body, topic=topic, queueId=str(queue_id), properties=""
    )


def pull(topic: str, queue_id: int) -> RemotingCommand:
    return pull_request(topic=topic, queueId=str(queue_id), queueOffset="0")


def checks_for(count: int) -> Callable[[str, int, RemotingCommand], None]:
    """A check that a pull got so many messages, those of its queue."""

    def check(topic: str, queue_id: int, answer: RemotingCommand) -> None:
        found = [record.body for record in decode_records(answer.body)]
        assert found == [f"{topic} {queue_id}".encode()] * count

    return check


async def serve_all(directory: Path, shape: Shape) -> list[str]:
    """Do everything with every queue; returns how long each step took."""
    took: list[str] = []
    began = time.perf_counter()

    def step(name: str, broker: BrokerProcess | None = None) -> None:
        nonlocal began
        memory = ""
        if broker is not None:
            status = Path(f"/proc/{broker.pid}/status").read_text().split("\n")
            memory = next(line for line in status if line.startswith("VmRSS")).split()[1]
            memory = f", {int(memory) // 1024} MiB"
        took.append(f"{name}: {time.perf_counter() - began:.1f} s{memory}")
        began = time.perf_counter()

    async def start() -> tuple[BrokerProcess, Peer]:
        # Not `start`, whose deadline is for small stores: pytest's counts here.
        broker = await BrokerProcess.launch(
            directory,
            open_files=shape.open_files,
            # The load is this test's, and small files are cheap.
            mappedFileSizeCommitLog=4 * 1024 * 1024,
            flushIntervalConsumeQueue=1000,
            flushIntervalCommitLog=500,
            flushCommitLogThoroughInterval=10_000,
        )
        try:
            await broker.wait_until_serving()
        except BaseException:
            await broker.kill()
            raise
        step("start", broker)
        return broker, Peer(broker)

    broker, peer = await start()
    try:
        await peer.ask_all(((f"T{topic}", 0) for topic in range(shape.topics)), create)
        step("create topics", broker)
        await peer.ask_all(shape.queues(), send)
        step("send to all", broker)
        await peer.ask_all(shape.queues(), pull, checks_for(1))
        step("pull from all", broker)
        await peer.close()
        await broker.kill(signal.SIGTERM)
        step("stop")
        broker, peer = await start()
        await peer.ask_all(shape.queues(), pull, checks_for(1))
        step("pull from all", broker)
        await peer.ask_all(shape.queues(), send)
        step("send to all", broker)
        await peer.close()
        await broker.kill()
        step("kill")
        broker, peer = await start()
        await peer.ask_all(shape.queues(), pull, checks_for(2))
        step("pull from all", broker)
        header = DeleteTopicRequestHeader("T0").encode()
        await peer.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields=header))
        step("delete a topic", broker)
        await peer.close()
    finally:
        printed = await broker.kill(signal.SIGTERM)
    assert b"Traceback" not in printed, printed.decode()
    assert b"descriptors" not in printed, printed.decode()
    step("stop")
    assert not (directory / "consumequeue" / "T0").exists()
    assert list(check_store(directory)) == []
    step("check")
    return took


async def test_thousands_of_queues_with_few_descriptors(tmp_path: Path) -> None:
    await serve_all(tmp_path / "store", Shape(topics=30, open_files=256))


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_hundred_thousand_queues_with_a_thousand_descriptors(tmp_path: Path) -> None:
    took = await serve_all(tmp_path / "store", Shape(topics=1000, open_files=1024))
    sys.stdout.write("\n".join(took) + "\n")
