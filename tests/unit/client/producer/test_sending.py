from __future__ import annotations

import zlib

import pytest

from pyromq.client.message import ClientMessage, Message
from pyromq.client.producer.sending import Outgoing, Target, batches_of, quick_result
from pyromq.client.results import SendStatus
from pyromq.protocol.message.sysflag import COMPRESSED, COMPRESSION_ZLIB
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand, command_from, split_frames
from pyromq.remoting.client import SendAnswer

QUEUE = MessageQueue('t%"ä', "b%d", 3)
TARGET = Target(QUEUE, "a:1", 'g"%s', 4)
REPLY = {"MSG_TYPE": "reply"}
AWKWARD = {"a": 'quote " and \\ and % and ä', "emoji": "\U0001f600"}


def parse(frame: bytes) -> RemotingCommand:
    (raw,), taken, error = split_frames(frame)
    assert (taken, error) == (len(frame), None)
    return command_from(raw)


@pytest.mark.parametrize("is_oneway", [False, True])
@pytest.mark.parametrize(
    "outgoing",
    [
        Outgoing(Message("t", b"body", tags="x", keys=["k", "l"], properties=AWKWARD, flag=7), 99),
        Outgoing(Message("t", b"body" * 100, delay_level=2, ordering_key="o"), 99),
        batches_of([Message("t", b"1", properties=AWKWARD), Message("t", b"2", flag=-1)])[0],
        Outgoing(ClientMessage("t", b"reply", properties=AWKWARD, system_properties=REPLY), 99),
        Outgoing.encoded("t", b"inner messages"),
        Outgoing.encoded("t", b"body", "a\x01ä"),
    ],
)
def test_the_template_encodes_the_typed_header(outgoing: Outgoing, is_oneway: bool) -> None:
    quick = parse(TARGET.frame(outgoing, 42, FLAG_ONEWAY if is_oneway else 0))
    careful = TARGET.command(outgoing, is_oneway=is_oneway)
    careful.opaque = 42
    careful.ext_fields["g"] = quick.ext_fields["g"]
    assert quick == careful


def test_large_bodies_are_compressed() -> None:
    body = b"again and again " * 1000
    large, small = Outgoing(Message("t", body), 4096), Outgoing(Message("t", body), 1 << 20)
    assert (large.sys_flag, zlib.decompress(large.body)) == (COMPRESSED | COMPRESSION_ZLIB, body)
    assert (small.sys_flag, small.body) == (0, body)


def test_a_half_message_carries_its_group() -> None:
    outgoing = Outgoing(Message("t", b"x", tags="a"), 99)
    outgoing.prepare_transaction("g")
    request = TARGET.command(outgoing)
    assert request.code == RequestCode.SEND_MESSAGE_V2
    assert request.ext_fields["f"] == "4"
    assert request.ext_fields["i"].endswith("\x02TRAN_MSG\x01true\x02PGROUP\x01g")


def test_a_reply_has_its_own_request_code() -> None:
    reply = Outgoing(ClientMessage("t", b"x", system_properties=REPLY), 99)
    assert TARGET.command(reply).code == RequestCode.SEND_REPLY_MESSAGE_V2
    other = Outgoing(ClientMessage("t", b"x", system_properties={"MSG_TYPE": "other"}), 99)
    assert TARGET.command(other).code == RequestCode.SEND_MESSAGE_V2


def test_a_batch_has_no_id_of_its_own() -> None:
    """Brokers append a batch's properties to its messages', so its id would hide theirs."""
    batch = batches_of([Message("t", b"1"), Message("t", b"2")])[0]
    assert batch.properties == "WAIT\x01true"


def test_results_of_a_batch() -> None:
    batch = batches_of([Message("t", b"1"), Message("t", b"2")])[0]
    fields = {"msgId": "A,B", "queueId": "3", "queueOffset": "7", "TRACE_ON": "false"}
    results = batch.results(fields, QUEUE, SendStatus.SEND_OK)
    assert [(r.offset_msg_id, r.queue_offset, r.msg_id) for r in results] == [
        ("A", 7, batch.keys[0]),
        ("B", 8, batch.keys[1]),
    ]
    assert not results[0].trace_on
    assert results[0].queue is QUEUE
    alone = batch.results({**fields, "msgId": "A", "queueId": "1"}, QUEUE, SendStatus.SEND_OK)
    assert [(r.offset_msg_id, r.queue.queue_id) for r in alone] == [("A", 1), ("A", 1)]


@pytest.mark.parametrize("missing", ["msgId", "queueId", "queueOffset"])
def test_a_response_without_a_position_is_refused(missing: str) -> None:
    fields = {"msgId": "A", "queueId": "3", "queueOffset": "7"}
    del fields[missing]
    with pytest.raises(ValueError, match="bad position"):
        Outgoing(Message("t", b"x"), 99).results(fields, QUEUE, SendStatus.SEND_OK)


def test_encoded_messages_have_one_result() -> None:
    fields = {"queueId": "3", "queueOffset": "17", "msgId": "A,B,C"}
    for outgoing in (Outgoing.encoded("t", b"batch"), Outgoing.encoded("t", b"one", "a\x01b")):
        (result,) = outgoing.results(fields, QUEUE, SendStatus.SEND_OK)
        assert (result.queue_offset, result.offset_msg_id) == (17, "A")


def test_quick_results_are_those_of_any_request() -> None:
    fields = {"msgId": "ID", "queueId": "4", "queueOffset": "9", "MSG_REGION": "r"}
    outgoing = Outgoing(Message("t", b"x"), 99)
    (key,) = outgoing.keys
    (expected,) = outgoing.results(fields, QUEUE, SendStatus.SEND_OK)
    header = {"code": 0, "extFields": fields}
    plain = SendAnswer("ID", 4, 9, "r", trace_on=True)
    assert quick_result(key, (0, header, b""), QUEUE) == expected
    assert quick_result(key, plain, QUEUE) == expected
    assert outgoing.results_of(plain, QUEUE) == [expected]


@pytest.mark.parametrize(
    "change",
    [
        {"msgId": "A,B"},
        {"msgId": 5},
        {"queueId": None},
        {"queueOffset": "x"},
        {"transactionId": "id"},
    ],
)
def test_responses_that_are_not_plain_have_no_quick_result(change: dict[str, object]) -> None:
    fields = {"msgId": "ID", "queueId": "4", "queueOffset": "9", **change}
    for header in ({"code": 0, "extFields": fields}, {"code": 0}, {"code": 11}, {}):
        assert quick_result("key", (0, header, b""), QUEUE) is None
    assert quick_result("key", SendAnswer("A,B", 4, 9, "", trace_on=True), QUEUE) is None
