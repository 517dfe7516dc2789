from __future__ import annotations

import pytest

from pyromq.admin import Admin, AdminError
from pyromq.client import Message, Producer
from pyromq.testing import Cluster
from tests.support.patience import until

pytestmark = pytest.mark.rocketmq(settings={"messageDelayLevel": "100ms 1h 2h"})
HOUR = 3_600_000


async def test_looks_ahead(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    await rocketmq.create_topic_async("other")
    async with Producer(rocketmq.namesrv) as producer:
        for topic, level in ((rocketmq_topic, 3), (rocketmq_topic, 2), ("other", 2), ("other", 1)):
            message = Message(topic, b"%d" % level, delay_level=level)
            await producer.send(message)

    async def is_delivered() -> bool:
        return [each.waiting for each in await admin.delayed.levels()] == [0, 2, 1]

    await until(is_delivered)
    levels = await admin.delayed.levels()
    assert [each.delay for each in levels] == ["100ms", "1h", "2h"]
    assert (levels[0].next_due, levels[0].last_due) == (0, 0)
    found = await admin.delayed.find()
    assert [(each.topic, each.level, each.message.body) for each in found.messages] == [
        (rocketmq_topic, 2, b"2"),
        ("other", 2, b"2"),
        (rocketmq_topic, 3, b"3"),
    ]
    assert found.by_topic == {rocketmq_topic: 2, "other": 1}
    assert found.complete
    first = found.messages[0]
    assert first.due == first.message.store_timestamp + HOUR == levels[1].next_due
    assert levels[1].last_due == found.messages[1].due

    assert len((await admin.delayed.find(topic="other")).messages) == 1
    assert len((await admin.delayed.find(level=3)).messages) == 1
    assert len((await admin.delayed.find(until=levels[2].next_due - 1)).messages) == 2
    few = await admin.delayed.find(limit=1)
    assert (len(few.messages), few.complete) == (1, False)
    assert "more than 1" in few.reason


async def test_a_level_that_does_not_exist(admin: Admin) -> None:
    with pytest.raises(AdminError, match="levels 1 to 3"):
        await admin.delayed.find(level=4)
    assert (await admin.delayed.find()).messages == ()
