"""Responses to sends: templates, refusals, and the code after a failed flush."""

from __future__ import annotations

import struct
from pathlib import Path

import orjson
import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.send_responses import SendResponses, answers_after_wait
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    Encoding,
    RemotingCommand,
    command_from,
    frame_prefix,
    split_frames,
)
from pyromq.protocol.wire.header_binary import pack_int
from pyromq.store.acknowledgement import AckOutcome
from tests.support.requests import send_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.handlers.sends import (
    ALL_FORMS,
    BOTH_ENCODINGS,
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
    "region", ["DefaultRegion", "50% off", '","opaque":0,"', "\ue000ids", "Zürich"]
)
@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
@pytest.mark.parametrize("count", [1, 2, 37, 300])
async def test_templates_are_encoded_responses(
    tmp_path: Path, count: int, encoding: Encoding, region: str
) -> None:
    broker = AssembledBroker(tmp_path, BrokerConfig(broker_ip1="127.0.0.1", region_id=region))
    responses = SendResponses(broker.parts)
    physicals = [37 + 1000 * number for number in range(count)]
    for queue_id, offset, opaque in (
        (0, 0, 0),
        (37, 9, -1),
        (5, 10, 0x25252525),
        (1000, 2**63 - 1, -0x80000000),
    ):
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque=opaque, encoding=encoding)
        expected = responses.sent(request, queue_id, offset, physicals).encode()
        if encoding is Encoding.JSON:
            header = responses.json_templates[queue_id, count] % (*physicals, offset, opaque)
            filled = frame_prefix(encoding, len(header), 0) + header
        else:
            digits = b"%d" % offset
            template = responses.binary_templates[queue_id, count, len(digits)]
            filled = template % (pack_int(opaque), *physicals, digits)
        assert filled == expected
    await broker.close()


async def test_pieces_and_values_make_a_header(broker: AssembledBroker) -> None:
    responses = SendResponses(broker.parts)
    message_id = responses.id_prefix + b"%016X" % 4711
    json, binary = responses.json_pieces(), responses.binary_pieces()
    fields = b"".join(
        piece + pack_int(len(value)) + value
        for piece, value in (
            (binary.before_id, message_id),
            (binary.before_queue_id, b"3"),
            (binary.before_offset, b"12"),
        )
    )
    fields += binary.end

    for encoding, header in (
        (
            Encoding.JSON,
            json.before_id
            + message_id
            + json.before_queue_id
            + b"3"
            + json.before_offset
            + b"12"
            + json.before_opaque
            + b"77"
            + json.end,
        ),
        (
            Encoding.ROCKETMQ,
            binary.before_opaque
            + pack_int(77)
            + binary.before_fields_length
            + pack_int(len(fields))
            + fields,
        ),
    ):
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque=77, encoding=encoding)
        expected = responses.sent(request, 3, 12, [4711]).encode()
        assert frame_prefix(encoding, len(header), 0) + header == expected


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
async def test_changed_settings_change_responses(
    broker: AssembledBroker, encoding: Encoding
) -> None:
    warm(broker)
    requests = [
        send_request(encoding=encoding),
        send_request(RequestCode.SEND_BATCH_MESSAGE, body_for(ALL_FORMS[2]), encoding=encoding),
    ]
    assert [a.ext_fields["TRACE_ON"] for a in broker.fast.exchange(*requests)] == ["true"] * 2

    await broker.parts.live_config.update({"traceOn": "false"})
    warm(broker)

    assert [a.ext_fields["TRACE_ON"] for a in broker.fast.exchange(*requests)] == ["false"] * 2


@pytest.mark.parametrize(
    "region", ["50% off", "%d%s%%", 'a"b', "back\\slash", "Zürich", '","queueId":"9', "\x02"]
)
@pytest.mark.parametrize("trace", [True, False])
async def test_any_region_name_is_returned(tmp_path: Path, region: str, trace: bool) -> None:
    config = BrokerConfig(broker_ip1="127.0.0.1", region_id=region, trace_on=trace)
    broker = AssembledBroker(tmp_path, config)
    warm(broker)
    batch = body_for(ALL_FORMS[2]) * 3
    for request in (
        send_request(),
        send_request(RequestCode.SEND_BATCH_MESSAGE, batch),
        send_request(encoding=Encoding.ROCKETMQ),
    ):
        answers = [client.ask(request) for client in (broker.fast, broker.slow)]
        for answer in answers:
            assert answer.ext_fields["MSG_REGION"] == region
            assert answer.ext_fields["TRACE_ON"] == ("true" if trace else "false")
            assert answer.ext_fields["queueId"] == "1"
    assert len(broker.records()) == 11
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


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (AckOutcome.FLUSH_TIMED_OUT, ResponseCode.FLUSH_DISK_TIMEOUT),
        (AckOutcome.FLUSH_FAILED, ResponseCode.FLUSH_DISK_TIMEOUT),
        (AckOutcome.REPLICA_TIMED_OUT, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (AckOutcome.NO_REPLICA, ResponseCode.SLAVE_NOT_AVAILABLE),
    ],
)
def test_a_vain_wait_changes_the_code_of_stored_messages_only(
    encoding: Encoding, outcome: AckOutcome, code: ResponseCode
) -> None:
    fields = {"msgId": "AC11", "queueId": "1", "queueOffset": "7"}
    sent = RemotingCommand(ResponseCode.SUCCESS, 1, fields, encoding=encoding)
    other = RemotingCommand(ResponseCode.SUCCESS, 2, body=b"msgId", encoding=encoding)
    refused = RemotingCommand(ResponseCode.SYSTEM_ERROR, 3, fields, encoding=encoding)
    chunk = sent.encode() + other.encode() + refused.encode()

    assert answers_after_wait(chunk, AckOutcome.STORED) is chunk
    frames, _, _ = split_frames(answers_after_wait(chunk, outcome))

    answers = [command_from(frame) for frame in frames]
    assert [(answer.opaque, answer.code) for answer in answers] == [
        (1, code),
        (2, ResponseCode.SUCCESS),
        (3, ResponseCode.SYSTEM_ERROR),
    ]
    assert answers[0].ext_fields == fields
    assert answers[1].body == b"msgId"
