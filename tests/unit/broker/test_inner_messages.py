from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.inner_messages import InnerMessage
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
)
from pyromq.protocol.names import (
    SCHEDULE_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.results import PutError, PutStatus
from tests.unit.broker.assembled import AssembledBroker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    yield assembled
    await assembled.close()


async def test_a_message_is_stored_with_all_its_values(broker: AssembledBroker) -> None:
    message = InnerMessage(
        "T",
        3,
        b"body",
        {"TAGS": "t", "KEYS": "k"},
        flag=7,
        sys_flag=COMPRESSED | STORE_HOST_V6 | TRANSACTION_COMMIT,
        born_timestamp=1234,
        born_host=encode_host("10.1.2.3", 99),
        reconsume_times=5,
        prepared_offset=4711,
    )

    stored = broker.writer.put(message)
    assert broker.store.read_record(0) is None, "nobody sees it before it is sealed"
    assert await broker.writer.stored() is AckOutcome.STORED

    (record,) = broker.records()
    assert (stored.queue.topic, stored.offset, stored.physical) == ("T", 0, 0)
    assert (record.topic, record.queue_id, record.body) == ("T", 3, b"body")
    assert record.properties == {"TAGS": "t", "KEYS": "k"}
    assert (record.flag, record.sys_flag) == (7, COMPRESSED | TRANSACTION_COMMIT)
    assert (record.born_timestamp, record.born_host) == (1234, ("10.1.2.3", 99))
    assert (record.reconsume_times, record.prepared_transaction_offset) == (5, 4711)
    assert broker.entries() == [("T", 3, 0, java_hash("t"))]


async def test_a_host_with_an_ipv6_address_is_kept(broker: AssembledBroker) -> None:
    broker.writer.put(InnerMessage("T", 0, b"", born_host=encode_host("::1", 7)))
    await broker.writer.stored()

    assert broker.records()[0].born_host == ("::1", 7)
    assert broker.records()[0].sys_flag == BORN_HOST_V6


async def test_a_delay_counts_from_the_store_timestamp_in_the_record(
    broker: AssembledBroker,
) -> None:
    message = InnerMessage("T", 2, b"", {"DELAY": "4"})

    broker.writer.put(InnerMessage("other", 0, b""))
    stored = broker.writer.put(message)
    await broker.writer.stored()

    record = broker.records()[-1]
    assert (stored.queue.topic, stored.queue.queue_id) == (SCHEDULE_TOPIC, 3)
    assert record.properties == {"DELAY": "4", "REAL_TOPIC": "T", "REAL_QID": "2"}
    assert message.properties == {"DELAY": "4"}, "the caller's own are left alone"
    assert (SCHEDULE_TOPIC, 3, 0, record.store_timestamp + 30_000) in broker.entries()


async def test_a_prepared_message_is_not_delayed(broker: AssembledBroker) -> None:
    stored = broker.writer.put(
        InnerMessage("T", 2, b"", {"DELAY": "4"}, sys_flag=TRANSACTION_PREPARED)
    )
    assert stored.queue.topic == "T"


@pytest.mark.parametrize("topic", [TRANSACTION_HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC])
async def test_a_delay_does_not_begin_before_the_commit(
    broker: AssembledBroker, topic: str
) -> None:
    message = InnerMessage(topic, 0, b"", {"DELAY": "4", "REAL_TOPIC": "T"})
    assert broker.writer.put(message).queue.topic == topic
    await broker.writer.stored()
    assert broker.records()[-1].properties == message.properties


@pytest.mark.parametrize("level", ["", "0", "-3"])
async def test_a_delay_of_nothing_is_none(broker: AssembledBroker, level: str) -> None:
    properties = {"DELAY": level} if level else {}
    assert broker.writer.put(InnerMessage("T", 0, b"", properties)).queue.topic == "T"


@pytest.mark.parametrize("level", ["x", " 3", "1_0", "9" * 5000, "2147483648"])
async def test_a_delay_that_is_no_integer_is_refused(broker: AssembledBroker, level: str) -> None:
    with pytest.raises(RequestError, match="DELAY: ") as refused:
        broker.writer.put(InnerMessage("T", 0, b"", {"DELAY": level}))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert len(refused.value.remark) < 200


async def test_what_the_store_refuses_is_raised_and_leaves_nothing(broker: AssembledBroker) -> None:
    with pytest.raises(PutError) as refused:
        broker.writer.put(InnerMessage("T", 0, b"", {"P": "x" * 40_000}))
    await broker.writer.stored()

    assert refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert broker.records() == []
