from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.handlers.admin import consume_stats
from pyromq.protocol.wire.bodies import SubscriptionGroupConfig, TopicConfig
from pyromq.protocol.wire.bodies_admin import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    TopicOffset,
    TopicStatsTable,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError
from tests.unit.broker.handlers.admin.administered import ADMIN, Administered, asking, queue


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Administered]:
    monkeypatch.setattr(consume_stats, "_MAX_QUEUES_PER_ITERATION", 2)
    broker = Administered(tmp_path)
    broker.groups.update(SubscriptionGroupConfig("g"))
    broker.put(b"1", b"2", b"3", queue_id=0)
    broker.offsets.commit("g", "T", 0, 2)
    yield broker
    await broker.close()


def time_of(broker: Administered, number: int) -> int:
    return broker.records()[number].store_timestamp


async def stats_of(broker: Administered, **fields: str) -> ConsumeStats:
    request = asking(**{"consumerGroup": "g", **fields})
    answer = await broker.consume_stats.consume_stats(ADMIN, request)
    return ConsumeStats.decode(answer.body)


async def test_the_progress_of_a_group(broker: Administered) -> None:
    found = await stats_of(broker)
    assert found.offset_table == {
        queue(0): OffsetWrapper(3, 2, time_of(broker, 1)),
        queue(1): OffsetWrapper(0, 0, 0),
    }
    assert found.consume_tps == 0.0
    assert found.total_diff() == 1
    assert (await stats_of(broker, topic="X")).offset_table == {}
    never_read = await stats_of(broker, consumerGroup="h", topic="T")
    assert never_read.offset_table[queue(0)] == OffsetWrapper(3, 0, 0)


async def test_offsets_that_have_expired(broker: Administered) -> None:
    broker.offsets.commit("g", "T", 0, 100)
    found = await stats_of(broker)
    assert found.offset_table[queue(0)] == OffsetWrapper(3, 100, 0)


async def test_topics_without_a_subscription_of_an_online_group_are_omitted(
    broker: Administered,
) -> None:
    broker.join("one", "U")
    assert (await stats_of(broker)).offset_table == {}
    broker.join("one", "U", "T")
    assert len((await stats_of(broker)).offset_table) == 2


async def test_all_groups_of_a_broker(broker: Administered) -> None:
    broker.groups.update(SubscriptionGroupConfig("h"))
    broker.topics.update(TopicConfig("O", 1, 1, order=True))
    broker.offsets.commit("h", "O", 0, 0)
    broker.offsets.commit("h", "Gone", 0, 0)
    broker.put(b"4", topic="O", queue_id=0)

    async def ask(is_order: bool) -> tuple[dict[str, list[ConsumeStats]], ConsumeStatsList]:
        request = asking(isOrder=str(is_order).lower())
        answer = await broker.consume_stats.broker_consume_stats(ADMIN, request)
        body = ConsumeStatsList.decode(answer.body)
        return {
            name: stats for each in body.consume_stats_list for name, stats in each.items()
        }, body

    groups, body = await ask(is_order=False)
    assert (body.broker_addr, body.total_diff) == ("127.0.0.1:10911", 2)
    (of_g,) = groups["g"]
    assert of_g.offset_table[queue(0)] == OffsetWrapper(3, 2, time_of(broker, 1))
    (of_h,) = groups["h"]
    assert of_h.offset_table == {queue(0, "O"): OffsetWrapper(1, 0, 0)}
    groups, body = await ask(is_order=True)
    assert (groups["g"], len(groups["h"]), body.total_diff) == ([], 1, 1)


async def test_time_spans(broker: Administered) -> None:
    async def ask(group: str) -> QueryConsumeTimeSpanBody:
        request = asking(topic="T", group=group)
        answer = await broker.consume_stats.consume_time_span(ADMIN, request)
        return QueryConsumeTimeSpanBody.decode(answer.body)

    first, second, third = (time_of(broker, number) for number in range(3))
    used, empty = (await ask("g")).consume_time_span_set
    assert (used.message_queue, empty.message_queue) == (queue(0), queue(1))
    assert (used.min_time_stamp, used.max_time_stamp) == (first, third)
    assert used.consume_time_stamp == second
    assert used.delay_time == broker.now - third
    assert (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time) == (-1, -1, 0)
    used, _ = (await ask("never")).consume_time_span_set
    assert used.consume_time_stamp == first
    assert used.delay_time == broker.now - first
    broker.offsets.commit("g", "T", 0, 3)
    used, _ = (await ask("g")).consume_time_span_set
    assert (used.consume_time_stamp, used.delay_time) == (third, 0)


async def test_ends_of_queues(broker: Administered) -> None:
    answer = await broker.consume_stats.topic_stats(ADMIN, asking(topic="T"))
    assert TopicStatsTable.decode(answer.body).offset_table == {
        queue(0): TopicOffset(0, 3, time_of(broker, 2)),
        queue(1): TopicOffset(0, 0, 0),
    }


async def test_unknown_topics(broker: Administered) -> None:
    for handler in (broker.consume_stats.topic_stats, broker.consume_stats.consume_time_span):
        with pytest.raises(RequestError, match=r"topic\[X\] not exist") as refused:
            await handler(ADMIN, asking(topic="X", group="g"))
        assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST
