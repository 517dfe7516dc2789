"""Groups with members of both languages: one share each, no gap, no overlap, order kept."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from pyromq.client import (
    LitePullConsumer,
    Message,
    Order,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from tests.clients.cases import Case, Inbox, eventually, numbered
from tests.interop.client_driver import ClientDriver
from tests.support.patience import DEADLINE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

QUEUES = 10


class Group:
    """Members of both languages on one topic."""

    def __init__(self, case: Case, topic: str, java: ClientDriver) -> None:
        self.case = case
        self.topic = topic
        self.java = java
        self.java_names: list[str] = []
        self.ours: list[PushConsumer] = []
        self.options: dict[str, Any] = {}
        self.inbox = Inbox()

    async def join_java(self, **options: object) -> None:
        name = f"{self.case.group}-{len(self.java_names)}"
        self.java_names.append(name)
        await asyncio.to_thread(
            self.java.consumer, name, self.case.namesrv, self.case.group, self.topic, **options
        )

    async def join(self, order: Order = Order.CONCURRENT) -> None:
        consumer = PushConsumer(
            self.case.namesrv,
            group=self.case.group,
            handler=self.inbox,
            subscriptions={self.topic: "*"},
            start_from=StartFrom.FIRST,
            order=order,
            **self.options,
        )
        self.ours.append(consumer)
        await consumer.start()

    async def leave_java(self) -> None:
        await asyncio.to_thread(self.java.close, self.java_names.pop())

    async def leave(self) -> None:
        await self.ours.pop().close()

    async def shares(self) -> list[set[tuple[str, int]]]:
        """The queues of each member: Java's, then ours."""
        shares = [
            {(broker, queue_id) for broker, queue_id in owned}
            for owned in [
                await asyncio.to_thread(self.java.call, "queues", name=name)
                for name in self.java_names
            ]
        ]
        return shares + [
            {(q.broker_name, q.queue_id) for q in consumer.assignment() if q.topic == self.topic}
            for consumer in self.ours
        ]

    async def until_shared(self) -> None:
        """Wait until each queue has exactly one owner, and the shares are as even as can be."""
        members = len(self.java_names) + len(self.ours)
        seen: list[set[tuple[str, int]]] = []

        async def shared() -> bool:
            seen[:] = await self.shares()
            counts = Counter(queue for share in seen for queue in share)
            sizes = sorted(len(share) for share in seen)
            even = sorted((QUEUES + member) // members for member in range(members))
            return len(counts) == QUEUES and set(counts.values()) == {1} and sizes == even

        try:
            await eventually(shared)
        except AssertionError:
            raise AssertionError(f"never shared evenly: {seen}") from None

    def java_bodies(self, names: Sequence[str]) -> list[str]:
        return [line["body"] for name in names for line in self.java.reports(name)]


@pytest.fixture
async def group(case: Case, java_clients: ClientDriver) -> Group:
    topic = await case.create_topic(f"{case.topic}-wide", QUEUES)
    return Group(case, topic, java_clients)


async def test_members_of_both_languages_share_the_queues(group: Group) -> None:
    await group.join_java()
    await group.join()
    await group.until_shared()
    await group.join()
    await group.join_java()
    await group.until_shared()
    names = list(group.java_names)
    bodies = numbered(100)
    await group.case.send(bodies, group.topic)

    async def all_came() -> bool:
        return len(group.inbox.messages) + len(group.java_bodies(names)) >= 100

    await eventually(all_came)
    # In peace, nothing comes twice; each language had its part.
    theirs = [body.encode() for body in group.java_bodies(names)]
    assert Counter(group.inbox.bodies + theirs) == Counter(bodies)
    assert group.inbox.bodies
    assert theirs
    await group.leave()
    await group.until_shared()
    await group.leave_java()
    await group.until_shared()
    await group.leave_java()
    await group.until_shared()
    await group.leave()
    assert sum((await group.case.committed(topic=group.topic)).values()) == 100


@pytest.mark.parametrize("with_java", [False, True])
async def test_members_that_come_and_go_under_load(  # noqa: C901 - three loads in one scenario
    group: Group, with_java: bool
) -> None:
    """Ours alone repeat nothing, at either broker. With a Java member nothing is lost."""
    group.options = {"close_grace": DEADLINE}
    sent = 0
    is_enough = asyncio.Event()

    async def send_on() -> None:
        nonlocal sent
        async with Producer(group.case.namesrv) as producer:
            while not is_enough.is_set():
                if sent - len(handled()) < 200:
                    await producer.send(Message(group.topic, b"%d" % sent))
                    sent += 1
                await asyncio.sleep(0.002)

    def handled() -> Counter[bytes]:
        theirs = [body.encode() for body in group.java_bodies(names)]
        return Counter(group.inbox.bodies + theirs)

    async def go_on() -> None:
        await group.until_shared()
        goal = len(handled()) + 200

        async def reached() -> bool:
            return len(handled()) >= goal

        await eventually(reached)

    async def all_came() -> bool:
        return len(handled()) == sent

    if with_java:
        await group.join_java()
    names = list(group.java_names)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send_on())
        for _ in range(3):
            await group.join()
        await go_on()
        for _ in range(2):
            await group.leave()
            await go_on()
            await group.join()
            await go_on()
        is_enough.set()
    await eventually(all_came)
    if not with_java:
        assert [body for body, count in handled().items() if count > 1] == []
    while group.ours:
        await group.leave()


