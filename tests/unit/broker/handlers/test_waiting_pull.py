"""Waiting pulls: until a message arrives or they time out."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.services import long_poll as long_poll_module
from pyromq.protocol.wire.bodies import (
    TopicConfig,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import Encoding
from tests.support.patience import until
from tests.support.requests import pull_request, send_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.handlers.pulls import BOTH_ENCODINGS, WAITING, bodies, offsets_of, subscribe


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll_module, "_TICK_SECONDS", 0.01)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    assembled.topics.update(TopicConfig("T", 4, 4))
    yield assembled
    await assembled.close()


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
async def test_a_waiting_pull_gets_the_next_message(
    broker: AssembledBroker, encoding: Encoding
) -> None:
    client = broker.connect()
    assert client.exchange(pull_request(opaque=7, sysFlag=WAITING, encoding=encoding)) == []

    broker.put(b"beside", queue_id=1)
    await asyncio.sleep(0)
    assert client.received() == []
    broker.put(b"new")
    await until(lambda: client.transport.written)

    (answer,) = client.received()
    assert (answer.code, answer.opaque, answer.encoding) == (0, 7, encoding)
    assert bodies(answer) == [b"new"]
    assert offsets_of(answer) == (1, 0, 1)
    assert len(broker.long_poll) == 0


async def test_a_waiting_pull_times_out(broker: AssembledBroker) -> None:
    broker.put(b"x")
    client = broker.connect()
    client.exchange(
        pull_request(sysFlag=WAITING, queueOffset="1", suspendTimeoutMillis="40", opaque=3)
    )

    await until(lambda: client.transport.written)

    (answer,) = client.received()
    assert (answer.code, answer.opaque) == (ResponseCode.PULL_NOT_FOUND, 3)
    assert offsets_of(answer) == (1, 0, 1)


async def test_no_pull_waits_in_a_stopping_broker(broker: AssembledBroker) -> None:
    """PULL_NOT_FOUND would make clients retry at once on a connection that is closing."""
    broker.put(b"x")
    client = broker.connect()
    waiting = pull_request(sysFlag=WAITING, queueOffset="1", opaque=3)
    assert client.exchange(waiting) == []

    broker.long_poll.stop()
    (refused,) = client.received()
    (again,) = client.exchange(waiting)
    (found,) = client.exchange(pull_request(sysFlag=WAITING, queueOffset="0", opaque=4))

    for answer in (refused, again):
        assert (answer.code, answer.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, 3)
    assert bodies(found) == [b"x"]
    assert len(broker.long_poll) == 0


@pytest.mark.parametrize("millis", ["0", "-1", str(-(2**63))])
async def test_a_pull_without_a_wait_is_answered_soon(broker: AssembledBroker, millis: str) -> None:
    broker.fast.exchange(pull_request(sysFlag=WAITING, suspendTimeoutMillis=millis))
    await until(lambda: broker.fast.transport.written)

    assert broker.fast.received()[0].code == ResponseCode.PULL_NOT_FOUND


async def test_the_longest_wait_is_possible(broker: AssembledBroker) -> None:
    broker.fast.exchange(pull_request(sysFlag=WAITING, suspendTimeoutMillis=str(2**63 - 1)))
    assert len(broker.long_poll) == 1
    broker.put(b"x")
    await until(lambda: broker.fast.transport.written)
    assert bodies(broker.fast.received()[0]) == [b"x"]


async def test_filtered_messages_do_not_end_the_wait(broker: AssembledBroker) -> None:
    client = broker.connect()
    client.exchange(pull_request(sysFlag=WAITING, subscription="red"))

    for tags in ("blue", "", "green"):
        broker.put(b"x", tags=tags)
        await asyncio.sleep(0)
    assert client.received() == []
    assert len(broker.long_poll) == 1
    broker.put(b"wanted", tags="red")
    await until(lambda: client.transport.written)

    (answer,) = client.received()
    assert bodies(answer) == [b"wanted"]
    assert offsets_of(answer) == (4, 0, 4)


async def test_a_timed_out_pull_skips_filtered_messages(broker: AssembledBroker) -> None:
    client = broker.connect()
    client.exchange(
        pull_request(sysFlag=WAITING, subscription="red", suspendTimeoutMillis="60", opaque=8)
    )
    broker.put(b"x", b"y", tags="blue")
    await until(lambda: client.transport.written)

    (answer,) = client.received()
    assert (answer.code, answer.opaque) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 8)
    assert offsets_of(answer) == (2, 0, 2)


async def test_a_match_after_many_others_in_its_chunk_ends_the_wait(
    broker: AssembledBroker,
) -> None:
    """It takes more than one get to reach it."""
    client = broker.connect()
    client.exchange(pull_request(sysFlag=WAITING, subscription="red"))
    others = [send_request(queueId="0", properties="TAGS\x01blue")] * 2000
    wanted = send_request(body=b"wanted", queueId="0", properties="TAGS\x01red")

    broker.connect().exchange(*others, wanted)
    await until(lambda: client.transport.written)

    (answer,) = client.received()
    if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:  # RocketMQ's way
        answer = client.ask(
            pull_request(subscription="red", queueOffset=answer.ext_fields["nextBeginOffset"])
        )
    assert bodies(answer) == [b"wanted"]


async def test_short_polling_has_its_own_wait(tmp_path: Path) -> None:
    config = BrokerConfig(
        broker_ip1="127.0.0.1", long_polling_enable=False, short_polling_time_mills=30
    )
    broker = AssembledBroker(tmp_path, config)
    broker.topics.update(TopicConfig("T", 4, 4))

    broker.fast.exchange(pull_request(sysFlag=WAITING, suspendTimeoutMillis="900000"))
    await until(lambda: broker.fast.transport.written)

    assert broker.fast.received()[0].code == ResponseCode.PULL_NOT_FOUND
    await broker.close()


async def test_a_pull_with_a_wrong_offset_does_not_wait(broker: AssembledBroker) -> None:
    broker.put(b"x")
    answer = broker.fast.ask(pull_request(sysFlag=WAITING, queueOffset="9"))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert len(broker.long_poll) == 0


async def test_a_pull_may_wait_on_an_empty_queue_that_is_deleted(
    broker: AssembledBroker,
) -> None:
    client = broker.connect()
    client.exchange(pull_request(sysFlag=WAITING, suspendTimeoutMillis="60"))
    broker.topics.delete("T")
    broker.store.remove_topic("T")

    await until(lambda: client.transport.written)

    assert client.received()[0].code in (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.TOPIC_NOT_EXIST,
    )
    assert len(broker.long_poll) == 0


async def test_waiting_pulls_keep_nothing_large(broker: AssembledBroker) -> None:
    client = broker.connect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(30):
            request = pull_request(sysFlag=WAITING, useless="x" * 200_000)
            request.body = bytes(300_000)
            assert client.exchange(request) == []
        del request
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(broker.long_poll) == 30
    assert after - before < 2 * 1024 * 1024


async def test_a_waiting_pull_honours_a_changed_subscription(
    broker: AssembledBroker,
) -> None:
    """The new expression may match messages that the old one filtered out."""
    subscribe(broker, "red", version=1)
    client = broker.connect()
    client.exchange(pull_request(sysFlag="2", subVersion="1", suspendTimeoutMillis="100"))
    subscribe(broker, "blue", version=2)
    broker.put(b"wanted now", tags="blue")
    await until(lambda: client.transport.written)

    (answer,) = client.received()
    if answer.code != ResponseCode.SUCCESS:
        following = answer.ext_fields["nextBeginOffset"]
        answer = client.ask(pull_request(sysFlag="0", subVersion="2", queueOffset=following))
    assert bodies(answer) == [b"wanted now"]
