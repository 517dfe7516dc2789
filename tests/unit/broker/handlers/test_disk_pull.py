"""Pulls that a thread reads for: cold pages and bulk reads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.protocol.wire.bodies import (
    TopicConfig,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.store.results import GetResult, GetStatus
from tests.support.patience import until
from tests.support.requests import pull_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.handlers.pulls import WAITING, bodies, offsets_of


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    assembled.topics.update(TopicConfig("T", 4, 4))
    yield assembled
    await assembled.close()


async def bulk_answer(broker: AssembledBroker, **values: Any) -> RemotingCommand:
    client = broker.connect()
    at_once = client.exchange(pull_request(maxMsgNums="10000", maxMsgBytes="1000000", **values))
    answers = [*at_once]

    def has_arrived() -> bool:
        answers.extend(client.received())
        return bool(answers)

    await until(has_arrived)
    assert len(answers) == 1
    return answers[0]


async def test_a_bulk_pull_carries_more_than_usual(broker: AssembledBroker) -> None:
    broker.put(*[b"%d" % number for number in range(500)])
    answer = await bulk_answer(broker, queueOffset="100")
    assert answer.code == ResponseCode.SUCCESS
    assert bodies(answer) == [b"%d" % number for number in range(100, 500)]
    assert offsets_of(answer) == (500, 0, 500)


@pytest.mark.parametrize(("limit", "got"), [(5000, 4), (0, 32)])
async def test_a_bulk_pull_keeps_to_the_brokers_limit(tmp_path: Path, limit: int, got: int) -> None:
    broker = AssembledBroker(tmp_path, BrokerConfig(bulk_pull_max_bytes=limit))
    broker.topics.update(TopicConfig("T", 4, 4))
    broker.put(*[bytes(1000) for _ in range(50)])
    assert len(bodies(await bulk_answer(broker))) == got
    await broker.close()


async def test_a_bulk_pull_filters(broker: AssembledBroker) -> None:
    broker.put(*[b"red"] * 300, tags="red")
    broker.put(*[b"blue"] * 300, tags="blue")
    answer = await bulk_answer(broker, subscription="blue")
    assert bodies(answer) == [b"blue"] * 300


async def test_a_bulk_pull_of_nothing_says_why(broker: AssembledBroker) -> None:
    broker.put(b"one")
    assert (await bulk_answer(broker, queueOffset="1")).code == ResponseCode.PULL_NOT_FOUND
    assert (await bulk_answer(broker, queueOffset="7")).code == ResponseCode.PULL_OFFSET_MOVED


async def test_bulk_pulls_in_flight_are_capped_per_connection(broker: AssembledBroker) -> None:
    broker.put(b"one")
    client = broker.connect()
    requests = [
        pull_request(opaque=number, maxMsgNums="100", maxMsgBytes="1000000") for number in range(12)
    ]
    answers = client.exchange(*requests)
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_BUSY] * 4
    found: list[RemotingCommand] = []

    def have_arrived() -> bool:
        found.extend(client.received())
        return len(found) == 8

    await until(have_arrived)
    assert sorted(answer.opaque for answer in found) == list(range(8))
    assert {answer.code for answer in found} == {ResponseCode.SUCCESS}
    assert client.exchange(requests[0]) == [], "the slots are free again"


class ColdStore:
    """Makes gets of a store find their pages missing, and counts the reads that bring them in."""

    def __init__(self, broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        #: Gets that find pages missing.
        self.cold_gets = 1
        self.reads = 0
        self.error: Exception | None = None
        #: Reads wait for it.
        self.may_read = threading.Event()
        self.may_read.set()
        self._get = broker.store.get
        monkeypatch.setattr(broker.store, "get", self.get)

    def get(self, *arguments: Any, may_wait: bool = False, **options: Any) -> GetResult:
        if not may_wait or not self.cold_gets:
            return self._get(*arguments, **options)
        self.cold_gets -= 1
        return GetResult(GetStatus.NOT_IN_MEMORY, 0, 0, 0, bring_in=self.read)

    def read(self) -> None:
        self.reads += 1
        self.may_read.wait(10)
        if self.error is not None:
            raise self.error


@pytest.fixture
def cold(broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch) -> ColdStore:
    broker.put(b"x")
    return ColdStore(broker, monkeypatch)


@pytest.mark.parametrize(("cold_gets", "reads"), [(1, 1), (2, 2), (3, 3), (9, 3)])
async def test_a_cold_pull_is_read_by_a_thread_a_few_times(
    broker: AssembledBroker, cold: ColdStore, cold_gets: int, reads: int
) -> None:
    """Case C, or D and then the loop."""
    cold.cold_gets = cold_gets
    client = broker.connect()
    assert client.exchange(pull_request()) == []
    await until(lambda: client.transport.written)
    (answer,) = client.received()
    assert bodies(answer) == [b"x"]
    assert cold.reads == reads


async def test_a_cold_pull_may_wait_for_messages_afterwards(
    broker: AssembledBroker, cold: ColdStore
) -> None:
    client = broker.connect()
    assert client.exchange(pull_request(queueOffset="1", sysFlag=WAITING)) == []
    await until(lambda: len(broker.long_poll) == 1)
    broker.put(b"y")
    await until(lambda: client.transport.written)
    assert bodies(client.received()[0]) == [b"y"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(5, "Input/output error"), ResponseCode.SYSTEM_ERROR),
        (RequestError(ResponseCode.SYSTEM_BUSY, "waited too long"), ResponseCode.SYSTEM_BUSY),
    ],
)
async def test_a_failed_read_is_reported(
    broker: AssembledBroker, cold: ColdStore, error: Exception, code: ResponseCode
) -> None:
    cold.error = error
    client = broker.connect()
    client.exchange(pull_request())
    await until(lambda: client.transport.written)
    assert client.received()[0].code == code


async def test_a_cold_pull_is_checked_again(broker: AssembledBroker, cold: ColdStore) -> None:
    cold.may_read.clear()
    client = broker.connect()
    client.exchange(pull_request())
    broker.topics.delete("T")
    cold.may_read.set()
    await until(lambda: client.transport.written)
    assert client.received()[0].code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_full_lane_refuses(broker: AssembledBroker, cold: ColdStore) -> None:
    await broker.lanes.pull.stop()
    assert broker.fast.ask(pull_request()).code == ResponseCode.SYSTEM_BUSY
    bulk = pull_request(maxMsgNums="100", maxMsgBytes="1000000")
    for _ in range(10):
        assert broker.fast.ask(bulk).code == ResponseCode.SYSTEM_BUSY


async def test_a_cold_pull_is_dropped_with_its_connection(
    broker: AssembledBroker, cold: ColdStore
) -> None:
    cold.may_read.clear()
    client = broker.connect()
    client.exchange(pull_request(), pull_request(maxMsgNums="100", maxMsgBytes="1000000"))
    client.transport.close()
    client.lose()
    cold.may_read.set()
    slots = broker.pull_handlers._disk_pulls._bulk_reads
    await until(lambda: cold.reads and not slots)
    assert not client.transport.written