async def test_a_lite_reader_shares_with_java(case: Case, java_clients: ClientDriver) -> None:
    """Java's lite-pull and ours in one group."""
    await asyncio.to_thread(java_clients.lite, case.group, case.namesrv, case.group, case.topic)
    async with LitePullConsumer(
        case.namesrv, group=case.group, start_from=StartFrom.FIRST
    ) as consumer:
        await consumer.subscribe(case.topic)

        async def halved() -> bool:
            return len(consumer.assignment()) == 2

        await eventually(halved)
        mine = {queue.queue_id for queue in consumer.assignment()}
        bodies = numbered(40)
        await case.send(bodies)
        got: list[ReceivedMessage] = []

        async def all_came() -> bool:
            got.extend(await consumer.poll(0.1))
            return len(got) + len(java_clients.reports(case.group)) >= 40

        await eventually(all_came)
    theirs = java_clients.reports(case.group)
    assert Counter([m.body for m in got] + [line["body"].encode() for line in theirs]) == Counter(
        bodies
    )
    assert {message.queue.queue_id for message in got} == mine
    assert {line["queueId"] for line in theirs}.isdisjoint(mine)


async def test_order_outlasts_handing_over(group: Group) -> None:
    """Queues go to and fro between members of both languages while they are being filled."""
    stop = asyncio.Event()
    keys = [f"key-{number}" for number in range(20)]
    sent = Counter[str]()

    async def produce() -> None:
        async with Producer(group.case.namesrv) as producer:
            while not stop.is_set():
                for key in keys:
                    body = f"{key}/{sent[key]}".encode()
                    await producer.send(Message(group.topic, body, ordering_key=key))
                    sent[key] += 1
                await asyncio.sleep(0.02)

    producing = asyncio.create_task(produce())
    handled: list[tuple[str, str]] = []
    # No queue goes from a Java member that stays: it may give up the lock 20 s later.
    await group.join(Order.ORDERLY)
    await group.join(Order.ORDERLY)
    await group.until_shared()
    await group.join_java(orderly=True)
    await group.until_shared()
    names = list(group.java_names)
    await asyncio.to_thread(
        group.java.wait_reports, names[0], lambda lines: len({x["queueId"] for x in lines}) >= 3
    )
    await group.leave_java()
    await group.until_shared()
    stop.set()
    await producing
    total = sum(sent.values())

    async def all_came() -> bool:
        handled[:] = [(body, "java") for body in group.java_bodies(names)]
        handled.extend((body.decode(), "ours") for body in group.inbox.bodies)
        return len({body for body, _ in handled}) >= total

    try:
        await eventually(all_came)
    except AssertionError:
        had = {body for body, _ in handled}
        missing = Counter(
            message.queue.queue_id
            for message in await group.case.stored(group.topic)
            if message.body.decode() not in had
        )
        shares = [consumer.offsets() for consumer in group.ours]
        raise AssertionError(f"missing by queue: {missing} of {total}; {shares}") from None
    finally:
        while group.ours:
            await group.leave()
    for who in ("java", "ours"):
        order = defaultdict(list)
        for body, handler in handled:
            if handler == who:
                key, number = body.split("/")
                order[key].append(int(number))
        for key, numbers in order.items():
            # Going back is possible after a hand-over (at least once), leaving out is not.
            back = [after for before, after in pairwise(numbers) if after < before]
            assert len(back) <= 2, (who, key, numbers)
    repeated = len(handled) - total
    assert repeated <= total // 10, f"{repeated} of {total} came again"


async def test_another_member_answers_for_a_transaction(
    case: Case, java_clients: ClientDriver
) -> None:
    """A half of a producer that is gone: a Java member of its group is asked, and the reverse."""
    group = f"{case.group}-tx"

    async def unknown(_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(case.namesrv, group=group, check=unknown) as producer:
        await producer.send_in_transaction(
            Message(case.topic, b"left by us", properties={"check": "commit"}), unknown
        )
    name = f"{case.group}-java"
    await asyncio.to_thread(java_clients.producer, name, case.namesrv, group, transactional=True)
    # It is known to a broker when it has sent there.
    await asyncio.to_thread(
        java_clients.send,
        name,
        case.topic,
        [{"body": "left by java", "properties": {"local": "unknown", "check": "unknown"}}],
        "transaction",
    )
    await asyncio.to_thread(
        java_clients.wait_reports,
        name,
        lambda lines: "left by us" in {line["body"] for line in lines},
        30.0,
        "check",
    )
    await asyncio.to_thread(java_clients.close, name)

    async def commit(_: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(case.namesrv, group=group, check=commit, topics=[case.topic]):
        stored = await case.wait_stored(2)
    assert sorted(message.body for message in stored) == [b"left by java", b"left by us"]
