"""Records decoded by the kernel are those of the Python code, whatever the bytes."""

from __future__ import annotations

import itertools
import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.client import received
from pyromq.client.received import PlainRecord, decode_messages
from pyromq.protocol.message.record import HEAD_SIZE_V4, SYS_FLAG_AT, RecordError, head_size
from pyromq.protocol.message.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from pyromq.protocol.wire.bodies import MessageQueue
from tests import kernel_builds
from tests.support.examples import examples
from tests.support.random_logs import damage, random_log

HEAD_FIELDS = [
    *("flag", "physical_offset", "sys_flag", "born_timestamp", "store_timestamp"),
    *("reconsume_times", "prepared_transaction_offset", "_born_host", "_store_host"),
]
FIELDS = [*HEAD_FIELDS, "topic", "queue", "queue_offset", "body", "body_size", "_all_properties"]


@pytest.fixture(
    scope="module", params=[kernel_builds.FAST, kernel_builds.CHECKED], ids=lambda build: build.name
)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return kernel_builds.load(request.param, "received")


def values_of(record: Any) -> dict[str, object]:
    return {name: getattr(record, name) for name in FIELDS}


@pytest.mark.parametrize("seed", range(2))
def test_records_are_those_of_the_python_code(
    module: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "_compiled", None)
    chance = random.Random(seed)
    decoded = 0
    for number in range(examples(1500)):
        data = random_log(chance, chance.choice((1, 3, 20)))
        if number % 3:
            data = damage(chance, data)
        queue = MessageQueue(chance.choice(topics_of(data)), "b", 1)
        topic = queue.topic.encode()
        # Keep the records of one topic only, as in a response; damage may leave others in it.
        data = b"".join(one_topic(data, topic))
        found = module.decode(
            data, queue, queue.topic, bytes((len(topic) & 0xFF,)) + topic, module.Record
        )
        if found is None:
            continue  # left to the Python code
        decoded += bool(found)
        plain = decode_messages(data, queue)
        assert list(map(values_of, found)) == list(map(values_of, plain)), (seed, number)
        sizes = [message.body_size for message in plain]
        consecutive = all(
            after.queue_offset == before.queue_offset + 1
            for before, after in itertools.pairwise(plain)
        )
        assert module.consecutive_size(found) == (sum(sizes) if consecutive else None)
    assert decoded > 50
    assert module.fault_count() == 0


def topics_of(data: bytes) -> list[str]:
    try:
        messages = decode_messages(data, MessageQueue("?", "b", 1))
    except RecordError:
        return ["t"]
    return [message.topic for message in messages if not message.sys_flag & COMPRESSED] or ["t"]


def one_topic(data: bytes, topic: bytes) -> list[bytes]:
    try:
        messages = decode_messages(data, MessageQueue("?", "b", 1))
    except RecordError:
        return [data]
    kept, position = [], 0
    for message in messages:
        size = int.from_bytes(data[position : position + 4], "big")
        if message.topic.encode() == topic:
            kept.append(data[position : position + size])
        position += size
    return kept


@given(st.binary(max_size=200))
def test_bytes_that_are_not_records_are_left_to_python(module: ModuleType, data: bytes) -> None:
    assert module.decode(data, None, "t", b"\x01t", module.Record) in ([], None)
    assert module.fault_count() == 0


@given(
    st.binary(min_size=HEAD_SIZE_V4 + 24, max_size=HEAD_SIZE_V4 + 24),
    st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]),
)
@settings(max_examples=examples(200))
def test_the_fields_of_a_head_are_those_of_the_python_class(
    module: ModuleType, noise: bytes, host_bits: int
) -> None:
    head = bytearray(noise)
    head[SYS_FLAG_AT : SYS_FLAG_AT + 4] = host_bits.to_bytes(4, "big")
    records = PlainRecord(), module.Record()
    for record in records:
        record._head = bytes(head[: head_size(host_bits)])
    for _ in range(3):
        plain, fast = ({name: getattr(each, name) for name in HEAD_FIELDS} for each in records)
        assert plain == fast
        for record in records:
            record.count_failure()
        assert records[0].reconsume_times == plain["reconsume_times"] + 1


def test_a_record_without_content(module: ModuleType) -> None:
    record = module.Record()
    assert record.flag == 0
    for name in ("body", "_unreadable"):
        with pytest.raises(AttributeError, match=name):
            getattr(record, name)


@pytest.mark.parametrize("size", [0, 39, HEAD_SIZE_V4 - 1, HEAD_SIZE_V4 + 1, HEAD_SIZE_V4 + 12])
def test_a_head_of_the_wrong_size_is_refused(module: ModuleType, size: int) -> None:
    with pytest.raises(ValueError, match=f"a head of {size} bytes"):
        module.Record()._head = bytes(size)
