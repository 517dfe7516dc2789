"""Push consumers on real sockets: groups, retries, order, broadcasting, administrators."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.client import (
    Message,
    MessageModel,
    MessageQueue,
    Order,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    StartFrom,
    Subscription,
)
from pyromq.client.consumer import membership as membership_module
from pyromq.client.consumer.push import concurrent as concurrent_module
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies_admin import GetConsumerStatusBody
from pyromq.protocol.wire.bodies_consumer import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    DirectResult,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until

#: The second and third retry are as quick as the first.
QUICK_LEVELS = " ".join(["1s"] * 18)


class Cluster:
    """A NameServer and one broker that can be restarted."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._name_server = NameServer(
            NamesrvConfig(
                listen_port=0, bind_address="127.0.0.1", kv_config_path=str(root / "kv.json")
            )
        )
        self._port = 0

    async def start(self) -> None:
        await self._name_server.start()
        self.namesrv = f"127.0.0.1:{self._name_server.port}"
        await self.start_broker()

    async def start_broker(self) -> None:
        config = local_broker(
            broker_name="broker-a",
            listen_port=self._port,
            namesrv_addr=self.namesrv,
            default_topic_queue_nums=4,
            enable_property_filter=True,
        )
        self.broker = Broker(
            config, small_store(self._root / "store", message_delay_level=QUICK_LEVELS)
        )
        await self.broker.start()
        self._port = int(self.broker.address.rsplit(":", 1)[1])

    async def stop(self) -> None:
        await self.broker.stop()
        await self._name_server.stop()

    async def send(self, topic: str, bodies: list[bytes], **fields: Any) -> None:
        async with Producer(self.namesrv) as producer:
            for body in bodies:
                await producer.send(Message(topic, body, **fields))

    async def ask(self, code: RequestCode, **fields: str) -> RemotingCommand:
        client = RemotingClient()
        try:
            command = RemotingCommand(code, ext_fields=fields)
            return await client.request(self.broker.address, command, DEADLINE)
        finally:
            await client.close()

    async def committed(self, topic: str, group: str) -> int:
        """Return the sum of a group's offsets."""
        async with PullConsumer(self.namesrv, topic, group=group) as consumer:
            return sum([await consumer.committed(q) or 0 for q in await consumer.queues()])


@asynccontextmanager
async def cluster_in(root: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(root)
    await cluster.start()
    try:
        async with asyncio.timeout(DEADLINE):
            yield cluster
    finally:
        await cluster.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_in(tmp_path) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "MISSING_TOPIC_SECONDS", 0.05)


def consumer_of(cluster: Cluster, handler: Any, **options: Any) -> PushConsumer:
    return PushConsumer(
        cluster.namesrv,
        **{
            "group": "g",
            "handler": handler,
            "subscriptions": {"T": "*"},
            "start_from": StartFrom.FIRST,
            **options,
        },
    )


async def test_every_message_is_handled_and_its_offset_committed(cluster: Cluster) -> None:
    await cluster.send("T", [b"%d" % n for n in range(50)])
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with consumer_of(cluster, handle) as consumer:
        await until(lambda: len(seen) == 50)
        assert len(consumer.assignment()) >= 4
    assert sorted(seen) == sorted(b"%d" % n for n in range(50))
    assert await cluster.committed("T", "g") == 50
    async with consumer_of(cluster, handle):
        await cluster.send("T", [b"one more"])
        await until(lambda: len(seen) == 51)
    assert seen[-1] == b"one more"


async def test_plain_functions_lists_and_threads(cluster: Cluster) -> None:
    await cluster.send("T", [b"%d" % n for n in range(40)])
    seen: list[bytes] = []

    def handle(messages: list[ReceivedMessage]) -> None:
        assert len(messages) <= 8
        seen.extend(message.body for message in messages)

    async with consumer_of(cluster, handle, batch_size=8):
        await until(lambda: len(seen) == 40)
    assert len(set(seen)) == 40
    assert await cluster.committed("T", "g") == 40


