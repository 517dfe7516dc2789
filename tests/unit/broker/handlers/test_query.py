from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.handlers import query as module
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from tests.support.patience import until
from tests.support.requests import send_request
from tests.unit.broker.assembled import AssembledBroker

FOREVER = str(2**62)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path, default_query_max_num=3)
    yield assembled
    await assembled.close()


def put(broker: AssembledBroker, body: bytes, keys: str, topic: str = "T") -> None:
    request = send_request(
        body=body, topic=topic, queueId="0", properties=f"KEYS\x01{keys}\x02UNIQ_KEY\x01u-{keys}"
    )
    assert broker.fast.ask(request).code == ResponseCode.SUCCESS


def query_request(key: str, /, **values: str) -> RemotingCommand:
    fields = {
        "topic": "T",
        "key": key,
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": FOREVER,
        **values,
    }
    return RemotingCommand(
        RequestCode.QUERY_MESSAGE,
        opaque=5,
        ext_fields={name: value for name, value in fields.items() if value != "-"},
    )


async def query(broker: AssembledBroker, request: RemotingCommand) -> RemotingCommand:
    """Return the response once the index, which is built off the loop, has caught up."""
    await until(lambda: broker.store.dispatch_behind == 0)
    client = broker.connect()
    client.exchange(request)
    await until(lambda: client.transport.written)
    (answer,) = client.received()
    return answer


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


async def test_messages_of_a_key_are_oldest_first(broker: AssembledBroker) -> None:
    for number, keys in enumerate(["a", "b", "a b", "c", "a"]):
        put(broker, b"%d" % number, keys)
    put(broker, b"elsewhere", "a", topic="U")

    answer = await query(broker, query_request("a"))

    assert (answer.code, answer.opaque, answer.remark) == (ResponseCode.SUCCESS, 5, None)
    assert bodies(answer) == [b"0", b"2", b"4"]
    assert bodies(await query(broker, query_request("b"))) == [b"1", b"2"]
    assert bodies(await query(broker, query_request("u-c"))) == [b"3"]
    last = broker.records()[-1]
    assert answer.ext_fields == {
        "indexLastUpdateTimestamp": str(last.store_timestamp),
        "indexLastUpdatePhyoffset": str(last.physical_offset),
    }


async def test_a_response_that_would_be_too_large_has_the_newest(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        put(broker, b"%d" % number * 10_000, "a")
    size = len(broker.store.read_record(0) or b"")
    monkeypatch.setattr(module, "_MAX_BODY", 2 * size)
    answer = await query(broker, query_request("a"))
    assert [body[:1] for body in bodies(answer)] == [b"2", b"3"]


async def test_both_encodings_are_answered_in_kind(broker: AssembledBroker) -> None:
    put(broker, b"x", "a")
    for encoding in (Encoding.JSON, Encoding.ROCKETMQ):
        request = query_request("a")
        request.encoding = encoding
        answer = await query(broker, request)
        assert (answer.encoding, bodies(answer)) == (encoding, [b"x"])


async def test_an_unknown_key_is_not_found(broker: AssembledBroker) -> None:
    put(broker, b"x", "a")
    for request in (
        query_request("b"),
        query_request(""),
        query_request("a", topic="U"),
        query_request("a", beginTimestamp="0", endTimestamp="1"),
        query_request("a", beginTimestamp=FOREVER),
        query_request("a", beginTimestamp=FOREVER, endTimestamp="0"),
    ):
        answer = await query(broker, request)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark == "can not find message, maybe time range not correct"
        assert answer.body == b""
        assert answer.ext_fields.keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}


@pytest.mark.parametrize("limit", ["2", "1", "0", "-1"])
async def test_a_query_is_capped_by_its_maximum(broker: AssembledBroker, limit: str) -> None:
    for number in range(5):
        put(broker, b"%d" % number, "a")

    answer = await query(broker, query_request("a", maxNum=limit))

    assert len(bodies(answer)) == max(0, int(limit))


async def test_a_query_by_unique_key_has_the_brokers_own_limit(broker: AssembledBroker) -> None:
    for number in range(5):
        put(broker, b"%d" % number, "a")

    for flag, count in (("true", 3), ("false", 1), ("TRUE", 1)):
        answer = await query(broker, query_request("a", maxNum="1", _UNIQUE_KEY_QUERY=flag))
        assert len(bodies(answer)) == count


@pytest.mark.parametrize("name", ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"])
async def test_a_missing_or_bad_field_is_named(broker: AssembledBroker, name: str) -> None:
    values = ["-"] if name in ("topic", "key") else ["-", "x", "9" * 30]
    for value in values:
        answer = await query(broker, query_request("a", **{name: value}))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert name in (answer.remark or "")


async def test_a_message_is_found_by_its_offset(broker: AssembledBroker) -> None:
    put(broker, b"first", "a")
    put(broker, b"second", "b")
    for record in broker.records():
        answer = broker.fast.ask(view(record.physical_offset))
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        assert decode_records(answer.body) == [record]


async def test_a_message_of_the_same_chunk_is_found(broker: AssembledBroker) -> None:
    answers = broker.fast.exchange(send_request(body=b"new", queueId="0"), view(0))

    assert bodies(answers[1]) == [b"new"]


async def test_a_cold_message_is_read_on_a_lane(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.put(b"one")
    monkeypatch.setattr(broker.store, "is_cold", lambda _: True)
    for offset, code in ((0, ResponseCode.SUCCESS), (1, ResponseCode.SYSTEM_ERROR)):
        request = RemotingCommand(
            RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(offset)}
        )
        assert broker.fast.exchange(request) == []
        await until(lambda: broker.fast.transport.written)
        (answer,) = broker.fast.received()
        assert answer.code == code
        assert (answer.body != b"") == (code is ResponseCode.SUCCESS)


async def test_no_message_is_found_inside_another(broker: AssembledBroker) -> None:
    put(broker, b"x" * 200, "a")
    end = broker.store.max_physical_offset
    for offset in (1, 7, 100, end - 1, end, end + 1, 2**62, 2**63 - 1, -1, -(2**63)):
        answer = broker.fast.ask(view(offset))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"can not find message by the offset, {offset}"


async def test_bytes_that_look_like_a_message_are_harmless(broker: AssembledBroker) -> None:
    """A client may store bytes that look like a record inside a body."""
    put(broker, b"inner", "a")
    inner = broker.store.read_record(0)
    assert inner is not None
    start = broker.store.max_physical_offset
    put(broker, inner[:40], "b")

    for offset in range(start, broker.store.max_physical_offset):
        answer = broker.fast.ask(view(offset))
        assert answer.is_response
    assert not broker.fast.closed


def view(offset: int) -> RemotingCommand:
    return RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(offset)})
