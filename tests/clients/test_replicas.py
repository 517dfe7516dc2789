"""The master of a pair is lost: consumers go on from the replica, and return to the master.

What must hold: no consumer loses its place, nothing is delivered twice to a consumer that keeps
running, and the master that returns learns how far the groups got without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from pyromq.client import (
    ClientOptions,
    LitePullConsumer,
    Message,
    MessageQueue,
    NoMasterError,
    Order,
    Producer,
    PullConsumer,
    PushConsumer,
    RocketMQError,
    StartFrom,
)
from pyromq.client.consumer import membership as membership_module
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader, QueryConsumerOffsetRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.spark.origins.broker import BrokerOrigin, ConnectionSettings
from pyromq.spark.origins.origin import QueueRange, RecordBlock, UnreachableError
from tests.clients.cases import Inbox, eventually, numbered
from tests.support.java_pair import COPY_SECONDS, Node, Role
from tests.support.patience import DEADLINE
from tests.support.replication_nodes import Kind, name_server, pair

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

#: What is seconds for an operator is half of one here.
QUICK: ClientOptions = {"heartbeat_interval": 0.5, "route_interval": 0.5}
QUEUES = 4
#: Masters and their replicas; pairs with Java take a minute each.
PAIRS: list[tuple[Kind, Kind]] = [("pyromq", "pyromq")]
SLOW_PAIRS: list[tuple[Kind, Kind]] = [("java", "java"), ("pyromq", "java"), ("java", "pyromq")]


class Pair(NamedTuple):
    """A master, its replica, and the NameServer of both."""

    namesrv: str
    master: Node
    replica: Node

    async def create_topic(self, topic: str) -> None:
        """Make a topic and wait until the replica knows it, too."""
        header = CreateTopicRequestHeader(topic, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG", 0)
        command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.encode())
        client = RemotingClient()
        answer = await client.request(self.master.address, command, DEADLINE)
        assert answer.code == ResponseCode.SUCCESS, answer
        await client.close()
        topics = self.replica.store / "config" / "topics.json"

        async def is_copied() -> bool:
            return topics.exists() and f'"{topic}"' in topics.read_text()

        await eventually(is_copied, COPY_SECONDS)

    async def until_copied(self) -> None:
        """Wait until the replica has every message."""
        end = await asyncio.to_thread(self.master.log_end)
        await asyncio.to_thread(self.replica.wait_for_log_end, end)

    async def committed(self, node: Node, group: str, topic: str) -> int:
        """The sum of a group's offsets, as one of the two brokers has them."""
        client = RemotingClient()
        total = 0
        for number in range(QUEUES):
            header = QueryConsumerOffsetRequestHeader(group, topic, number)
            answer = await client.request(
                node.address,
                RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=header.encode()),
                DEADLINE,
            )
            if answer.code == ResponseCode.SUCCESS:
                total += int(answer.ext_fields["offset"])
        await client.close()
        return total

    async def until_committed(self, node: Node, group: str, topic: str, count: int) -> None:
        async def is_there() -> bool:
            return await self.committed(node, group, topic) == count

        await eventually(is_there)


@pytest.fixture(
    scope="module",
    params=[*PAIRS, *(pytest.param(each, marks=pytest.mark.soak) for each in SLOW_PAIRS)],
    ids="-".join,
)
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    directory: Path = tmp_path_factory.mktemp("pair")
    master_kind, replica_kind = request.param
    with (
        name_server() as namesrv,
        pair(
            master_kind,
            replica_kind,
            directory,
            namesrv,
            role=Role.ASYNC_MASTER,
            slaveReadEnable="true",
        ) as (master, replica),
    ):
        yield Pair(namesrv, master, replica)


@pytest.fixture(autouse=True)
def quick_rebalancing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.5)


async def send(brokers: Pair, topic: str, bodies: list[bytes]) -> None:
    async with Producer(brokers.namesrv, **QUICK) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