async def test_failures_are_retried_and_end_as_dead_letters(cluster: Cluster) -> None:
    await cluster.send("T", [b"good", b"bad", b"worse"], tags="x")
    calls: dict[bytes, list[int]] = defaultdict(list)
    topics: set[str] = set()

    async def handle(message: ReceivedMessage) -> Retry | None:
        calls[message.body].append(message.reconsume_times)
        topics.add(message.topic)
        if message.body == b"bad":
            raise ValueError("no")
        return Retry(delay_level=-1) if message.body == b"worse" else None

    dead: list[bytes] = []

    async def bury(message: ReceivedMessage) -> None:
        dead.append(message.body)

    async with (
        consumer_of(cluster, handle, subscriptions={"T": "x || y"}, max_reconsume_times=2),
        consumer_of(cluster, bury, group="undertaker", subscriptions={"%DLQ%g": "*"}),
    ):
        await until(lambda: sorted(dead) == [b"bad", b"worse"])
    assert calls == {b"good": [0], b"bad": [0, 1, 2], b"worse": [0]}
    assert topics == {"T"}


async def test_three_members_share_and_take_over(cluster: Cluster) -> None:
    await cluster.send("T", [b"first"])
    handled: Counter[bytes] = Counter()
    by: dict[bytes, str] = {}

    def member(name: str) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            handled[message.body] += 1
            by[message.body] = name

        return consumer_of(cluster, handle)

    members = [member(name) for name in "abc"]
    for one in members:
        await one.start()

    def shares() -> list[int]:
        return sorted(
            len([queue for queue in one.assignment() if queue.topic == "T"]) for one in members
        )

    await until(lambda: shares() == [1, 1, 2])
    bodies = [b"%d" % n for n in range(60)]
    await cluster.send("T", bodies)
    await until(lambda: all(handled[body] for body in bodies))
    assert len({by[body] for body in bodies}) == 3
    await members.pop().close()
    await until(lambda: shares() == [2, 2])
    await cluster.send("T", [b"afterwards"] * 4)
    await until(lambda: handled[b"afterwards"] == 4)
    for one in members:
        await one.close()
    assert await cluster.committed("T", "g") == 65


class Load:
    """Send numbered messages every few milliseconds while fewer than 60 are unhandled."""

    def __init__(self, cluster: Cluster, handled: Counter[int], topic: str = "T") -> None:
        self._cluster = cluster
        self._handled = handled
        self._topic = topic
        self.sent = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Load:
        await self._cluster.send(self._topic, [self._next()])  # creates the topic
        self._task = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        task, self._task = self._task, None
        await asyncio.wait([task])
        task.result()

    def _next(self) -> bytes:
        self.sent += 1
        return b"%d" % (self.sent - 1)

    async def _send(self) -> None:
        async with Producer(self._cluster.namesrv) as producer:
            while self._task is not None:
                for _ in range(4 if self.sent - len(self._handled) < 60 else 0):
                    body = self._next()
                    # Few keys, so that each queue has some of them with many messages.
                    key = f"k{self.sent % 16}"
                    await producer.send(Message(self._topic, body, ordering_key=key))
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("order", Order)
async def test_members_joining_and_leaving_under_load_cause_no_duplicates(
    cluster: Cluster, order: Order
) -> None:
    handled: Counter[int] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        # Different durations: messages finish in another order than they started.
        await asyncio.sleep(0.001 + int(message.body) % 7 * 0.001)
        handled[int(message.body)] += 1

    def member() -> PushConsumer:
        return consumer_of(cluster, handle, order=order, close_grace=DEADLINE)

    members: list[PushConsumer] = []

    def is_shared() -> bool:
        owned = [q for one in members for q in one.assignment() if q.topic == "T"]
        return len(owned) == len(set(owned)) == 4

    async def settled() -> None:
        """Wait until each queue has one owner and all earlier messages were handled."""
        await until(is_shared)
        goal = len(handled) + 80
        await until(lambda: len(handled) >= goal)

    async with Load(cluster, handled) as load:
        for _ in range(3):
            members.append(member())
            await members[-1].start()
        await settled()
        for _ in range(4):
            await members.pop(0).close()
            await settled()
            members.append(member())
            await members[-1].start()
            await settled()
    await until(lambda: len(handled) == load.sent)
    for one in members:
        await one.close()
    repeated = {number: count for number, count in handled.items() if count > 1}
    assert repeated == {}, f"{len(repeated)} of {load.sent} messages were handled again"
    assert await cluster.committed("T", "g") == load.sent


#: A member in its own process, which records the messages it handled.
MEMBER = """
import asyncio, sys
from pyromq.client import PushConsumer, StartFrom

async def handle(message):
    await asyncio.sleep(0.001)
    sys.stdout.buffer.write(message.body + b"\\n")
    sys.stdout.buffer.flush()

async def main():
    async with PushConsumer(sys.argv[1], group="g", handler=handle, subscriptions={"T": "*"},
                            start_from=StartFrom.FIRST) as consumer:
        await consumer.closed()

asyncio.run(main())
"""


async def test_a_killed_member_loses_nothing(cluster: Cluster) -> None:
    handled: Counter[int] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.001)
        handled[int(message.body)] += 1

    async def note(output: asyncio.StreamReader, lines: list[int]) -> None:
        async for line in output:
            if line.endswith(b"\n"):
                lines.append(int(line))
                handled[int(line)] += 1

    def at_least(count: int, things: Collection[int]) -> bool:
        return len(things) >= count

    async with consumer_of(cluster, handle) as survivor:
        async with Load(cluster, handled) as load:
            for _ in range(2):
                child = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", MEMBER, cluster.namesrv, stdout=asyncio.subprocess.PIPE
                )
                assert child.stdout is not None
                lines: list[int] = []
                noting = asyncio.create_task(note(child.stdout, lines))
                await until(partial(at_least, 50, lines))
                child.kill()
                await child.wait()
                await noting
                # All queues continue long before the lease of its locks expires.
                await until(lambda: len(survivor.assignment()) == 5)
                await until(partial(at_least, len(handled) + 200, handled))
        await until(lambda: len(handled) == load.sent)
    assert await cluster.committed("T", "g") == load.sent


async def test_order_is_kept_under_failures_and_rebalancing(cluster: Cluster) -> None:
    last: dict[str, int] = {}
    done: list[tuple[str, int]] = []
    busy: set[MessageQueue] = set()
    violations: list[str] = []
    refused: Counter[bytes] = Counter()

    async def handle(message: ReceivedMessage) -> Retry | None:
        if message.queue in busy:
            violations.append(f"two handlers at once: {message!r}")
        busy.add(message.queue)
        await asyncio.sleep(0.001)
        busy.discard(message.queue)
        key, number = message.properties["key"], int(message.body)
        if number % 10 == 3 and refused[message.body] < 2:
            refused[message.body] += 1
            return Retry(suspend=0.01)
        if number > last.get(key, -1) + 1:
            violations.append(f"overtaken: {message!r}")
        last[key] = max(number, last.get(key, -1))
        done.append((key, number))
        return None

    def member() -> PushConsumer:
        return consumer_of(cluster, handle, order=Order.ORDERLY)

    async with Producer(cluster.namesrv) as producer:
        for number in range(60):
            for key in "abcd":
                await producer.send(
                    Message("T", b"%d" % number, properties={"key": key}, ordering_key=key)
                )
    async with member() as first:
        await until(lambda: len(done) > 40)
        async with member() as second:
            await until(lambda: 0 < len(second.assignment()) < 5)
            await until(lambda: len(set(done)) > 160)
        await until(lambda: last == dict.fromkeys("abcd", 59))
        assert first.assignment()
    assert violations == []
    # A queue changes owners after its handler has returned and its offset is committed.
    assert len(done) == 240
    assert await cluster.committed("T", "g") == 240


async def test_orderly_messages_that_always_fail_become_dead_letters(cluster: Cluster) -> None:
    await cluster.send("T", [b"bad", b"good"], ordering_key="k")
    calls: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        calls.append(message.body)
        if message.body == b"bad":
            raise ValueError("never")

    async with consumer_of(
        cluster, handle, order=Order.ORDERLY, suspend=0.01, max_reconsume_times=2
    ):
        await until(lambda: b"good" in calls)
    assert calls == [b"bad", b"bad", b"bad", b"good"]
    assert await cluster.committed("T", "g") == 2
    assert await cluster.committed("%DLQ%g", "nobody") == 0
    async with PullConsumer(cluster.namesrv, "%DLQ%g") as dead:
        (queue,) = await dead.queues()
        assert [message.body for message in (await dead.pull(queue, 0)).messages] == [b"bad"]


