"""Lite pull consumers on real sockets: groups, filters, seeks, broker restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.client import (
    BrokerError,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    OptionError,
    Producer,
    ReceivedMessage,
    StartFrom,
    Subscription,
)
from pyromq.client.consumer import membership as membership_module
from pyromq.client.consumer.lite_pull import assigned_queues as assigned_queues_module
from pyromq.client.consumer.lite_pull import readers as queue_readers_module
from pyromq.client.consumer.lite_pull import subscriber as subscriber_module
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until

FIRST = StartFrom.FIRST


class Cluster:
    """A NameServer, and brokers that can be restarted."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._name_server = NameServer(
            NamesrvConfig(
                listen_port=0, bind_address="127.0.0.1", kv_config_path=str(root / "kv.json")
            )
        )
        self.brokers: dict[str, Broker] = {}

    async def start(self) -> None:
        await self._name_server.start()
        self.namesrv = f"127.0.0.1:{self._name_server.port}"

    async def start_broker(self, name: str = "a", *, port: int = 0, filters: bool = True) -> None:
        config = local_broker(
            broker_name=name,
            listen_port=port,
            namesrv_addr=self.namesrv,
            default_topic_queue_nums=4,
            enable_property_filter=filters,
        )
        self.brokers[name] = Broker(config, small_store(self._root / name))
        await self.brokers[name].start()

    async def restart_broker(self, name: str = "a") -> None:
        port = int(self.brokers[name].address.rsplit(":", 1)[1])
        await self.brokers.pop(name).stop()
        await self.start_broker(name, port=port)

    async def make_topic(self, broker: str, topic: str, queues: int) -> None:
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        client = RemotingClient()
        command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.encode())
        answer = await client.request(self.brokers[broker].address, command)
        assert answer.code == ResponseCode.SUCCESS
        await client.close()

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()
        await self._name_server.stop()


@asynccontextmanager
async def cluster_in(root: Path, *, filters: bool = True) -> AsyncIterator[Cluster]:
    cluster = Cluster(root)
    await cluster.start()
    await cluster.start_broker(filters=filters)
    try:
        async with asyncio.timeout(DEADLINE):
            yield cluster
    finally:
        await cluster.stop()


async def send(cluster: Cluster, topic: str, count: int, start: int = 0) -> None:
    async with Producer(cluster.namesrv) as producer:
        for number in range(start, start + count):
            await producer.send(
                Message(
                    topic,
                    b"%d" % number,
                    tags="even" if number % 2 == 0 else "odd",
                    properties={"number": str(number)},
                )
            )


async def take(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    return [await anext(consumer) for _ in range(count)]


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


async def test_a_group_reads_everything_once_across_restarts(tmp_path: Path) -> None:
    async with cluster_in(tmp_path) as cluster:
        await send(cluster, "t", 40)
        seen: list[int] = []
        for _ in range(4):
            async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
                await consumer.subscribe("t")
                seen += numbers(await take(consumer, 10))
        assert sorted(seen) == list(range(40))


async def test_two_members_share_and_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.2)
    async with cluster_in(tmp_path) as cluster:
        await send(cluster, "t", 1)
        revoked: list[MessageQueue] = []
        first = LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST)
        async with first:
            await first.subscribe("t", on_revoked=revoked.extend)
            assert numbers(await take(first, 1)) == [0]
            async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as second:
                await second.subscribe("t")
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
                assert len(revoked) == 2
                assert not set(first.assignment()) & set(second.assignment())
            await until(lambda: len(first.assignment()) == 4)
            await send(cluster, "t", 8, start=1)
            seen: set[int] = set()
            while not seen >= set(range(1, 9)):  # 0 is delivered again if it was in hand
                seen.update(numbers(await first.poll()))


class Member:
    """Read `t` until told to leave, between two messages or two lists."""

    def __init__(self, cluster: Cluster, seen: Counter[int], *, takes_lists: bool) -> None:
        self._consumer = LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST)
        self._seen = seen
        self._takes_lists = takes_lists
        self._is_leaving = False
        self._task = asyncio.create_task(self._read())
        self.assignment = self._consumer.assignment

    async def leave(self) -> None:
        self._is_leaving = True
        await self._task

    async def close(self) -> None:
        await self._consumer.close()
        await self._task

    async def _read(self) -> None:
        async with self._consumer as consumer:
            await consumer.subscribe("t")
            if self._takes_lists:
                async for messages in consumer.batches():
                    if await self._take(messages):
                        break
            else:
                async for message in consumer:
                    if await self._take([message]):
                        break

    async def _take(self, messages: list[ReceivedMessage]) -> bool:
        await asyncio.sleep(0.001)
        self._seen.update(numbers(messages))
        return self._is_leaving