class Readers:
    """One consumer of each kind, each alone in its group, and what it got."""

    def __init__(self, brokers: Pair, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self.inboxes = {name: Inbox() for name in ("concurrent", "orderly", "lite", "pull")}
        self._positions: dict[MessageQueue, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_paused = False

    def group(self, name: str) -> str:
        return f"{name}-{self._topic}"

    async def start(self, stack: AsyncExitStack) -> None:
        brokers, topic = self._brokers, self._topic
        self._pushing = [
            await stack.enter_async_context(
                PushConsumer(
                    brokers.namesrv,
                    group=self.group(name),
                    handler=self.inboxes[name],
                    subscriptions={topic: "*"},
                    start_from=StartFrom.FIRST,
                    order=order,
                    commit_interval=0.2,
                    **QUICK,
                )
            )
            for name, order in (("concurrent", Order.CONCURRENT), ("orderly", Order.ORDERLY))
        ]
        self._lite = await stack.enter_async_context(
            LitePullConsumer(
                brokers.namesrv,
                group=self.group("lite"),
                start_from=StartFrom.FIRST,
                commit_interval=0.2,
                **QUICK,
            )
        )
        await self._lite.subscribe(topic)
        self._pulling = await stack.enter_async_context(
            PullConsumer(brokers.namesrv, topic, group=self.group("pull"), **QUICK)
        )
        for work in (self._read, self._pull):
            self._tasks.append(asyncio.create_task(work()))
        stack.push_async_callback(self._stop)

    def pause(self) -> None:
        self._is_paused = True
        for consumer in self._pushing:
            consumer.pause()
        self._lite.pause()

    def resume(self) -> None:
        self._is_paused = False
        for consumer in self._pushing:
            consumer.resume()
        self._lite.resume()

    async def until_exactly(self, bodies: list[bytes]) -> None:
        """Each consumer has had each message, and none twice."""
        for inbox in self.inboxes.values():
            await inbox.until_exactly(bodies)

    async def _read(self) -> None:
        async for message in self._lite:
            self.inboxes["lite"].put(message)

    async def _pull(self) -> None:
        """A program that keeps its own offsets, and also commits them."""
        queues = await self._pulling.queues()
        while True:
            for queue in [] if self._is_paused else queues:
                offset = self._positions.get(queue, 0)
                try:
                    result = await self._pulling.pull(queue, offset)
                    for message in result.messages:
                        self.inboxes["pull"].put(message)
                    self._positions[queue] = result.next_offset
                    await self._pulling.commit(queue, result.next_offset)
                except RocketMQError:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(0.01)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_consumers_go_on_from_the_replica_and_return(brokers: Pair, end: str) -> None:
    topic = f"away-{end}"
    finish: Callable[[], None] = getattr(brokers.master, end)
    await brokers.create_topic(topic)
    readers = Readers(brokers, topic)
    early, late, after = (numbered(60, prefix) for prefix in ("early", "late", "after"))
    async with AsyncExitStack() as stack:
        await readers.start(stack)
        await send(brokers, topic, early)
        await readers.until_exactly(early)
        readers.pause()
        await send(brokers, topic, late)
        await brokers.until_copied()
        await asyncio.to_thread(finish)
        try:
            readers.resume()
            await readers.until_exactly([*early, *late])
            await assert_nobody_writes(brokers, topic)
            for name in readers.inboxes:
                await brokers.until_committed(
                    brokers.replica, readers.group(name), topic, len([*early, *late])
                )
        finally:
            await asyncio.to_thread(brokers.master.start)
        for name in readers.inboxes:
            await brokers.until_committed(
                brokers.master, readers.group(name), topic, len([*early, *late])
            )
        await eventually(lambda: can_send(brokers, topic, after[0]))
        await send(brokers, topic, after[1:])
        await readers.until_exactly([*early, *late, *after])


async def assert_nobody_writes(brokers: Pair, topic: str) -> None:
    async with Producer(brokers.namesrv, retries=0, **QUICK) as producer:
        with pytest.raises(
            NoMasterError, match=f"pair has no master: only replica {brokers.replica.address} "
        ):
            await producer.send(Message(topic, b"nowhere"))


async def can_send(brokers: Pair, topic: str, body: bytes) -> bool:
    try:
        await send(brokers, topic, [body])
    except NoMasterError:
        return False
    return True


async def test_a_group_that_starts_without_its_master_continues_where_it_was(
    brokers: Pair,
) -> None:
    topic, group = "restarted", "restarted"
    await brokers.create_topic(topic)
    bodies = numbered(40)
    inbox = Inbox()

    def consumer(inbox: Inbox) -> PushConsumer:
        return PushConsumer(
            brokers.namesrv,
            group=group,
            handler=inbox,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
            commit_interval=0.2,
            **QUICK,
        )

    async with consumer(inbox):
        await send(brokers, topic, bodies[:20])
        await inbox.until_exactly(bodies[:20])
    # The replica copies the offsets every 10 s.
    await brokers.until_committed(brokers.replica, group, topic, 20)
    await send(brokers, topic, bodies[20:])
    await brokers.until_copied()
    await asyncio.to_thread(brokers.master.kill)
    try:
        inboxes = [Inbox(), Inbox()]

        def everything() -> list[bytes]:
            return sorted(body for inbox in inboxes for body in inbox.bodies)

        async with consumer(inboxes[0]), consumer(inboxes[1]):
            # Both are members for the replica, and share its queues.
            await eventually_true(lambda: everything() == sorted(bodies[20:]))
    finally:
        await asyncio.to_thread(brokers.master.start)


async def test_a_spark_read_gets_the_same_rows_from_the_replica(brokers: Pair) -> None:
    """A task that has begun at the master, and one that begins without it."""
    topic = "spark"
    await brokers.create_topic(topic)
    await send(brokers, topic, numbered(400))
    await brokers.until_copied()

    def open_origin() -> BrokerOrigin:
        return BrokerOrigin(ConnectionSettings((brokers.namesrv,), request_timeout=DEADLINE))

    def read(wanted: QueueRange, *, kills: bool) -> list[bytes]:
        """The records of a range; Java returns 32 of them at a time."""
        found: list[bytes] = []
        with closing(open_origin()) as origin:
            for block in origin.blocks(wanted):
                assert isinstance(block, RecordBlock), block
                buffer = memoryview(block.buffer)
                ends = [*block.starts.tolist()[1:], len(buffer)]
                found += [
                    bytes(buffer[start:end])
                    for start, end in zip(block.starts.tolist(), ends, strict=True)
                ]
                if kills and brokers.master.runs:
                    brokers.master.kill()
        return found

    def compare() -> None:
        with closing(open_origin()) as origin:
            bounds = origin.bounds(origin.queues(topic))
        ranges = [QueueRange(queue, *each) for queue, each in sorted(bounds.items())]
        expected = [read(wanted, kills=False) for wanted in ranges]
        assert sum(map(len, expected)) == 400
        assert [read(wanted, kills=True) for wanted in ranges] == expected
        with closing(open_origin()) as origin:
            # A stream goes on; a query that begins may not know too little.
            assert origin.latest_bounds(bounds) == (bounds, frozenset(bounds))
            with pytest.raises(UnreachableError, match="pair has no master: only replica"):
                origin.bounds(bounds)

    try:
        await asyncio.to_thread(compare)
    finally:
        if not brokers.master.runs:
            await asyncio.to_thread(brokers.master.start)


async def eventually_true(condition: Callable[[], bool]) -> None:
    async def look() -> bool:
        return condition()

    await eventually(look)
