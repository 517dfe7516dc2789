"""One of two brokers is killed, or falls silent, while clients produce and consume.

What must hold: no acknowledged message is lost, messages go on being stored at the other
broker, everything is delivered once the broker is back, and groups that consume in order
stay in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator

import pytest

from pyromq.client import (
    ClientOptions,
    LitePullConsumer,
    Message,
    Order,
    Producer,
    PushConsumer,
    RocketMQError,
    StartFrom,
)
from pyromq.client.consumer import membership as membership_module
from tests.clients.cases import Inbox, eventually
from tests.clients.test_bad_input import name_server_of, server
from tests.interop.cluster import Cluster, Kind
from tests.support.crash import seeds

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

BROKERS = ("broker-a", "broker-b")
#: What is seconds for an operator is half of one here.
QUICK: ClientOptions = {"heartbeat_interval": 0.5, "route_interval": 0.5}
KEYS = [f"key-{number}" for number in range(12)]


@pytest.fixture(scope="module", params=["pyromq", pytest.param("apache", marks=pytest.mark.soak)])
def pair(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    kind: Kind = request.param
    with Cluster(kind, BROKERS) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def quick_rebalancing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.5)


class Traffic:
    """Producers and consumers at work until they are told to stop."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.namesrv = namesrv
        self.topic = topic
        self.ordered_topic = f"{topic}-ordered"
        self.acknowledged: list[bytes] = []
        self.refused: list[RocketMQError] = []
        self.ordered = Counter[str]()
        self.inbox, self.orderly_inbox, self.lite_inbox = Inbox(), Inbox(), Inbox()
        self._stop = asyncio.Event()

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[Traffic]:
        async with (
            PushConsumer(
                self.namesrv,
                group=f"group-{self.topic}",
                handler=self.inbox,
                subscriptions={self.topic: "*"},
                start_from=StartFrom.FIRST,
                **QUICK,
            ),
            PushConsumer(
                self.namesrv,
                group=f"orderly-{self.topic}",
                handler=self.orderly_inbox,
                subscriptions={self.ordered_topic: "*"},
                start_from=StartFrom.FIRST,
                order=Order.ORDERLY,
                **QUICK,
            ),
            LitePullConsumer(
                self.namesrv, group=f"lite-{self.topic}", start_from=StartFrom.FIRST, **QUICK
            ) as lite,
            # More attempts than the fault asks for: the machine may stall, too.
            Producer(self.namesrv, send_timeout=1.0, retries=9, **QUICK) as producer,
        ):
            await lite.subscribe(self.topic)
            self._producing = [
                *(asyncio.create_task(self._produce(producer, number)) for number in range(8)),
                *(asyncio.create_task(self._produce_in_order(producer, key)) for key in KEYS),
            ]
            reading = asyncio.create_task(self._read(lite))
            try:
                yield self
            finally:
                self._stop.set()
                reading.cancel()
                await asyncio.gather(reading, *self._producing, return_exceptions=True)

    async def finish(self) -> None:
        """Send no more, and wait until every consumer has had everything."""
        self._stop.set()
        await asyncio.gather(*self._producing)
        for inbox in (self.inbox, self.lite_inbox):
            await inbox.until_bodies(self.acknowledged, 60.0)
        everything = [
            f"{key}/{number}".encode() for key in KEYS for number in range(self.ordered[key])
        ]
        await self.orderly_inbox.until_bodies(everything, 60.0)

    async def until_sent(self, count: int) -> None:
        """Wait until so many more were acknowledged."""
        wanted = len(self.acknowledged) + count

        async def sent() -> bool:
            return len(self.acknowledged) >= wanted

        await eventually(sent)

    def assert_order(self) -> None:
        """Each key's messages came in their order; what came again does not count."""
        seen = defaultdict(list)
        for body in self.orderly_inbox.bodies:
            key, number = body.decode().split("/")
            seen[key].append(int(number))
        for key, numbers in seen.items():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == list(range(self.ordered[key])), (key, numbers)

    async def _produce(self, producer: Producer, producer_number: int) -> None:
        number = 0
        while not self._stop.is_set():
            body = f"{producer_number}/{number}".encode()
            number += 1
            try:
                await producer.send(Message(self.topic, body))
            except RocketMQError as error:
                self.refused.append(error)
            else:
                self.acknowledged.append(body)
            await asyncio.sleep(0.005)

    async def _produce_in_order(self, producer: Producer, key: str) -> None:
        """Always to the same queue, the next only when the last is stored: so order is kept.

        An ordering key alone would go elsewhere while its broker is away.
        """
        queues = await producer.queues(self.ordered_topic)
        queue = queues[KEYS.index(key) % len(queues)]
        while not self._stop.is_set():
            message = Message(self.ordered_topic, f"{key}/{self.ordered[key]}".encode())
            try:
                await producer.send(message, queue)
            except RocketMQError:
                await asyncio.sleep(0.05)
            else:
                self.ordered[key] += 1
                await asyncio.sleep(0.02)

    async def _read(self, consumer: LitePullConsumer) -> None:
        async for message in consumer:
            self.lite_inbox.put(message)