@pytest.mark.parametrize("takes_lists", [False, True])
async def test_members_joining_and_leaving_under_load_cause_no_duplicates(
    tmp_path: Path, takes_lists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reader may take long on a stalled machine.
    for module in (assigned_queues_module, subscriber_module):
        monkeypatch.setattr(module, "READER_SECONDS", DEADLINE)
    seen: Counter[int] = Counter()
    members: list[Member] = []
    sent = 0
    is_enough = asyncio.Event()

    async def send_on() -> None:
        nonlocal sent
        async with Producer(cluster.namesrv) as producer:
            while not is_enough.is_set():
                if sent - len(seen) < 60:
                    await producer.send(Message("t", b"%d" % sent))
                    sent += 1
                await asyncio.sleep(0.002)

    def join() -> None:
        members.append(Member(cluster, seen, takes_lists=takes_lists))

    def is_shared() -> bool:
        owned = [queue for member in members for queue in member.assignment()]
        return len(owned) == len(set(owned)) == 4 and all(one.assignment() for one in members)

    async def settled() -> None:
        await until(is_shared)
        goal = len(seen) + 60
        await until(lambda: len(seen) >= goal)

    async with cluster_in(tmp_path) as cluster, asyncio.TaskGroup() as tasks:
        await send(cluster, "t", 1)
        sent = 1
        tasks.create_task(send_on())
        for _ in range(3):
            join()
        await settled()
        for _ in range(4):
            await members.pop(0).leave()
            await settled()
            join()
            await settled()
        is_enough.set()
        await until(lambda: len(seen) == sent)
        for member in members:
            await member.close()
    repeated = {number: count for number, count in seen.items() if count > 1}
    assert repeated == {}, f"{len(repeated)} of {sent} messages were read again"


async def test_a_slow_broadcasting_reader_resumes_after_its_restart(
    tmp_path: Path,
) -> None:
    def reader(**options: str) -> LitePullConsumer:
        return LitePullConsumer(
            cluster.namesrv,
            group="g",
            model=MessageModel.BROADCASTING,
            start_from=FIRST,
            offsets_directory=tmp_path / "offsets",
            **options,  # type: ignore[arg-type]
        )

    async with cluster_in(tmp_path) as cluster:
        await send(cluster, "t", 101)
        async with reader() as fast:
            await fast.subscribe("t")
            async with reader() as slow:
                await slow.subscribe("t")
                seen = numbers(await take(slow, 25))
                assert numbers(await take(fast, 101)) == list(range(101))
                await fast.commit()
            async with reader() as again:
                assert again.client_id == slow.client_id != fast.client_id
                await again.subscribe("t")
                assert sorted(seen + numbers(await take(again, 76))) == list(range(101))
        async with reader(instance_name="mine"):
            with pytest.raises(OptionError, match="instance_name='mine' is in use"):
                await reader(instance_name="mine").start()
        async with reader(instance_name="mine"):
            pass


async def test_two_topics_can_be_filtered_by_tags_and_sql(tmp_path: Path) -> None:
    async with cluster_in(tmp_path) as cluster:
        await send(cluster, "tags", 20)
        await send(cluster, "sql", 20)
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await consumer.subscribe(
                {"tags": "odd || other", "sql": Subscription.sql("number BETWEEN 5 AND 9")}
            )
            messages = await take(consumer, 15)
            by_topic = {
                topic: numbers([m for m in messages if m.topic == topic])
                for topic in ("tags", "sql")
            }
            assert by_topic == {"tags": list(range(1, 20, 2)), "sql": [5, 6, 7, 8, 9]}


async def test_an_unparsable_expression_is_raised(tmp_path: Path) -> None:
    async with (
        cluster_in(tmp_path) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await send(cluster, "t", 1)
        with pytest.raises(BrokerError, match="SUBSCRIPTION_PARSE_FAILED"):
            await consumer.subscribe({"t": Subscription.sql("number >")})


async def test_a_broker_without_property_filters_is_reported(tmp_path: Path) -> None:
    async with (
        cluster_in(tmp_path, filters=False) as cluster,
        LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer,
    ):
        await send(cluster, "t", 1)
        with pytest.raises(BrokerError, match="does not support"):
            await consumer.subscribe({"t": Subscription.sql("number > 1")})


async def test_seeking_and_offsets(tmp_path: Path) -> None:
    async with cluster_in(tmp_path) as cluster:
        await send(cluster, "t", 8)  # two per queue
        queue = MessageQueue("t", "a", 0)
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await consumer.assign([queue])
            old = await take(consumer, 2)
            await consumer.commit()
            assert await consumer.committed(queue) == 2
            await consumer.seek(queue, 1)
            assert await anext(consumer) == old[1]
            await consumer.seek_to_time(
                queue, datetime.fromtimestamp(old[0].store_timestamp / 1000)
            )
            assert await anext(consumer) == old[0]
            await consumer.seek_to_end(queue)
            assert await consumer.poll(0.05) == []
            await consumer.seek_to_begin(queue)
            assert await consumer.poll() == old


async def test_a_group_resumes_after_a_broker_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_readers_module, "_FIRST_PAUSE_SECONDS", 0.05)
    async with cluster_in(tmp_path) as cluster:
        await send(cluster, "t", 20)
        async with LitePullConsumer(cluster.namesrv, group="g", start_from=FIRST) as consumer:
            await consumer.subscribe("t")
            seen = set(numbers(await take(consumer, 20)))
            await cluster.restart_broker()
            await send(cluster, "t", 20, start=20)
            while len(seen) < 40:
                seen.update(numbers(await consumer.poll()))
        assert seen == set(range(40))


@pytest.mark.parametrize("group", ["g", None])
async def test_queues_added_while_reading_are_read_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.1)
    async with cluster_in(tmp_path) as cluster:
        await send(cluster, "t", 4)
        async with LitePullConsumer(cluster.namesrv, group=group, route_interval=0.1) as consumer:
            await consumer.subscribe("t")
            # Brokers start a new group with the first message of a young topic, as Java's do.
            while await consumer.poll(0.1):
                pass
            await cluster.start_broker("b")
            for name, queues in (("a", 6), ("b", 2)):
                await cluster.make_topic(name, "t", queues)
                queue = MessageQueue("t", name, queues - 1)
                async with Producer(cluster.namesrv) as producer:
                    await producer.send(Message("t", b"new"), queue=queue)
                message = await anext(consumer)
                assert (message.body, message.queue) == (b"new", queue)
            assert len(consumer.assignment()) == 8
