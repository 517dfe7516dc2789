from __future__ import annotations

from dataclasses import replace

import pytest

from pyromq.protocol.message.trace import (
    ConsumeBegun,
    ConsumeEnded,
    ConsumeReturn,
    Published,
    TracedType,
    TraceRecord,
    TransactionEnded,
    decode_trace,
)

PUBLISHED = Published(
    time=1700000000000,
    region="DefaultRegion",
    group="g",
    topic="t",
    msg_id="AC110002",
    tags="a",
    keys="k1 k2",
    store_host="127.0.0.1:10911",
    body_length=5,
    cost=3,
    type=TracedType.HALF,
    offset_msg_id="7F000001",
    success=True,
)
BEGUN = ConsumeBegun(1700000000001, "DefaultRegion", "c", "R1", "AC110002", 2, "k1")
ENDED = ConsumeEnded("R1", "AC110002", 7, False, "k1", ConsumeReturn.FAILED, 1700000000009, "c")
TRANSACTION = TransactionEnded(
    time=1700000000002,
    region="DefaultRegion",
    group="g",
    topic="t",
    msg_id="AC110002",
    tags="",
    keys="",
    store_host="127.0.0.1:10911",
    type=TracedType.COMMIT,
    transaction_id="AC110002",
    state="COMMIT_MESSAGE",
    from_check=True,
)
ALL: list[TraceRecord] = [PUBLISHED, BEGUN, ENDED, TRANSACTION]


def line(text: str) -> str:
    return text.replace("|", "\x01") + "\x02"


def test_records_equal_those_of_java() -> None:
    assert PUBLISHED.encode() == line(
        "Pub|1700000000000|DefaultRegion|g|t|AC110002|a|k1 k2|127.0.0.1:10911|5|3|1|7F000001|true"
    )
    assert BEGUN.encode() == line("SubBefore|1700000000001|DefaultRegion|c|R1|AC110002|2|k1")
    assert ENDED.encode() == line("SubAfter|R1|AC110002|7|false|k1|4|1700000000009|c")
    assert TRANSACTION.encode() == line(
        "EndTransaction|1700000000002|DefaultRegion|g|t|AC110002|null|null|127.0.0.1:10911|2|"
        "AC110002|COMMIT_MESSAGE|true"
    )


def test_round_trip_of_files() -> None:
    text = "".join(record.encode() for record in ALL)
    assert decode_trace(text.encode()) == ALL


def test_records_of_older_versions() -> None:
    old = PUBLISHED.encode().replace("7F000001\x01", "")
    assert decode_trace(old) == [replace(PUBLISHED, offset_msg_id="")]
    with_client = PUBLISHED.encode()[:-1] + "\x0110.0.0.1\x02"
    assert decode_trace(with_client) == [replace(PUBLISHED, client_host="10.0.0.1")]
    short = line("SubAfter|R1|AC110002|7|true|k1")
    assert decode_trace(short) == [ConsumeEnded("R1", "AC110002", 7, True, "k1")]


@pytest.mark.parametrize(
    "damage",
    [
        "Pub\x01soon\x02",
        "Pub\x02",
        "SubBefore\x011\x02",
        "Other\x011\x012\x02",
        "\x02\x02\x01\x02",
        ENDED.encode().replace("\x014\x01", "\x0199\x01"),
    ],
)
def test_an_invalid_record_does_not_affect_the_others(damage: str) -> None:
    assert decode_trace(BEGUN.encode() + damage + TRANSACTION.encode()) == [BEGUN, TRANSACTION]
    assert decode_trace(b"\xff\xfe") == []


def test_separators_in_values_do_not_shift_fields() -> None:
    record = replace(PUBLISHED, keys="a\x01b\x02c")
    assert decode_trace(record.encode()) == [replace(PUBLISHED, keys="a b c")]
