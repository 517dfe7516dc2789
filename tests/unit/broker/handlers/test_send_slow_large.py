"""Large batches: stored in slices, in order, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.handlers import send, send_slow
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.bodies import TopicConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.support.patience import until
from tests.support.requests import send_request
from tests.unit.broker.assembled import AssembledBroker, Client

LARGE_FILES: dict[str, Any] = {"mapped_file_size_commit_log": 32 * 1024 * 1024}


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AssembledBroker]:
    for module in (send, send_slow):
        monkeypatch.setattr(module, "MAX_BATCH_AT_ONCE", 100)
    monkeypatch.setattr(send_slow, "_BATCH_SLICE", 10)
    assembled = AssembledBroker(tmp_path, **LARGE_FILES)
    assembled.topics.update(TopicConfig("T", 4, 4))
    assembled.put(b"first")
    yield assembled
    await assembled.close()


def batch(count: int, **values: Any) -> RemotingCommand:
    body = b"".join(encode_inner_message(b"%d" % number, b"") for number in range(count))
    code = values.pop("code", RequestCode.SEND_BATCH_MESSAGE)
    return send_request(code, body=body, queueId="0", batch="true", **values)


def stored(broker: AssembledBroker) -> list[bytes]:
    return [record.body for record in broker.records() if record.queue_id == 0][1:]


async def answers_of(client: Client, count: int) -> list[RemotingCommand]:
    answers: list[RemotingCommand] = []

    def all_came() -> bool:
        answers.extend(client.received())
        return len(answers) >= count

    await until(all_came)
    assert len(answers) == count
    return answers


@pytest.mark.parametrize("path", ["fast", "slow"])
@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_large_batch_takes_many_iterations_and_arrives_whole(
    broker: AssembledBroker, path: str, code: RequestCode
) -> None:
    client: Client = getattr(broker, path)
    other = broker.connect()
    assert client.exchange(batch(500, code=code, opaque=7)) == []
    await asyncio.sleep(0)
    assert other.ask(send_request(body=b"other", queueId="0")).code == ResponseCode.SUCCESS
    (answer,) = await answers_of(client, 1)
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 7)
    assert answer.ext_fields["queueOffset"] == "2"
    assert stored(broker) == [b"other", *(b"%d" % number for number in range(500))]
    offsets = [record.queue_offset for record in broker.records() if record.queue_id == 0]
    assert offsets == list(range(502))
    ids = answer.ext_fields["msgId"].split(",")
    assert ids == [record.message_id for record in broker.records()][2:]


async def test_a_batch_at_the_limit_is_put_at_once(broker: AssembledBroker) -> None:
    assert broker.fast.ask(batch(100)).code == ResponseCode.SUCCESS
    assert broker.fast.exchange(batch(101)) == []
    await answers_of(broker.fast, 1)


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_later_sends_of_the_connection_queue_up_after_it(
    broker: AssembledBroker, code: RequestCode
) -> None:
    client = broker.fast
    requests = [
        send_request(RequestCode.SEND_MESSAGE_V2, body=b"before", queueId="0", opaque=1),
        batch(300, code=code, opaque=2),
        send_request(RequestCode.SEND_MESSAGE_V2, body=b"one", queueId="0", opaque=3),
        batch(2, opaque=4),
        batch(200, opaque=5),
        send_request(RequestCode.SEND_MESSAGE, body=b"last", queueId="0", opaque=6),
    ]
    at_once = client.exchange(*requests)
    assert [answer.opaque for answer in at_once] == [1]
    await asyncio.sleep(0)
    assert client.exchange(send_request(body=b"later", queueId="0", opaque=7)) == []
    answers = await answers_of(client, 6)
    assert sorted(answer.opaque for answer in answers) == [2, 3, 4, 5, 6, 7]
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    numbers = [b"%d" % number for number in range(300)]
    assert stored(broker) == [
        b"before",
        *numbers,
        b"one",
        *numbers[:2],
        *numbers[:200],
        b"last",
        b"later",
    ]
    assert client.ask(send_request(body=b"x", queueId="0")).code == ResponseCode.SUCCESS


async def test_messages_after_a_large_batch_to_a_new_queue_wait_for_it(
    broker: AssembledBroker,
) -> None:
    large = batch(300, code=RequestCode.SEND_MESSAGE_V2)
    large.ext_fields["e"] = "1"  # its first message: no target of the hot path yet
    before = len(broker.records())

    assert broker.fast.exchange(large, send_request(body=b"after", queueId="0")) == []
    await answers_of(broker.fast, 2)

    bodies = [record.body for record in broker.records()[before:]]
    assert bodies == [*(b"%d" % number for number in range(300)), b"after"]


async def test_a_topic_may_be_deleted_while_its_batch_is_encoded(broker: AssembledBroker) -> None:
    assert broker.fast.exchange(batch(500)) == []
    await asyncio.sleep(0)
    broker.topics.delete("T")
    broker.store.remove_topic("T")
    (answer,) = await answers_of(broker.fast, 1)
    assert answer.code == ResponseCode.SUCCESS, "it is recreated, as by any send"
    assert broker.store.max_offset("T", 0) == 500


async def test_a_large_batch_that_is_torn_is_refused_whole(broker: AssembledBroker) -> None:
    request = batch(500)
    request.body = request.body[:-1]
    assert broker.fast.exchange(request) == []
    (answer,) = await answers_of(broker.fast, 1)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert stored(broker) == []
    assert broker.fast.ask(send_request(body=b"x", queueId="0")).code == ResponseCode.SUCCESS


async def test_a_client_that_disconnects_leaves_nothing_queued(broker: AssembledBroker) -> None:
    client = broker.connect()
    client.exchange(batch(500), send_request(body=b"x", queueId="0"))
    client.transport.close()
    client.lose()
    await until(lambda: not broker.server.tasks)
    assert not broker.slow_sends.queued


@pytest.mark.parametrize("path", ["fast", "slow"])
async def test_properties_of_a_batch_cannot_fill_the_log(tmp_path: Path, path: str) -> None:
    """360 KB on the wire became 450 MB."""
    broker = AssembledBroker(tmp_path, **LARGE_FILES)
    broker.topics.update(TopicConfig("T", 4, 4))
    broker.put(b"first")
    end = broker.store.max_physical_offset
    request = send_request(
        RequestCode.SEND_BATCH_MESSAGE,
        body=encode_inner_message(b"", b"") * 15_000,
        queueId="0",
        properties="p\x01" + "x" * 30_000,
    )
    client: Client = getattr(broker, path)
    (answer,) = client.exchange(request) or await answers_of(client, 1)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert answer.remark.endswith("limit 16777216 (maxBatchRecordsSize)")
    assert broker.store.max_physical_offset == end
    await broker.close()