async def test_a_path_that_was_cut_without_a_word(pair: Cluster) -> None:
    """Connections stay open and carry nothing any more, as behind a firewall that forgot them."""
    topic = await asyncio.to_thread(pair.create_topic, "cut", 1)
    host, port = pair.broker_address("broker-a").split(":")
    cut = asyncio.Event()
    paths: list[asyncio.Task[None]] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        own = [asyncio.create_task(carry(reader, back)), asyncio.create_task(carry(there, writer))]
        paths.extend(own)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*own)
        await cut.wait()  # and nobody is told
        back.close()

    async with (
        server(serve) as proxy,
        server(name_server_of(proxy)) as namesrv,
        contextlib.AsyncExitStack() as stack,
    ):
        stack.callback(cut.set)
        inbox = Inbox()
        options: ClientOptions = {**QUICK, "request_timeout": 3.0}
        producer = await stack.enter_async_context(
            Producer(namesrv, send_timeout=1.0, retries=9, **options)
        )
        await stack.enter_async_context(
            PushConsumer(
                namesrv,
                group="cut",
                handler=inbox,
                subscriptions={topic: "*"},
                start_from=StartFrom.FIRST,
                **options,
            )
        )
        await producer.send(Message(topic, b"before"))
        await inbox.until_bodies([b"before"])
        for path in paths:
            path.cancel()
        await producer.send(Message(topic, b"after"))
        await inbox.until_bodies([b"before", b"after"])


async def one_round(pair: Cluster, fault: str, name: str, rng: random.Random) -> None:
    traffic = Traffic(pair.namesrv_address, name)
    await asyncio.to_thread(pair.create_topic, traffic.topic, 2)
    await asyncio.to_thread(pair.create_topic, traffic.ordered_topic, 2)
    victim = rng.choice(BROKERS)
    async with traffic.at_work():
        await traffic.inbox.until_count(rng.randrange(20, 200))
        if fault == "kill":
            await asyncio.to_thread(pair.stop_broker, victim, kill=True)
        else:
            pair.signal_broker(victim, signal.SIGSTOP)
        try:
            # The other broker takes what comes, longer than an attempt may last.
            fell = time.monotonic()
            while time.monotonic() - fell < 1.5 + rng.random():
                await traffic.until_sent(20)
        finally:
            if fault == "kill":
                await asyncio.to_thread(pair.start_broker, victim)
            else:
                pair.signal_broker(victim, signal.SIGCONT)
        await traffic.until_sent(100)
        await traffic.finish()
    assert not traffic.refused, f"{len(traffic.refused)} refused, as {traffic.refused[:3]}"
    traffic.assert_order()


@pytest.mark.parametrize("fault", ["kill", "silence"])
async def test_no_acknowledged_message_is_lost(pair: Cluster, fault: str) -> None:
    await one_round(pair, fault, f"{fault}-once", random.Random(1))


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(10))
async def test_no_acknowledged_message_is_lost_in_many_rounds(pair: Cluster, seed: int) -> None:
    rng = random.Random(seed)
    await one_round(pair, rng.choice(["kill", "silence"]), f"soak-{seed}", rng)
