from __future__ import annotations

from collections import Counter

import pytest

from pyromq.admin import Admin, AdminError, NotFoundError
from pyromq.admin.errors import UnknownTopicError
from pyromq.admin.groups.groups import GroupSettings
from pyromq.admin.messages.dead_letters import ResendProgress
from pyromq.client import PushConsumer, ReceivedMessage, StartFrom
from pyromq.testing import Cluster
from tests.support.patience import until
from tests.unit.admin.stored_messages import make_dead_letters

GROUP = "billing"
BODIES = [b"%d" % number for number in range(5)]


@pytest.fixture
async def dead(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> str:
    """A topic whose messages are dead letters of the group."""
    await admin.groups.update(GroupSettings(GROUP), cluster="DefaultCluster")
    await make_dead_letters(
        admin, rocketmq.namesrv, rocketmq_topic, GROUP, BODIES, tags="t", keys="k"
    )
    return rocketmq_topic


async def test_lists_and_shows(admin: Admin, dead: str) -> None:
    (group,) = await admin.dead_letters.groups()
    assert (group.group, group.count, group.topic) == (GROUP, 5, "%DLQ%billing")
    assert group.last_stored > 0
    (queue,) = group.queues
    assert (queue.broker_name, queue.count) == ("broker-0", 5)
    letters = [each async for each in admin.dead_letters.read(GROUP)]
    assert [each.message.body for each in letters] == BODIES
    assert {each.origin_topic for each in letters} == {dead}
    origins = [await admin.messages.by_id(each.origin_msg_id) for each in letters]
    assert [each.body for each in origins] == BODIES
    found = await admin.dead_letters.find(GROUP, limit=2)
    assert (len(found.messages), found.complete) == (2, False)


async def test_a_group_without_dead_letters(admin: Admin, dead: str) -> None:
    assert dead
    for call in (
        admin.dead_letters.counts("biling"),
        admin.dead_letters.find("biling"),
        admin.dead_letters.resend("biling"),
    ):
        with pytest.raises(NotFoundError, match="did you mean 'billing'"):
            await call


async def test_resends_each_once(rocketmq: Cluster, admin: Admin, dead: str) -> None:
    reports: list[ResendProgress] = []
    dry = await admin.dead_letters.resend(GROUP, dry_run=True)
    assert (dry.selected, dry.by_topic, dry.sent) == (5, {dead: 5}, 0)
    first = await admin.dead_letters.resend(GROUP, limit=2, on_progress=reports.append)
    assert (first.sent, first.already_sent, first.complete) == (2, 0, False)
    rest = await admin.dead_letters.resend(GROUP, on_progress=reports.append)
    assert (rest.sent, rest.already_sent, rest.complete) == (3, 2, True)
    again = await admin.dead_letters.resend(GROUP, run="again")
    assert (again.sent, again.already_sent) == (5, 0)

    assert (reports[-1].done, reports[-1].total, reports[-1].sent) == (5, 5, 3)
    messages = await rocketmq.drain_async(dead, count=15)
    assert Counter(message.body for message in messages) == Counter(BODIES * 3)
    assert {(message.tags, message.keys) for message in messages} == {("t", "k")}
    assert len({message.msg_id for message in messages}) == 5
    assert {message.reconsume_times for message in messages} == {0}


async def test_other_targets(rocketmq: Cluster, admin: Admin, dead: str) -> None:
    await rocketmq.create_topic_async("parking", queues=3)
    parked = await admin.dead_letters.resend(GROUP, to="parking", rate=1000)
    assert (parked.target, parked.sent) == ("parking", 5)
    assert (await admin.dead_letters.resend(GROUP, to="parking")).already_sent == 5
    assert await rocketmq.message_count_async("parking") == 5

    handled: list[ReceivedMessage] = []
    async with PushConsumer(
        rocketmq.namesrv,
        group=GROUP,
        subscriptions=dead,
        handler=handled.append,
        start_from=StartFrom.FIRST,
    ):
        retried = await admin.dead_letters.resend(GROUP, to_retry_topic=True)
        assert (retried.target, retried.sent) == ("%RETRY%billing", 5)
        # The messages of the topic, which the group has not consumed, and the copies.
        await until(lambda: len(handled) == 10)
    assert Counter(message.body for message in handled) == Counter(BODIES * 2)
    assert {message.topic for message in handled} == {dead}


async def test_a_copy_that_dies_again_is_another_dead_letter(
    rocketmq: Cluster, admin: Admin, dead: str
) -> None:
    await admin.dead_letters.resend(GROUP, limit=1)
    found = await admin.messages.by_time(dead, 0, 1 << 62, limit=100)
    (copy,) = [each for each in found.messages if "PYROMQ_RESENT_FROM" in each.properties]
    from pyromq.protocol.wire.codes import RequestCode
    from pyromq.protocol.wire.headers import ConsumerSendMsgBackRequestHeader

    header = ConsumerSendMsgBackRequestHeader(copy.physical_offset, GROUP, delay_level=-1)
    broker = rocketmq.brokers[0].address
    await admin.session.ask(broker, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    result = await admin.dead_letters.resend(GROUP)

    assert (result.selected, result.sent, result.already_sent) == (6, 5, 1)


async def test_selects_by_time(admin: Admin, dead: str) -> None:
    letters = [each.message async for each in admin.dead_letters.read(GROUP)]
    begin = letters[3].store_timestamp
    expected = sum(each.store_timestamp >= begin for each in letters)
    result = await admin.dead_letters.resend(GROUP, begin=begin)
    assert result.selected == result.sent == expected
    assert dead
    nothing = await admin.dead_letters.resend(GROUP, end=1)
    assert (nothing.selected, nothing.complete) == (0, True)


async def test_bad_arguments(admin: Admin, dead: str) -> None:
    for problem, arguments in (
        ("either a topic or the retry topic", {"to": "x", "to_retry_topic": True}),
        ("use at most 64 letters", {"run": "a@b"}),
        ("use at most 64 letters", {"run": "a" * 65}),
        ("more than 0", {"rate": 0}),
        ("at least 1", {"limit": 0}),
        ("dead letters themselves", {"to": "%DLQ%billing"}),
    ):
        with pytest.raises(AdminError, match=problem):
            await admin.dead_letters.resend(GROUP, **arguments)
    with pytest.raises(UnknownTopicError):
        await admin.dead_letters.resend(GROUP, to="nowhere")
    assert (await admin.dead_letters.resend(GROUP)).by_topic == {dead: 5}
