from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from pyromq.client.message import Message
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import INNER_HEAD, INNER_HEAD_SIZE
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.spark.sink import row_encoder
from pyromq.spark.sink.row_encoder import Limits, Request, RowEncoder, RowError
from pyromq.spark.sink.unique_rows import UniqueRows

PROPERTIES = pa.map_(pa.string(), pa.string())
TYPES = {
    "properties": PROPERTIES,
    "body": pa.binary(),
    "queueId": pa.int32(),
    "delayLevel": pa.int32(),
    "flag": pa.int32(),
}
LIMITS = Limits(1 << 20, 4 << 20)


class Inner(NamedTuple):
    body: bytes
    text: str
    flag: int

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.text)


def queues_of(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker in ("a", "b") for number in range(3)]


def encoder(limits: Limits = LIMITS, default_topic: str | None = "T") -> RowEncoder:
    return RowEncoder(
        limits,
        UniqueRows.of_task("test"),
        queues_of,
        default_topic=default_topic,
        place=" of partition 5",
    )


def batch_of(**columns: Sequence[Any] | pa.Array) -> pa.RecordBatch:
    arrays = [
        values
        if isinstance(values, pa.Array)
        else pa.array(values, TYPES.get(name, None if any(values) else pa.string()))
        for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def encode(**columns: Sequence[Any] | pa.Array) -> list[Request]:
    return list(encoder().encode(batch_of(**columns)))


def inner_messages(request: Request) -> list[Inner]:
    if request.properties is not None:
        return [Inner(request.body, request.properties, request.flag)]
    found = []
    position = 0
    while position < len(request.body):
        size, flag, body_length = INNER_HEAD.unpack_from(request.body, position)
        body_end = position + INNER_HEAD_SIZE + body_length
        length = int.from_bytes(request.body[body_end : body_end + 2], "big")
        end = body_end + 2 + length
        assert end == position + size
        found.append(
            Inner(
                request.body[position + INNER_HEAD_SIZE : body_end],
                request.body[body_end + 2 : end].decode(),
                flag,
            )
        )
        position = end
    assert len(found) == request.rows
    return found


def everything(requests: Sequence[Request]) -> list[Inner]:
    return [inner for request in requests for inner in inner_messages(request)]


def test_bodies_alone() -> None:
    (request,) = encode(body=[b"one", b"two", b"\x00\xff"])
    assert (request.topic, request.queue, request.rows) == ("T", None, 3)
    assert (request.first_row, request.last_row) == (0, 2)
    found = inner_messages(request)
    assert [inner.body for inner in found] == [b"one", b"two", b"\x00\xff"]
    assert [set(inner.properties) for inner in found] == [{"UNIQ_KEY"}] * 3
    assert len({inner.properties["UNIQ_KEY"] for inner in found}) == 3


def test_text_is_a_body_too() -> None:
    (request,) = encode(body=pa.array(["größer", "x"]))
    assert [inner.body for inner in inner_messages(request)] == ["größer".encode(), b"x"]


def test_columns_become_properties_as_a_producer_writes_them() -> None:
    (request,) = encode(
        body=[b"x", b"y"],
        keys=["k1 k2", None],
        tags=["TagA", ""],
        properties=[[("a", "1"), ("b", "ü")], None],
        flag=[7, None],
    )
    full, bare = inner_messages(request)
    message = Message("T", b"x", "TagA", "k1 k2", {"a": "1", "b": "ü"})
    expected = message.wire_properties(full.properties["UNIQ_KEY"])
    assert full.text == expected.replace("\x02WAIT\x01true", "")
    assert full.text.endswith("\x02TAGS\x01TagA")
    assert full.flag == 7
    assert (set(bare.properties), bare.flag) == ({"UNIQ_KEY"}, 0)


def test_several_keys() -> None:
    (inner,) = everything(encode(body=[b"x"], keys=pa.array([["k1", "k2"]])))
    assert inner.properties["KEYS"] == "k1 k2"


def test_raw_properties_are_copied_without_reserved_ones() -> None:
    raw = "UNIQ_KEY\x01old\x02a\x01b\x02CLUSTER\x01c\x02WAIT\x01true\x02KEYS\x01k\x02TAGS\x01t"
    with_both, without = everything(encode(body=[b"x", b"y"], properties=pa.array([raw, ""])))
    assert with_both.properties.keys() == {"a", "KEYS", "TAGS", "UNIQ_KEY"}
    assert with_both.properties["UNIQ_KEY"] != "old"
    assert without.properties.keys() == {"UNIQ_KEY"}
    (inner,) = everything(
        encode(body=[b"x"], properties=pa.array([raw]), tags=pa.array([None], pa.string()))
    )
    assert "TAGS" not in inner.properties, "the column rules, even where it is null"


def test_raw_properties_cannot_set_a_delay_or_a_transaction() -> None:
    raw = pa.array(["DELAY\x013\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02REAL_TOPIC\x01R"])
    (request,) = encode(body=[b"x"], properties=raw)
    assert [set(inner.properties) for inner in inner_messages(request)] == [{"UNIQ_KEY"}]


def test_empty_values_of_a_map_are_dropped() -> None:
    column = pa.array(
        [[("a", None), ("b", "1"), ("c", "")], [], None, [("d", "2"), ("e", None)]], PROPERTIES
    )
    found = everything(encode(body=[b"x"] * 4, properties=column))
    assert [
        {name: value for name, value in inner.properties.items() if name != "UNIQ_KEY"}
        for inner in found
    ] == [{"b": "1"}, {}, {}, {"d": "2"}]


def test_a_slice_is_encoded_as_itself() -> None:
    batch = batch_of(
        body=[b"0", b"1", b"2", b"3"],
        properties=[[("n", str(number))] for number in range(4)],
        orderingKey=["a", "b", "c", "d"],
    )
    found = everything(list(encoder().encode(batch.slice(1, 2))))
    assert sorted((inner.body, inner.properties["n"]) for inner in found) == [
        (b"1", "1"),
        (b"2", "2"),
    ]


def test_a_unique_key_column() -> None:
    one, other = everything(encode(body=[b"x", b"y"], uniqueKey=["MINE", None]))
    assert one.properties["UNIQ_KEY"] == "MINE"
    assert len(other.properties["UNIQ_KEY"]) == 32


def test_unique_keys_continue_from_batch_to_batch() -> None:
    whole = everything(encode(body=[b"x"] * 4))
    parts = encoder()
    halves = [
        *parts.encode(batch_of(body=[b"x"] * 3)),
        *parts.encode(batch_of(body=[])),
        *parts.encode(batch_of(body=[b"x"])),
    ]
    assert [inner.text for inner in everything(halves)] == [inner.text for inner in whole]
    assert (halves[1].first_row, halves[1].last_row) == (3, 3)


def test_each_topic_has_its_own_requests() -> None:
    requests = encode(body=[b"1", b"2", b"3", b"4"], topic=["A", "B", None, "A"])
    found = {request.topic: [i.body for i in inner_messages(request)] for request in requests}
    assert found == {"A": [b"1", b"4"], "B": [b"2"], "T": [b"3"]}
    assert {r.topic: (r.first_row, r.last_row) for r in requests}["A"] == (0, 3)


def test_an_ordering_key_selects_the_same_queue_as_in_java() -> None:
    keys = [f"key-{number}" for number in range(50)] + ["ключ", "x" * 100, "", None]
    requests = encode(body=[b"%d" % row for row in range(len(keys))], orderingKey=keys)
    queue_of = {
        int(inner.body): request.queue for request in requests for inner in inner_messages(request)
    }
    queues = queues_of("T")
    for row, key in enumerate(keys):
        expected = queues[abs(java_hash(key)) % len(queues)] if key else None
        assert queue_of[row] == expected
    (shown,) = {i.properties["__SHARDINGKEY"] for i in everything(requests) if i.body == b"0"}
    assert shown == "key-0"
    for request in requests:
        rows = [int(inner.body) for inner in inner_messages(request)]
        assert rows == sorted(rows), "rows of a queue stay in order"


def test_a_queue_id_column() -> None:
    requests = encode(
        body=[b"0", b"1", b"2", b"3"],
        queueId=[2, 1, None, 1],
        brokerName=[None, "b", "b", None],
    )
    found = {inner.body: request.queue for request in requests for inner in inner_messages(request)}
    assert found == {
        b"0": MessageQueue("T", "a", 2),
        b"1": MessageQueue("T", "b", 1),
        b"2": None,
        b"3": MessageQueue("T", "a", 1),
    }


def test_a_queue_id_overrides_an_ordering_key() -> None:
    (request,) = encode(body=[b"x"], queueId=[0], orderingKey=["key-1"])
    assert request.queue == MessageQueue("T", "a", 0)


def test_delayed_rows_are_sent_singly_and_the_others_keep_their_order() -> None:
    requests = encode(
        body=[b"0", b"1", b"2", b"3"], delayLevel=[0, None, 3, 0], orderingKey=["k"] * 4
    )
    assert [(request.rows, request.properties is None) for request in requests] == [
        (2, True),
        (1, False),
        (1, True),
    ]
    alone = requests[1]
    assert (alone.body, alone.first_row, alone.last_row) == (b"2", 2, 2)
    properties = decode_properties(alone.properties or "")
    assert (properties["DELAY"], properties["WAIT"]) == ("3", "true")
    assert len({request.queue for request in requests}) == 1


def test_rows_for_a_retry_topic_are_sent_singly() -> None:
    requests = encode(body=[b"0", b"1"], topic=["%RETRY%g", "%RETRY%g"])
    assert [request.properties is None for request in requests] == [False, False]


def test_requests_stay_below_the_limit() -> None:
    bodies = [bytes([65 + row % 26]) * (row % 97 + 1) for row in range(1000)]
    limits = Limits(2000, 4 << 20)
    requests = list(encoder(limits).encode(batch_of(body=bodies)))
    assert all(len(request.body) <= 2000 for request in requests)
    assert len(requests) < 80
    assert [inner.body for inner in everything(requests)] == bodies
    assert [r.first_row for r in requests[1:]] == [r.last_row + 1 for r in requests[:-1]]


def test_rows_larger_than_a_request_are_sent_singly() -> None:
    limits = Limits(2000, 4000)
    requests = list(encoder(limits).encode(batch_of(body=[b"a", b"b" * 4000, b"c"])))
    assert [(len(r.body) > 2000, r.properties is None) for r in requests] == [
        (False, True),
        (True, False),
        (False, True),
    ]


def test_a_large_arrow_batch_is_encoded_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_encoder, "_MAX_BATCH_BYTES", 1000)
    bodies = [b"%d" % row * 100 for row in range(100)]
    requests = encode(body=bodies)
    assert len(requests) > 10
    assert [inner.body for inner in everything(requests)] == bodies


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"body": [b"x", None]}, "row 1 of partition 5 has no body"),
        ({"body": [None, None]}, "row 0 of partition 5 has no body"),
        ({"body": [b"x", b""]}, "row 1 of partition 5 has an empty body"),
        ({"body": [b"x" * 5000]}, "body of 5000 bytes, above the limit of 4000"),
        ({"body": [b"x"], "topic": ["a b"]}, "row 0 .* topic 'a b' is not a legal name"),
        ({"body": [b"x"] * 2, "tags": ["t", "a\x01b"]}, "row 1 .* tags must not contain"),
        ({"body": [b"x"] * 2, "keys": ["t", "a\x02b"]}, "row 1 .* keys must not contain"),
        ({"body": [b"x"] * 2, "uniqueKey": ["t", "a\x02"]}, "row 1 .* uniqueKey must not contain"),
        (
            {"body": [b"x"] * 3, "properties": [[("a", "b")], [], [("a", "b"), ("c", "\x01")]]},
            "row 2 .* property 'c'",
        ),
        ({"body": [b"x"], "properties": [[("", "b")]]}, "row 0 .* property ''"),
        ({"body": [b"x"], "properties": [[("a", "b" * 40_000)]]}, "properties of .* 32767"),
        ({"body": [b"x"], "queueId": [9]}, "row 0 .* queue 9, which is not a writable"),
        (
            {"body": [b"x"], "queueId": [1], "brokerName": ["z"]},
            "queue 1 of broker 'z', which is not a writable",
        ),
    ],
)
def test_rows_that_cannot_be_messages(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(RowError, match=problem):
        list(encoder(Limits(2000, 4000)).encode(batch_of(**columns)))


def test_rows_without_a_topic() -> None:
    nameless = encoder(default_topic=None)
    with pytest.raises(RowError, match="row 1 of partition 5 has no topic"):
        list(nameless.encode(batch_of(body=[b"x", b"y"], topic=["A", None])))
    with pytest.raises(RowError, match="row 0 of partition 5 has no topic"):
        list(nameless.encode(batch_of(body=[b"x"], topic=pa.array([None], pa.string()))))


def text_of(content: bytes) -> pa.Array:
    """Cast bytes to text as Spark does, without validation."""
    buffers = [None, pa.py_buffer(np.array([0, len(content)], np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.string(), 1, buffers)


@pytest.mark.parametrize("delay", [0, 3])
@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("keys", "KEYS"),
        ("tags", "TAGS"),
        ("orderingKey", "__SHARDINGKEY"),
        ("uniqueKey", "UNIQ_KEY"),
    ],
)
def test_invalid_utf_8_is_repaired(column: str, name: str, delay: int) -> None:
    columns = {"body": [b"\xff"], column: text_of(b"a\xff\xfeb"), "delayLevel": [delay]}
    (message,) = inner_messages(encode(**columns)[0])
    assert message.body == b"\xff"
    assert message.properties[name] == "a\ufffd\ufffdb"


def test_invalid_utf_8_hides_no_reserved_property() -> None:
    raw = b"TRAN_MSG\x01\xfftrue\x02own\x01\xff\x02PGROUP\x01g\xff"
    (message,) = inner_messages(encode(body=[b"x"], properties=text_of(raw))[0])
    assert message.properties.keys() == {"own", "UNIQ_KEY"}
    assert message.properties["own"] == "\ufffd"
    entries = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), ["own"], text_of(b"\xff"))
    (message,) = inner_messages(encode(body=[b"x"], properties=entries)[0])
    assert message.properties["own"] == "\ufffd"


def test_a_topic_with_invalid_utf_8_is_rejected() -> None:
    with pytest.raises(RowError, match="row 0 of partition 5 cannot be sent"):
        encode(body=[b"x"], topic=text_of(b"a\xff"))
