from __future__ import annotations

import asyncio

from pyromq.broker.services.notices import GroupNotices
from pyromq.broker.state.connections import Client, ConsumerTable
from pyromq.protocol.wire.bodies import ConsumerData
from pyromq.protocol.wire.codes import LanguageCode, RequestCode
from tests.support.patience import until
from tests.unit.broker.fakes import FakeConnection


def join(consumers: ConsumerTable, group: str, connection: FakeConnection) -> None:
    consumers.register(ConsumerData(group), Client(connection, "c", LanguageCode.JAVA, 407))


def test_without_a_loop_members_are_told_at_once() -> None:
    consumers = ConsumerTable()
    one = FakeConnection()
    join(consumers, "g", one)
    notices = GroupNotices(consumers)
    notices.changed("g")
    notices.changed("nobody")
    assert [command.code for command in one.sent] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]


async def test_changes_that_come_together_share_a_notice() -> None:
    consumers = ConsumerTable()
    notices = GroupNotices(consumers)
    members = [FakeConnection() for _ in range(200)]
    for member in members:
        join(consumers, "g", member)
        notices.changed("g")
        await asyncio.sleep(0)
    await until(lambda: members[-1].sent)
    # One by one it would be 200 + 199 + ... + 1 notices.
    assert sum(len(member.sent) for member in members) < 10 * len(members)
    await notices.stop()


async def test_a_later_change_is_told_too() -> None:
    consumers = ConsumerTable()
    notices = GroupNotices(consumers)
    one = FakeConnection()
    join(consumers, "g", one)
    for count in range(1, 4):
        notices.changed("g")
        await until(lambda count=count: len(one.sent) == count)  # type: ignore[misc]
    await notices.stop()


async def test_many_groups_leave_the_loop_to_others() -> None:
    consumers = ConsumerTable()
    notices = GroupNotices(consumers)
    one = FakeConnection()
    for number in range(2000):
        join(consumers, f"g{number}", one)
    for number in range(2000):
        notices.changed(f"g{number}")
    seen = set()
    while len(one.sent) < 2000:
        seen.add(len(one.sent))
        await asyncio.sleep(0)
    assert len(seen) > 4
    assert len({command.ext_fields["consumerGroup"] for command in one.sent}) == 2000
    await notices.stop()


async def test_after_the_stop_nobody_is_told() -> None:
    consumers = ConsumerTable()
    notices = GroupNotices(consumers)
    one = FakeConnection()
    join(consumers, "g", one)
    notices.changed("g")
    await notices.stop()
    await asyncio.sleep(0)
    assert one.sent == []
