"""Responses to sends: templates, refusals, and the code after a failed flush."""

from __future__ import annotations

import struct
from pathlib import Path

import orjson
import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.send_responses import answers_after_flush
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, command_from, split_frames
from pyromq.store.flush import FlushOutcome
from tests.support.requests import send_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.handlers.sends import (
    ALL_FORMS,
    body_for,
    warm,
)


async def test_both_paths_respond_with_the_same_bytes(broker: AssembledBroker) -> None:
    warm(broker)
    batch = encode_inner_message(b"a", b"") + encode_inner_message(b"b", b"")
    for request in (
        send_request(),
        send_request(RequestCode.SEND_MESSAGE),
        send_request(RequestCode.SEND_BATCH_MESSAGE, batch),
    ):
        headers = []
        for client in (broker.fast, broker.slow):
            client.connection.data_received(request.encode())
            data = bytes(client.transport.written)
            client.transport.written.clear()
            total, length = struct.unpack_from(">II", data)
            assert total == 4 + length == len(data) - 4
            header = orjson.loads(data[8:])
            header["extFields"]["msgId"] = len(header["extFields"]["msgId"])
            del header["extFields"]["queueOffset"]
            headers.append(header)
        assert headers[0] == headers[1]


@pytest.mark.parametrize(
    "region", ["50% off", "%d%s%%", 'a"b', "back\\slash", "Zürich", '","queueId":"9', "\x02"]
)
@pytest.mark.parametrize("trace", [True, False])
async def test_any_region_name_is_returned(tmp_path: Path, region: str, trace: bool) -> None:
    config = BrokerConfig(broker_ip1="127.0.0.1", region_id=region, trace_on=trace)
    broker = AssembledBroker(tmp_path, config)
    warm(broker)
    batch = body_for(ALL_FORMS[2]) * 3
    for request in (send_request(), send_request(RequestCode.SEND_BATCH_MESSAGE, batch)):
        answers = [client.ask(request) for client in (broker.fast, broker.slow)]
        for answer in answers:
            assert answer.ext_fields["MSG_REGION"] == region
            assert answer.ext_fields["TRACE_ON"] == ("true" if trace else "false")
            assert answer.ext_fields["queueId"] == "1"
    assert len(broker.records()) == 9
    await broker.close()


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_stopped_store_refuses(tmp_path: Path, code: RequestCode) -> None:
    broker = AssembledBroker(tmp_path)
    warm(broker)
    broker.store.stop()

    answer = broker.fast.ask(send_request(code, body_for(code)))

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "service not available" in (answer.remark or "")
    await broker.close()


def test_a_failed_flush_changes_the_code_of_stored_messages_only() -> None:
    fields = {"msgId": "AC11", "queueId": "1", "queueOffset": "7"}
    sent = RemotingCommand(ResponseCode.SUCCESS, opaque=1, ext_fields=fields)
    other = RemotingCommand(ResponseCode.SUCCESS, opaque=2)
    refused = RemotingCommand(ResponseCode.SYSTEM_ERROR, opaque=3, ext_fields=fields)
    chunk = sent.encode() + other.encode() + refused.encode()

    assert answers_after_flush(chunk, FlushOutcome.FLUSHED) is chunk
    frames, _, _ = split_frames(answers_after_flush(chunk, FlushOutcome.TIMED_OUT))

    answers = [command_from(frame) for frame in frames]
    assert [(answer.opaque, answer.code) for answer in answers] == [
        (1, ResponseCode.FLUSH_DISK_TIMEOUT),
        (2, ResponseCode.SUCCESS),
        (3, ResponseCode.SYSTEM_ERROR),
    ]
    assert answers[0].ext_fields == fields
