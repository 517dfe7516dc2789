from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.instruments import BrokerInstruments
from pyromq.metrics import histogram
from pyromq.protocol import kernel
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.support.requests import BORN, pull_request, send_request
from tests.unit.broker.assembled import AssembledBroker, Client

KERNEL = kernel.load("pulls") is not None


@pytest.fixture(autouse=True)
def every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time every run."""
    monkeypatch.setattr(histogram, "_MAX_SKIPPED", 0)


@pytest.fixture
def instruments() -> BrokerInstruments:
    return BrokerInstruments(now=lambda: BORN / 1000 + 2)


@pytest.fixture
async def broker(tmp_path: Path, instruments: BrokerInstruments) -> AsyncIterator[AssembledBroker]:
    made = AssembledBroker(tmp_path, instruments=instruments)
    made.store.growth.time_seals(instruments.sealed)
    made.store.time_flushes(instruments.flushed)
    yield made
    await made.close()


def pulled(client: Client, count: int) -> None:
    """Send the same pull several times in one chunk."""
    answers = client.exchange(*(pull_request(queueId="0") for _ in range(count)))
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * count


def test_seals_are_timed(broker: AssembledBroker, instruments: BrokerInstruments) -> None:
    broker.put(b"a", b"b", b"c")
    assert instruments.put.count == 3
    assert 0 < instruments.put.sum < 60


async def test_fsyncs_are_timed(broker: AssembledBroker, instruments: BrokerInstruments) -> None:
    broker.put(b"a")
    broker.store.stop()
    assert instruments.flush.count >= 1


@pytest.mark.skipif(not KERNEL, reason="the compiled kernel is not there")
def test_plain_sends_count_by_run(broker: AssembledBroker, instruments: BrokerInstruments) -> None:
    broker.put(b"first")  # creates the topic, on the slow path
    before = instruments.rpc["send_message_v2", "success", "success"].count
    answers = broker.fast.exchange(*(send_request(queueId="0") for _ in range(5)))
    assert len(answers) == 5
    assert instruments.rpc["send_message_v2", "success", "success"].count == before + 5
    assert instruments.put.count == 2


@pytest.mark.skipif(not KERNEL, reason="the compiled kernel is not there")
def test_plain_pulls_are_timed(broker: AssembledBroker, instruments: BrokerInstruments) -> None:
    broker.put(b"a", b"b")
    pulled(broker.fast, 1)  # makes the plan
    runs, pulls = (
        instruments.pull.count,
        instruments.rpc["pull_message", "success", "success"].count,
    )
    delivered = instruments.delivery.count
    pulled(broker.fast, 3)
    assert instruments.pull.count == runs + 1
    assert instruments.rpc["pull_message", "success", "success"].count == pulls + 3
    assert instruments.delivery.count == delivered + 1


def test_the_way_of_a_message(broker: AssembledBroker, instruments: BrokerInstruments) -> None:
    """The clock of the instruments is two seconds after the message was made."""
    broker.put(b"a")
    pulled(broker.hot, 1)
    assert instruments.end_to_end.count == 1
    assert instruments.end_to_end.sum == pytest.approx(2.0)
    # Stored after that, by the clock of the machine.
    assert instruments.delivery.sum == 0.0


def test_other_requests_are_timed(broker: AssembledBroker, instruments: BrokerInstruments) -> None:
    answer = broker.slow.ask(RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T"}))
    assert answer.code == ResponseCode.SYSTEM_ERROR  # no queueId
    (key,) = [key for key in instruments.rpc if key[0] == "get_max_offset"]
    assert key == ("get_max_offset", "system_error", "process_request_failed")
    assert instruments.rpc[key].count == 1


async def test_waits_of_chunks_are_timed(instruments: BrokerInstruments) -> None:
    future = asyncio.get_running_loop().create_future()
    end = instruments.timed_end(lambda: future)
    assert end() is future
    assert instruments.acknowledgement.count == 0
    future.set_result(None)
    await asyncio.sleep(0)
    assert instruments.acknowledgement.count == 1
    assert instruments.timed_end(lambda: None)() is None


def test_a_short_record_is_ignored(instruments: BrokerInstruments) -> None:
    instruments.delivered(b"short")
    assert instruments.delivery.count == 0


async def test_under_load_some_runs_stand_for_all(
    broker: AssembledBroker, instruments: BrokerInstruments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histogram, "_MAX_SKIPPED", 3)
    monkeypatch.setattr(histogram, "_FAST_SECONDS", 1000.0)
    broker.put(b"first")
    for client in (broker.fast, broker.hot):
        before = instruments.put.count, instruments.delivery.count
        for _ in range(40):
            assert client.ask(send_request(queueId="0")).code == ResponseCode.SUCCESS
            pulled(client, 1)
        # All but the last few, which nothing stands for yet.
        assert 36 <= instruments.put.count - before[0] <= 44
        assert 36 <= instruments.delivery.count - before[1] <= 44


async def test_without_instruments_nothing_is_timed(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path)
    broker.put(b"a")
    assert broker.store.growth.on_seal is None
    await broker.close()
