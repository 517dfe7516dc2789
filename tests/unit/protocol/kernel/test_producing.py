"""The kernel encodes and decodes the bytes of a producer as the Python code does."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.client.producer import sending
from pyromq.client.producer.sending import Outgoing, PlainTemplate, encode_plain_batch
from pyromq.client.results import SendResult, SendStatus
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.frame import MAX_FRAME, RemotingCommand, split_frames
from pyromq.remoting.client import SendAnswer
from tests import kernel_builds
from tests.support.examples import examples

QUEUE = MessageQueue("t", "b", 3)
HEAD = "7F00000112340A0B0C0D0001E240"
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TAGS = st.text(st.characters(min_codepoint=3, max_codepoint=126), max_size=10)
BODIES = st.binary(min_size=1, max_size=300)
ANSWER = {
    "msgId": "7F00000100002A9F0000000000000063",
    "queueId": "3",
    "queueOffset": "123456",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
}


@pytest.fixture(
    scope="module", params=[kernel_builds.FAST, kernel_builds.CHECKED], ids=lambda build: build.name
)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return kernel_builds.load(request.param, "producing")


@given(st.lists(st.binary(max_size=20), min_size=7, max_size=7), NUMBERS, NUMBERS, TEXTS, BODIES)
@settings(max_examples=examples(300))
def test_requests_are_those_of_the_python_code(
    module: ModuleType, pieces: list[bytes], number: int, other: int, text: str, body: bytes
) -> None:
    compiled, plain = (each(tuple(pieces)) for each in (module.SendTemplate, PlainTemplate))
    values = (number, other, number, text, other, number, body)
    assert compiled.encode(*values) == plain.encode(*values)
    assert module.fault_count() == 0


@given(st.integers(0, 1 << 40), TAGS, NUMBERS, NUMBERS, BODIES)
@settings(max_examples=examples(300))
def test_plain_requests_are_those_of_the_python_code(
    module: ModuleType, number: int, tags: str, born: int, opaque: int, body: bytes
) -> None:
    pieces = tuple(b"%d" % piece for piece in range(7))
    compiled, plain = (each(pieces) for each in (module.SendTemplate, PlainTemplate))
    values = (HEAD, number, tags, born, opaque, body)
    assert compiled.encode_plain(*values) == plain.encode_plain(*values)
    assert module.fault_count() == 0


def test_a_request_may_be_long(module: ModuleType) -> None:
    pieces = (b"piece",) * 7
    for size in (65_000, 70_000, 4 << 20, 10):
        values = (1, 2, 3, "\x01" * (size // 200), 4, 5, bytes(size))
        assert module.SendTemplate(pieces).encode(*values) == PlainTemplate(pieces).encode(*values)
    with pytest.raises(ValueError, match="6 pieces"):
        module.SendTemplate(pieces[:6])


@given(st.lists(st.tuples(BODIES, st.sampled_from(["", "a", "Tag-B"]), st.integers(0, 1 << 40))))
@settings(max_examples=examples(200))
def test_batches_are_those_of_the_python_code(
    module: ModuleType, messages: list[tuple[bytes, str, int]]
) -> None:
    bodies = [body for body, _, _ in messages]
    tags = [tag for _, tag, _ in messages]
    numbers = [number for _, _, number in messages]
    compiled = module.plain_batch(bodies, tags, HEAD, numbers)
    assert compiled == encode_plain_batch(bodies, tags, HEAD, numbers)
    assert module.fault_count() == 0


def test_lists_of_different_lengths_are_refused(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="1 bodies, 0 tags and 1 numbers"):
        module.plain_batch([b"x"], [], HEAD, [1])
    with pytest.raises(ValueError, match="properties of 39994 bytes"):
        module.plain_batch([b"x"], ["x" * 39_937], HEAD, [1])


def answer(opaque: int, fields: dict[str, str] = ANSWER, **others: Any) -> bytes:
    return RemotingCommand(0, opaque=opaque, ext_fields=fields, flag=1, **others).encode()


def test_plain_answers_are_read(module: ModuleType) -> None:
    some = {name: ANSWER[name] for name in ("queueOffset", "msgId", "queueId")}
    java = (
        b'{"code":0,"extFields":{"queueId":"3","TRACE_ON":"false","MSG_REGION":"r","msgId":"A,B",'
        b'"queueOffset":"7"},"flag":1,"language":"JAVA","opaque":9,'
        b'"serializeTypeCurrentRPC":"JSON","version":399}'
    )
    frames = [
        answer(7),
        answer(8, some),
        (len(java) + 4).to_bytes(4, "big") + len(java).to_bytes(4, "big") + java,
    ]
    chunk = b"".join(frames)
    expected = [
        (7, SendAnswer(ANSWER["msgId"], 3, 123456, "DefaultRegion", True)),
        (8, SendAnswer(ANSWER["msgId"], 3, 123456, "", True)),
        (9, SendAnswer("A,B", 3, 7, "r", False)),
    ]
    sends = dict.fromkeys((7, 8, 9))
    for size in range(len(chunk) + 1):
        complete = [size >= len(b"".join(frames[:count])) for count in (1, 2, 3)].count(True)
        answers, end = module.read_answers(chunk[:size], sends, MAX_FRAME, SendAnswer)
        assert (answers, end) == (expected[:complete], len(b"".join(frames[:complete])))
    assert all(type(each) is SendAnswer for _, each in answers)
    assert module.fault_count() == 0


@pytest.mark.parametrize(
    "frame",
    [
        answer(8),
        answer(7, remark="text"),
        answer(7, body=b"body"),
        answer(7, {**ANSWER, "transactionId": "x"}),
        answer(7, {**ANSWER, "queueId": "x"}),
        answer(7, {**ANSWER, "msgId": "\u00e9"}),
        answer(7, {"msgId": "x"}),
        RemotingCommand(0, opaque=7, ext_fields=ANSWER).encode(),
        RemotingCommand(1, opaque=7, ext_fields=ANSWER, flag=1).encode(),
    ],
)
def test_other_frames_are_left_to_python(module: ModuleType, frame: bytes) -> None:
    first = answer(7)
    for chunk, end in ((frame, 0), (first + frame, len(first))):
        answers, taken = module.read_answers(chunk, {7: None}, MAX_FRAME, SendAnswer)
        assert (len(answers), taken) == (bool(end), end)
    assert module.read_answers(first, {7: None}, len(first) - 1, SendAnswer) == ([], 0)


@pytest.mark.parametrize("seed", range(2))
def test_answers_are_those_of_the_python_code(module: ModuleType, seed: int) -> None:
    """A damaged frame is left to Python, or both read the same values."""
    chance = random.Random(seed)
    sends = dict.fromkeys(range(1000))
    pieces = [
        b'"',
        b"\\",
        b",",
        b"{",
        b"}",
        b":",
        b" ",
        b"0",
        b"-1",
        b'"queueId":"4",',
        b"null",
        b"\xff",
    ]
    read = 0
    for number in range(examples(60_000)):
        header = bytearray(answer(chance.randrange(1000))[8:])
        for _ in range(chance.randrange(3)):
            place = chance.randrange(len(header))
            end = place + chance.randrange(3)
            header[place:end] = chance.choice((*pieces, bytes((chance.randrange(256),))))
        size = len(header)
        chunk = (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + bytes(header)
        answers, taken = module.read_answers(chunk, sends, MAX_FRAME, SendAnswer)
        if not taken:
            continue
        read += 1
        frames, _, error = split_frames(chunk)
        assert error is None, (seed, number, chunk)
        fields, ((opaque, found),) = frames[0][1], answers
        values = fields["extFields"]
        assert (fields["code"], fields["flag"] & 1, fields["opaque"]) == (0, 1, opaque)
        assert found == SendAnswer(
            values["msgId"],
            int(values["queueId"]),
            int(values["queueOffset"]),
            values.get("MSG_REGION", ""),
            values.get("TRACE_ON") != "false",
        ), (seed, number, chunk)
        assert "transactionId" not in values
        assert fields.get("remark") is None
        assert orjson.loads(bytes(header)) == fields
    assert read > 1000
    assert module.fault_count() == 0


@given(st.lists(st.sampled_from(["A", "BC", "\u00e9", ""])), st.integers(0, 4), st.integers(0, 9))
def test_results_are_those_of_the_python_code(
    module: ModuleType, ids: list[str], count: int, queue_id: int
) -> None:
    keys = [f"key {number}" for number in range(count)]
    outgoing = Outgoing.batch("t", (), keys, ())
    found = SendAnswer(",".join(ids), queue_id, 5, "r", trace_on=False)
    compiled = module.send_results(found, keys, QUEUE, SendStatus.SEND_OK, SendResult)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "_compiled", None)
        plain = outgoing.results_of(found, QUEUE)
    if compiled is not None:
        assert [each._replace(queue=QUEUE) for each in plain] == compiled
    else:
        assert len(",".join(ids).split(",")) != count or not ",".join(ids).isascii()
    assert module.fault_count() == 0
