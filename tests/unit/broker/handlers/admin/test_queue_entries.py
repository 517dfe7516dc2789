from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.wire.bodies_admin import QueryConsumeQueueResponseBody
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from tests.support.patience import until
from tests.support.requests import send_request
from tests.unit.broker.handlers.admin.administered import ADMIN, CONFIG, Administered, asking

FILTERING = dataclasses.replace(
    CONFIG, enable_property_filter=True, enable_calc_filter_bit_map=True
)


async def ask(broker: Administered, **fields: str) -> RemotingCommand:
    return await broker.entries_admin.query_consume_queue(
        ADMIN, asking(**{"topic": "T", "queueId": "0", "index": "0", "count": "10", **fields})
    )


async def test_entries(tmp_path: Path) -> None:
    broker = Administered(tmp_path)
    broker.put(b"1", b"2", b"3", tags="x")
    body = QueryConsumeQueueResponseBody.decode((await ask(broker, index="1")).body)
    assert (body.min_queue_index, body.max_queue_index) == (0, 3)
    records = broker.records()[1:]
    assert [(each.physic_offset, each.physic_size) for each in body.queue_data] == [
        (record.physical_offset, record.size) for record in records
    ]
    assert {each.tags_code for each in body.queue_data} == {java_hash("x")}
    assert (body.subscription_data, body.filter_data) == (None, None)
    body = QueryConsumeQueueResponseBody.decode((await ask(broker, count="2")).body)
    assert len(body.queue_data) == 2
    await broker.close()


async def test_unknown_queues_and_entries(tmp_path: Path) -> None:
    broker = Administered(tmp_path)
    broker.put(b"1")
    with pytest.raises(RequestError, match="3@T is not exist!") as refused:
        await ask(broker, queueId="3")
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    for index in ("-1", "1", "99"):
        answer = await ask(broker, index=index)
        assert answer.remark == f"Index {index} of 0@T is not exist!"
        assert answer.body == b""
    body = QueryConsumeQueueResponseBody.decode((await ask(broker, consumerGroup="g")).body)
    assert body.filter_data == "g@T is not online!"
    await broker.close()


async def test_the_filter_of_a_group(tmp_path: Path) -> None:
    broker = Administered(tmp_path, FILTERING, enable_consume_queue_ext=True)
    broker.join("one", sub_string="a > 5", expression_type="SQL92")
    found = broker.filters.find("T", "g")
    assert found is not None
    await until(lambda: broker.store.chunk_time() > found.born_time)
    for value in ("4", "6"):
        broker.fast.ask(send_request(queueId="0", properties=f"a\x01{value}\x02TAGS\x01x"))
    body = QueryConsumeQueueResponseBody.decode((await ask(broker, consumerGroup="g")).body)
    assert body.subscription_data is not None
    assert body.subscription_data.sub_string == "a > 5"
    assert json.loads(body.filter_data or "")["expression"] == "a > 5"
    unwanted, wanted = body.queue_data
    assert (unwanted.eval, wanted.eval) == (False, True)
    unit = json.loads(wanted.extend_data_json or "")
    assert unit["tagsCode"] == java_hash("x")
    assert unit["msgStoreTime"] == broker.records()[1].store_timestamp
    assert wanted.bit_map is not None
    assert wanted.bit_map.count("1") == len(set(found.bits.positions))
    assert len(wanted.bit_map.replace("\n", "")) == found.bits.bit_count
    await broker.close()


@pytest.mark.parametrize(
    ("subscription", "wanted"),
    [
        ({"sub_string": "*"}, True),
        ({"sub_string": "x", "code_set": {java_hash("x")}}, True),
        ({"sub_string": "y", "code_set": {java_hash("y")}}, False),
        ({"sub_string": "y", "code_set": {1}, "class_filter_mode": True}, True),
    ],
)
async def test_tags(tmp_path: Path, subscription: dict[str, Any], wanted: bool) -> None:
    broker = Administered(tmp_path, enable_consume_queue_ext=True)
    broker.join("one", **subscription)
    broker.put(b"1", tags="x")
    body = QueryConsumeQueueResponseBody.decode((await ask(broker, consumerGroup="g")).body)
    (shown,) = body.queue_data
    assert (shown.eval, shown.bit_map) == (wanted, None)
    assert body.filter_data == "null"
    queue = broker.store.find_queue("T", 0)
    assert queue is not None
    assert queue.extension is not None
    queue.extension.delete()
    body = QueryConsumeQueueResponseBody.decode((await ask(broker)).body)
    assert body.queue_data[0].msg == f"Cq extend not exist!addr: {shown.tags_code}"
    await broker.close()
