"""Push consumers: handing out, order, broadcasting, retries and dead letters, pausing."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from pyromq.client import (
    Consuming,
    Message,
    MessageModel,
    Order,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    Sending,
    StartFrom,
    Subscription,
)
from tests.clients.cases import Case, Inbox, against_all_brokers, eventually, numbered
from tests.clients.test_pulling import SQL, SQL_FINDS, send_coloured, send_twice
from tests.support.patience import DEADLINE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


@against_all_brokers
async def test_a_handler_gets_every_message_once(case: Case) -> None:
    inbox = Inbox()
    early, late = numbered(50, "early"), numbered(50, "late")
    await case.send(early)
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
    ):
        await case.send(late)
        await inbox.until_exactly(early + late)
    # Closing commits what was handled.
    await case.until_committed(100)


@against_all_brokers
@pytest.mark.parametrize("kind", ["function", "lists"])
async def test_forms_of_handlers(case: Case, kind: str) -> None:
    bodies: list[bytes] = []
    sizes: list[int] = []
    threads: set[str] = set()

    def handle(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name)
        bodies.append(message.body)

    async def handle_list(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))
        bodies.extend(message.body for message in messages)

    sent = numbered(60)
    async with Producer(case.namesrv) as producer:
        await producer.send_batch([Message(case.topic, body) for body in sent])
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=handle if kind == "function" else handle_list,
        takes_lists=kind == "lists",
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
    ):

        async def all_came() -> bool:
            return len(bodies) >= len(sent)

        await eventually(all_came)
    assert Counter(bodies) == Counter(sent)
    if kind == "function":
        assert threading.current_thread().name not in threads
    else:
        assert max(sizes) > 1


@against_all_brokers
@pytest.mark.parametrize(
    ("subscription", "wanted"),
    [
        ("Tag1 || Tag3", [b"m-1", b"m-11", b"m-3", b"m-5", b"m-7", b"m-9"]),
        (Subscription.sql(SQL), SQL_FINDS),
    ],
    ids=["tags", "sql"],
)
async def test_pushing_is_filtered(
    case: Case, subscription: str | Subscription, wanted: list[bytes]
) -> None:
    inbox = Inbox()
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: subscription},
        start_from=StartFrom.FIRST,
    ):
        await send_coloured(case)
        await inbox.until_exactly(wanted)


@pytest.mark.parametrize("start", ["first", "last", "middle"])
async def test_where_pushing_begins(case: Case, start: str, tmp_path: Path) -> None:
    middle = await send_twice(case)
    wanted = {
        "first": {b"early", b"middle", b"late"},
        "middle": {b"middle", b"late"},
        "last": {b"late"},
    }[start]
    inbox = Inbox()
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        model=MessageModel.BROADCASTING,
        offsets_directory=tmp_path,
        start_from=middle if start == "middle" else StartFrom(start),
    ) as consumer:

        async def begun() -> bool:
            # Of a queue that is being read the offset is known.
            return len(consumer.offsets()) == 4

        await eventually(begun)
        await case.send(numbered(8, "late"))
        await inbox.until_count(8 * len(wanted))
        got = Counter(body.split(b"-")[0] for body in inbox.bodies)
        assert got == dict.fromkeys(wanted, 8)


@against_all_brokers
async def test_in_order(case: Case) -> None:
    """A failure holds up its queue alone, and nothing overtakes it."""
    failures = Counter({b"a-4": 2})

    def fail(message: ReceivedMessage) -> bool:
        failures[message.body] -= 1
        return failures[message.body] >= 0

    inbox = Inbox(fail)
    keys = ["a", "b", "c"]
    async with Producer(case.namesrv) as producer:
        for number in range(10):
            for key in keys:
                message = Message(case.topic, f"{key}-{number}".encode(), ordering_key=key)
                await producer.send(message)
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
        order=Order.ORDERLY,
        suspend=0.1,
    ):
        await inbox.until_count(32)
    found = defaultdict(list)
    for body in inbox.bodies:
        key, text = body.decode().split("-")
        found[key].append(int(text))
    assert found["a"] == [0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9]
    assert found["b"] == found["c"] == list(range(10))


@against_all_brokers
async def test_broadcasting_reaches_every_member(case: Case, tmp_path: Path) -> None:
    inboxes = [Inbox(), Inbox()]
    consumers = [
        PushConsumer(
            case.namesrv,
            group=case.group,
            handler=inbox,
            subscriptions={case.topic: "*"},
            start_from=StartFrom.FIRST,
            model=MessageModel.BROADCASTING,
            instance_name=f"member-{number}",
            offsets_directory=tmp_path,
        )
        for number, inbox in enumerate(inboxes)
    ]
    async with consumers[0], consumers[1]:
        await case.send(numbered(20))
        for inbox in inboxes:
            await inbox.until_exactly(numbered(20))
    # The offsets are in a file: a member that comes back goes on where it was.
    again = Inbox()
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=again,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
        model=MessageModel.BROADCASTING,
        instance_name="member-0",
        offsets_directory=tmp_path,
    ):
        await case.send([b"new"])
        await again.until_exactly([b"new"])


@against_all_brokers
async def test_failed_messages_come_again_until_they_succeed(case: Case) -> None:
    inbox = Inbox(lambda message: message.body == b"twice bad" and message.reconsume_times < 2)
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
    ):
        async with Producer(case.namesrv) as producer:
            sent = await producer.send(
                Message(case.topic, b"twice bad", tags="t", keys="k", properties={"a": "b"})
            )
            await producer.send(Message(case.topic, b"good"))
        await inbox.until_count(4)
    deliveries = [message for message in inbox.messages if message.body == b"twice bad"]
    assert [message.reconsume_times for message in deliveries] == [0, 1, 2]
    for message in deliveries:
        assert message.topic == case.topic
        assert message.msg_id == sent.msg_id
        assert (message.tags, message.keys, message.properties["a"]) == ("t", "k", "b")
    origins = {message.system_properties["ORIGIN_MESSAGE_ID"] for message in deliveries[1:]}
    assert origins == {sent.offset_msg_id}


@against_all_brokers
async def test_hopeless_messages_become_dead_letters(case: Case) -> None:
    inbox = Inbox(lambda _: True)
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        max_reconsume_times=1,
        start_from=StartFrom.FIRST,
    ):
        await case.send([b"hopeless"], keys="k", properties={"colour": "red"})
        await inbox.until_count(2)
        dead_letters = f"%DLQ%{case.group}"
        await asyncio.to_thread(case.cluster.wait_for_topic, dead_letters)
        (dead,) = await case.wait_stored(1, dead_letters)
    assert dead.body == b"hopeless"
    assert (dead.keys, dead.properties["colour"]) == ("k", "red")
    assert dead.msg_id == inbox.messages[0].msg_id
    assert len(inbox.messages) == 2


async def test_a_handler_may_give_up_at_once(case: Case) -> None:
    calls = []

    async def handle(message: ReceivedMessage) -> Retry:
        calls.append(message)
        return Retry(delay_level=-1)

    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=handle,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
    ):
        await case.send([b"no use"])
        dead_letters = f"%DLQ%{case.group}"
        await asyncio.to_thread(case.cluster.wait_for_topic, dead_letters)
        (dead,) = await case.wait_stored(1, dead_letters)
    assert dead.body == b"no use"
    assert len(calls) == 1


async def test_in_order_dead_letters_make_way(case: Case) -> None:
    inbox = Inbox(lambda message: message.body == b"m-2")
    await case.send(numbered(5), ordering_key="one")
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
        order=Order.ORDERLY,
        max_reconsume_times=2,
        suspend=0.05,
    ):
        await inbox.until_bodies(numbered(5))
        assert inbox.bodies == [b"m-0", b"m-1", b"m-2", b"m-2", b"m-2", b"m-3", b"m-4"]
        dead_letters = f"%DLQ%{case.group}"
        await asyncio.to_thread(case.cluster.wait_for_topic, dead_letters)
        (dead,) = await case.wait_stored(1, dead_letters)
    assert dead.body == b"m-2"


async def test_a_handler_that_hangs_is_given_up(case: Case) -> None:
    hanging = asyncio.Event()
    done = Inbox()

    async def handle(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0 and message.body == b"hangs":
            await hanging.wait()
        done.put(message)

    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=handle,
        subscriptions={case.topic: "*"},
        consume_timeout=0.5,
        start_from=StartFrom.FIRST,
    ):
        await case.send([b"hangs", b"good"])
        await done.until_bodies([b"hangs", b"good"])
    assert [m.reconsume_times for m in done.messages if m.body == b"hangs"] == [1]


async def test_pausing(case: Case) -> None:
    inbox = Inbox()
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
    ) as consumer:
        await case.send(numbered(8))
        await inbox.until_exactly(numbered(8))
        consumer.pause()
        # Pulls that wait already still bring one message each.
        await case.send(numbered(40, "held"))
        await asyncio.sleep(0.5)
        assert len(inbox.messages) < 48
        consumer.resume()
        await inbox.until_exactly(numbered(8) + numbered(40, "held"))


async def test_hooks_see_sends_and_consumptions(case: Case) -> None:
    seen: list[tuple[str, bytes, bool | None]] = []

    class Hook:
        def before_send(self, sending: Sending) -> None:
            seen.append(("before send", sending.messages[0].body, None))

        def after_send(self, sending: Sending) -> None:
            seen.append(("after send", sending.messages[0].body, sending.error is None))

        def before_consume(self, consuming: Consuming) -> None:
            seen.append(("before consume", consuming.messages[0].body, None))

        def after_consume(self, consuming: Consuming) -> None:
            seen.append(("after consume", consuming.messages[0].body, consuming.success))

    inbox = Inbox(lambda message: message.reconsume_times == 0)
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        hooks=[Hook()],
        start_from=StartFrom.FIRST,
    ):
        async with Producer(case.namesrv, hooks=[Hook()]) as producer:
            await producer.send(Message(case.topic, b"x"))
        await inbox.until_count(2)
    # A consumption may begin before its producer has heard that the message is stored.
    assert Counter(seen) == {
        ("before send", b"x", None): 1,
        ("after send", b"x", True): 1,
        ("before consume", b"x", None): 2,
        ("after consume", b"x", False): 1,
        ("after consume", b"x", True): 1,
    }


async def test_topics_can_change_while_consuming(case: Case) -> None:
    inbox = Inbox()
    other = await case.create_topic(f"{case.topic}-other", 2)
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={case.topic: "*"},
        start_from=StartFrom.FIRST,
    ) as consumer:
        await consumer.subscribe(other, "wanted")
        await case.send([b"no"], other, tags="unwanted")
        await case.send([b"yes"], other, tags="wanted")
        await case.send([b"first topic"])
        await inbox.until_exactly([b"yes", b"first topic"])
        await consumer.unsubscribe(other)
        assert {queue.topic for queue in consumer.assignment()} == {
            case.topic,
            f"%RETRY%{case.group}",
        }


async def test_a_topic_that_does_not_exist_yet_is_waited_for(case: Case) -> None:
    inbox = Inbox()
    topic = f"{case.topic}-later"
    async with PushConsumer(
        case.namesrv,
        group=case.group,
        handler=inbox,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
    ):
        await case.create_topic(topic, 1)
        await case.send(numbered(3), topic)
        await inbox.until_exactly(numbered(3), DEADLINE)