async def test_broadcasting_delivers_everything_to_all_and_stores_offsets(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.send("T", [b"%d" % n for n in range(10)])
    seen: dict[str, list[bytes]] = defaultdict(list)

    def member(name: str) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            seen[name].append(message.body)
            if message.body == b"3":
                raise ValueError("does not come again")

        return consumer_of(
            cluster,
            handle,
            model=MessageModel.BROADCASTING,
            instance_name=name,
            offsets_directory=tmp_path,
        )

    async with member("one"), member("two"):
        await until(lambda: len(seen["one"]) == len(seen["two"]) == 10)
    files = tmp_path.glob("*@one/g/offsets.json")  # noqa: ASYNC240 - a test may wait
    assert len([*files]) == 1
    await cluster.send("T", [b"later"])
    async with member("one"):
        await until(lambda: len(seen["one"]) > 10)
    assert seen["one"][10:] == [b"later"]


async def test_a_slow_broadcasting_member_resumes_after_its_restart(
    cluster: Cluster, tmp_path: Path
) -> None:
    bodies = [b"%d" % n for n in range(101)]
    fast: list[bytes] = []
    slow: list[bytes] = []
    gate = asyncio.Event()

    async def handle_slowly(message: ReceivedMessage) -> None:
        if len(slow) >= 25:
            await gate.wait()
        slow.append(message.body)

    async def handle_fast(message: ReceivedMessage) -> None:
        fast.append(message.body)

    def member(handler: Any) -> PushConsumer:
        # Like two programs on one machine, without instance names.
        return consumer_of(
            cluster,
            handler,
            model=MessageModel.BROADCASTING,
            offsets_directory=tmp_path,
            close_grace=0.01,
            max_handlers=1,
        )

    async with member(handle_fast) as other:
        async with member(handle_slowly) as first:
            assert first.client_id != other.client_id
            await cluster.send("T", bodies)
            await until(lambda: len(fast) == 101 and len(slow) == 25)
        gate.set()
        async with member(handle_slowly) as again:
            assert again.client_id == first.client_id
            await until(lambda: len(slow) >= 101)
    assert sorted(slow) == sorted(fast) == sorted(bodies)


async def test_a_hanging_handler_is_abandoned(cluster: Cluster) -> None:
    await cluster.send("T", [b"slow"])
    calls: list[int] = []
    cancelled: list[bool] = []

    async def handle(message: ReceivedMessage) -> None:
        calls.append(message.reconsume_times)
        if message.reconsume_times == 0:
            try:
                await asyncio.sleep(DEADLINE)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    async with consumer_of(cluster, handle, consume_timeout=0.2, max_handlers=1):
        await until(lambda: calls == [0, 1])
    assert cancelled == [True]


async def test_a_slow_handler_pauses_the_pulls(cluster: Cluster) -> None:
    await cluster.send("T", [b"x" * 1000 for _ in range(100)])
    gate = asyncio.Event()
    handled: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        await gate.wait()
        handled.append(message)

    async with consumer_of(cluster, handle, pull_batch_size=2, max_cached_messages=4) as consumer:

        def cached() -> list[int]:
            infos = consumer.running_info().mq_table
            return [info.cached_msg_count for queue, info in infos.items() if queue.topic == "T"]

        await until(lambda: len(cached()) == 4 and min(cached()) >= 4)
        assert max(cached()) < 6
        gate.set()
        await until(lambda: len(handled) == 100)
    assert await cluster.committed("T", "g") == 100


async def test_pause_and_resume(cluster: Cluster) -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    await cluster.send("T", [b"before"])
    async with consumer_of(cluster, handle) as consumer:
        await until(lambda: seen == [b"before"])
        consumer.pause()
        await cluster.send("T", [b"%d" % n for n in range(8)])
        # Responses to held pulls arrive now and are dropped.
        async with PullConsumer(cluster.namesrv, "T") as other:
            assert sum([await other.max_offset(q) for q in await other.queues()]) == 9
        await asyncio.sleep(0.1)
        assert seen == [b"before"]
        one = consumer.assignment()[1]
        consumer.pause([one])
        consumer.resume()
        consumer.pause([one])
        await until(lambda: len(seen) >= 7)
        consumer.resume([one])
        await until(lambda: len(seen) == 9)


async def test_subscriptions_can_change(cluster: Cluster) -> None:
    await cluster.send("T", [b"t"])
    await cluster.send("U", [b"red"], tags="red", properties={"price": "3"})
    await cluster.send("U", [b"blue"], tags="blue", properties={"price": "30"})
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with consumer_of(cluster, handle) as consumer:
        await until(lambda: seen == [b"t"])
        await consumer.subscribe("U", Subscription.sql("price > 10"))
        await until(lambda: seen == [b"t", b"blue"])
        await consumer.unsubscribe("T")
        assert {queue.topic for queue in consumer.assignment()} == {"U", "%RETRY%g"}


async def test_consumption_resumes_after_a_broker_restart(
    cluster: Cluster,
) -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    await cluster.send("T", [b"before"])
    async with consumer_of(cluster, handle) as consumer:
        await until(lambda: seen == [b"before"])
        await cluster.broker.stop()
        await cluster.start_broker()
        await cluster.send("T", [b"after"])
        await until(lambda: seen[1:] == [b"after"])
        group = cluster.broker.consumers.find("g")
        assert group is not None
        assert consumer.assignment()


async def test_administrators_can_inspect_and_act(cluster: Cluster) -> None:
    await cluster.send("T", [b"%d" % n for n in range(8)])
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> Retry | None:
        seen.append(message.body)
        if seen.count(b"3") == 3:
            raise ValueError("thrice")
        return None

    async with consumer_of(cluster, handle) as consumer:
        await until(lambda: len(seen) == 8)
        answer = await cluster.ask(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            consumerGroup="g",
            clientId=consumer.client_id,
            jstackEnable="true",
        )
        info = ConsumerRunningInfo.decode(answer.body)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {data.topic for data in info.subscription_set} == {"T", "%RETRY%g"}
        assert sum(q.commit_offset for mq, q in info.mq_table.items() if mq.topic == "T") == 8
        assert info.status_table["T"].consume_ok_tps > 0
        assert "handle" in (info.jstack or "") or "_read" in (info.jstack or "")

        # Everything again, from the beginning.
        answer = await cluster.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic="T",
            group="g",
            timestamp="0",
            isForce="true",
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await until(lambda: len(seen) == 16)

        answer = await cluster.ask(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            topic="T",
            group="g",
            clientAddr=consumer.client_id,
        )
        status = GetConsumerStatusBody.decode(answer.body).consumer_table[consumer.client_id]
        assert sum(status.values()) == 8

        async with PullConsumer(cluster.namesrv, "T") as reader:
            pulled = [await reader.pull(queue, 0) for queue in await reader.queues()]
        (three,) = [m for result in pulled for m in result.messages if m.body == b"3"]
        answer = await cluster.ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup="g",
            clientId=consumer.client_id,
            msgId=three.offset_msg_id,
            brokerName="broker-a",
        )
        result = ConsumeMessageDirectlyResult.decode(answer.body)
        assert result.consume_result is DirectResult.CR_THROW_EXCEPTION
        assert result.remark == "ValueError: thrice"


