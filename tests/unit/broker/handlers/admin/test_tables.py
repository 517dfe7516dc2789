from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.handlers.admin.tables import TableHandlers
from pyromq.broker.state.deleted_topics import copied_deletions
from pyromq.broker.state.filters import copied_filters
from pyromq.protocol.wire import large_bodies
from pyromq.protocol.wire.bodies import (
    SubscriptionData,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.fakes import FakeConnection

ADMIN = FakeConnection("127.0.0.1:50505")
CODES = [
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_CONSUMER_FILTER,
    RequestCode.GET_ALL_TOPIC_DELETION,
]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    broker = AssembledBroker(tmp_path)
    yield broker
    await broker.close()


async def ask(broker: AssembledBroker, code: RequestCode, **fields: str) -> RemotingCommand:
    request = RemotingCommand(code, opaque=3, ext_fields=fields)
    answer = await TableHandlers(broker.parts).get_all(ADMIN, request)
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 3)
    return answer


async def test_tables_have_the_form_that_java_reads(broker: AssembledBroker) -> None:
    broker.topics.update(TopicConfig("orders", 4, 3))
    broker.groups.find("g")
    broker.offsets.commit("g", "orders", 1, 5)
    broker.tables.delay_offsets.move({1: 5, 2: 7}, 0)

    topics = (await ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)).body
    groups = (await ask(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
    offsets = (await ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)).body
    delays = (await ask(broker, RequestCode.GET_ALL_DELAY_OFFSET)).body

    assert TopicConfigSerializeWrapper.decode(topics) == broker.topics.snapshot()
    assert list(json.loads(topics)) == ["dataVersion", "topicConfigTable"]
    assert json.loads(topics)["topicConfigTable"]["orders"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    assert SubscriptionGroupWrapper.decode(groups) == broker.groups.snapshot()
    assert offsets == b'{"offsetTable":{"orders@g":{1:5}}}'
    assert delays == b'{"offsetTable":{1:5,2:7}}'


async def test_empty_tables_are_objects_too(broker: AssembledBroker) -> None:
    assert (await ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)).body == b'{"offsetTable":{}}'
    assert (await ask(broker, RequestCode.GET_ALL_DELAY_OFFSET)).body == b'{"offsetTable":{}}'


async def test_own_replicas_get_filters_and_deletions(broker: AssembledBroker) -> None:
    sql = SubscriptionData("orders", "a > 5", sub_version=7, expression_type="SQL92")
    broker.filters.register("g", [sql])
    broker.tables.deleted_topics.note("old", broker.store)

    filters = (await ask(broker, RequestCode.GET_ALL_CONSUMER_FILTER)).body
    deletions = (await ask(broker, RequestCode.GET_ALL_TOPIC_DELETION)).body

    assert filters == broker.filters.snapshot().encode()
    assert [(data.consumer_group, data.expression) for data in copied_filters(filters)] == [
        ("g", "a > 5")
    ]
    assert copied_deletions(deletions).keys() == {"old"}


@pytest.mark.parametrize("code", CODES)
async def test_every_table_is_compressed_on_request(
    broker: AssembledBroker, code: RequestCode
) -> None:
    plain = await ask(broker, code)
    small = await ask(broker, code, compression="zlib")
    assert (plain.ext_fields, small.ext_fields) == ({}, {"compression": "zlib"})
    assert large_bodies.decompressed(small.ext_fields, small.body) == plain.body


async def test_a_table_beyond_a_frame_is_refused_but_can_be_copied_compressed(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_bodies, "MAX_BODY", 8000)
    for number in range(100):
        broker.topics.update(TopicConfig(f"topic-{number}", 4, 4))

    with pytest.raises(RequestError, match=r"the table of topics not sent: \d{5} bytes") as caught:
        await ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    small = await ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG, compression="zlib")
    body = large_bodies.decompressed(small.ext_fields, small.body)
    assert TopicConfigSerializeWrapper.decode(body) == broker.topics.snapshot()


async def test_a_table_shows_every_change_before_the_request(broker: AssembledBroker) -> None:
    for offset in range(3):
        broker.offsets.commit("g", "t", 0, offset)
        body = (await ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)).body
        assert body == b'{"offsetTable":{"t@g":{0:%d}}}' % offset
    broker.offsets.remove_topic("t")
    assert (await ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)).body == b'{"offsetTable":{}}'
