"""Malformed sends: each stores at most one whole record."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any

import pytest

from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.support.requests import raw_frame, send_fields, send_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.handlers.sends import (
    ALL_FORMS,
    MIB,
    body_for,
    inner_batch,
    warm,
)

# Malformed requests


def header_of(code: RequestCode, **changes: Any) -> dict[str, Any]:
    header = {
        "code": int(code),
        "language": "JAVA",
        "version": 407,
        "opaque": 1,
        "flag": 0,
        "extFields": send_fields(code),
        "serializeTypeCurrentRPC": "JSON",
    }
    for name, value in changes.items():
        if value is ...:
            del header[name]
        else:
            header[name] = value
    return header


@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize(
    "changes",
    [
        {"opaque": "1"},
        {"opaque": None},
        {"opaque": 1.5},
        {"opaque": [1]},
        {"flag": "0"},
        {"flag": None},
        {"flag": 0.0},
        {"flag": 2**40},
        {"version": "x"},
        {"version": 2**31},
        {"extFields": []},
        {"extFields": "x"},
        {"extFields": 1},
        {"language": 12},
        {"remark": {"a": 1}},
    ],
)
async def test_a_frame_with_a_bad_header_is_stored_at_most_once(
    broker: AssembledBroker, code: RequestCode, changes: dict[str, Any]
) -> None:
    """Expect a response or a closed connection, never an exception."""
    warm(broker)

    answers = broker.fast.exchange(raw_frame(header_of(code, **changes), body_for(code)))

    stored = len(broker.records()) - 1
    assert stored <= 1
    assert len(broker.entries()) == stored + 1
    if answers:
        assert (answers[0].code == ResponseCode.SUCCESS) == (stored == 1)
    else:
        assert broker.fast.closed
        assert stored == 0


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_an_opaque_beyond_32_bits_closes_the_connection(
    broker: AssembledBroker, code: RequestCode
) -> None:
    warm(broker)
    for opaque in (2**31, -(2**31) - 1, 2**63):
        client = broker.connect()
        assert client.exchange(raw_frame(header_of(code, opaque=opaque), body_for(code))) == []
        assert client.closed
    assert len(broker.records()) == 1


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_request_without_an_opaque_counts_as_zero(
    broker: AssembledBroker, code: RequestCode
) -> None:
    warm(broker)

    answer = broker.fast.ask(raw_frame(header_of(code, opaque=...), body_for(code)))

    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 0)
    assert len(broker.records()) == 2


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_a_request_without_fields_is_refused(
    broker: AssembledBroker, code: RequestCode
) -> None:
    warm(broker)
    all_fields: tuple[Any, ...] = (..., None, {})
    for fields in all_fields:
        answer = broker.fast.ask(raw_frame(header_of(code, extFields=fields), body_for(code)))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "missing" in (answer.remark or "")
    assert len(broker.records()) == 1


@pytest.mark.parametrize("code", ALL_FORMS)
@pytest.mark.parametrize(
    "name", ["topic", "defaultTopic", "queueId", "sysFlag", "bornTimestamp", "flag"]
)
async def test_a_missing_field_is_named(
    broker: AssembledBroker, code: RequestCode, name: str
) -> None:
    warm(broker)

    missing: dict[str, Any] = {name: None}
    answer = broker.fast.ask(send_request(code, body_for(code), **missing))

    if answer.code != ResponseCode.SUCCESS:
        assert "missing" in (answer.remark or "")
        assert len(broker.records()) == 1
    else:
        # The hot path does not read fields that it does not need.
        assert name in ("defaultTopic", "flag")
        assert name != "flag" or code == RequestCode.SEND_BATCH_MESSAGE


NUMBERS = ("queueId", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes")


#: Each message of a batch has its own flag: the hot path does not read the request's.
FORMS_AND_NUMBERS = [
    (code, name)
    for code in ALL_FORMS
    for name in NUMBERS
    if (code, name) != (RequestCode.SEND_BATCH_MESSAGE, "flag")
]
NO_NUMBERS = (
    "",
    "x",
    " 1",
    "1 ",
    "1_0",
    "0x1",
    "1.0",
    "\u0661",
    "9" * 20,
    "-" + "9" * 20,
    "9" * 5000,
)


@pytest.mark.parametrize(("code", "name"), FORMS_AND_NUMBERS)
async def test_invalid_numbers_are_refused_on_both_paths(
    broker: AssembledBroker, code: RequestCode, name: str
) -> None:
    warm(broker)
    for value in NO_NUMBERS:
        fields: dict[str, Any] = {name: value}
        request = send_request(code, body_for(code), **fields)
        for client in (broker.fast, broker.slow):
            answer = client.ask(request)
            assert answer.code == ResponseCode.SYSTEM_ERROR, value
            assert "field" in (answer.remark or "")
    assert len(broker.records()) == 1


@pytest.mark.parametrize(("code", "name"), FORMS_AND_NUMBERS)
async def test_numbers_out_of_range_are_refused(
    broker: AssembledBroker, code: RequestCode, name: str
) -> None:
    warm(broker)
    bits = 63 if name == "bornTimestamp" else 31
    for value in (2**bits, -(2**bits) - 0x40):
        for client in (broker.fast, broker.slow):
            fields: dict[str, Any] = {name: str(value)}
            answer = client.ask(send_request(code, body_for(code), **fields))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "out of range" in (answer.remark or "")
    assert len(broker.records()) == 1


@pytest.mark.parametrize(("code", "name"), FORMS_AND_NUMBERS)
async def test_numbers_may_be_unquoted(
    broker: AssembledBroker, code: RequestCode, name: str
) -> None:
    """`header_json` promises it; fractions are still not integers."""
    warm(broker)
    wire = dict(zip(send_fields(RequestCode.SEND_MESSAGE), send_fields(code), strict=True))
    for value, expected in ((1, 0), (1.5, ResponseCode.SYSTEM_ERROR)):
        fields: dict[str, Any] = {**send_fields(code), wire[name]: value}
        frame = raw_frame(header_of(code, extFields=fields), body_for(code))
        assert broker.fast.ask(frame).code == expected, value


async def test_the_flag_of_a_batch_may_be_unquoted(
    broker: AssembledBroker,
) -> None:
    warm(broker)
    for code in ALL_FORMS:
        wire = "batch" if code == RequestCode.SEND_MESSAGE else "m"
        fields: dict[str, Any] = {**send_fields(code), wire: True}
        answer = broker.fast.ask(raw_frame(header_of(code, extFields=fields), inner_batch()))
        assert answer.ext_fields["msgId"].count(",") == 2


@pytest.mark.parametrize("name", ["topic", "properties", "reconsumeTimes", "batch"])
@pytest.mark.parametrize("code", ALL_FORMS)
async def test_fields_of_any_type_store_at_most_one_whole_record(
    broker: AssembledBroker, code: RequestCode, name: str
) -> None:
    warm(broker)
    wire = dict(zip(send_fields(RequestCode.SEND_MESSAGE), send_fields(code), strict=True))
    for value in (None, True, 5, [1], {"a": "b"}):
        before = len(broker.records())
        fields: dict[str, Any] = {**send_fields(code), wire[name]: value}
        answer = broker.fast.ask(
            raw_frame(header_of(code, extFields=fields), body_for(RequestCode.SEND_BATCH_MESSAGE))
        )
        assert len(broker.records()) == before + (answer.code == ResponseCode.SUCCESS)


async def test_frames_before_a_bad_one_are_answered(broker: AssembledBroker) -> None:
    """It is stored: without a response the client would send it again."""
    warm(broker)
    bad = raw_frame(header_of(RequestCode.SEND_MESSAGE_V2, opaque="x"), b"body")

    answers = broker.fast.exchange(send_request(opaque=1), send_request(opaque=2), bad)

    assert [answer.opaque for answer in answers] == [1, 2]
    assert broker.fast.closed
    assert len(broker.records()) == 3


async def test_hostile_input_leaves_no_traceback(
    broker: AssembledBroker, caplog: pytest.LogCaptureFixture
) -> None:
    warm(broker)
    batch = inner_batch()[:-5]
    with caplog.at_level(logging.INFO):
        broker.fast.exchange(
            send_request(RequestCode.SEND_BATCH_MESSAGE, batch),
            send_request(RequestCode.SEND_BATCH_MESSAGE, batch[:7]),
            send_request(bornTimestamp="x"),
            send_request(properties="DELAY\x01x"),
        )
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("code", ALL_FORMS)
async def test_long_properties_do_not_fill_the_memory(
    broker: AssembledBroker, code: RequestCode
) -> None:
    """They are refused and not cached."""
    warm(broker)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            properties = f"TAGS\x01{number}" + "x" * 200_000
            answer = broker.fast.ask(send_request(code, body_for(code), properties=properties))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * MIB