async def test_a_handler_may_close_its_consumer(cluster: Cluster) -> None:
    await cluster.send("T", [b"the end"])

    async def handle(_message: ReceivedMessage) -> None:
        await consumer.close()

    consumer = consumer_of(cluster, handle)
    await consumer.start()
    await consumer.closed()
    assert await cluster.committed("T", "g") == 1


async def test_a_message_nobody_takes_back_is_retried_locally(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_module, "LOCAL_RETRY_SECONDS", 0.05)
    await cluster.send("T", [b"x"])
    calls: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        calls.append(message.reconsume_times)
        if len(calls) < 3:
            raise ValueError("not yet")

    consumer = consumer_of(cluster, handle)

    async def nobody(*_: object) -> bool:
        return False

    consumer._handling._send_back = nobody
    async with consumer:
        await until(lambda: calls == [0, 1, 2])
    assert await cluster.committed("T", "g") == 1


async def test_consumed_messages_are_traced(cluster: Cluster) -> None:
    await cluster.send("T", [b"x"])
    seen: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message)

    async with consumer_of(cluster, handle, trace="TRACES"):
        await until(lambda: len(seen) == 1)
    async with PullConsumer(cluster.namesrv, "TRACES") as reader:
        pulled = [await reader.pull(queue, 0) for queue in await reader.queues()]
    text = b"".join(message.body for result in pulled for message in result.messages).decode()
    for kind in ("SubBefore", "SubAfter"):
        assert kind in text
    assert seen[0].msg_id in text


async def test_handlers_do_not_see_the_namespace(cluster: Cluster) -> None:
    async with Producer(cluster.namesrv, namespace="tenant") as producer:
        await producer.send(Message("T", b"ours"))
    await cluster.send("T", [b"theirs"])
    seen: list[tuple[str, bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.topic, message.body, message.reconsume_times))
        if len(seen) == 1:
            raise ValueError("once more")

    async with consumer_of(cluster, handle, namespace="tenant") as consumer:
        await until(lambda: len(seen) == 2)
        assert {queue.topic for queue in consumer.assignment()} == {"T", "%RETRY%g"}
    assert seen == [("T", b"ours", 0), ("T", b"ours", 1)]
