"""How many messages a group handles twice while members come and go: ours and Java's.

    python -m tests.clients.measure_handover pyromq apache java    (or some of them)

Three members, 500 messages a second in 8 queues, handlers that take 5 ms, four rounds of closing
the oldest member, 2 s later starting another, 2 s later the next round. `pyromq` and `apache` are
our push consumers at each broker, `lite` our lite pull consumers at ours, `java` Java's push
consumers at Apache's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from pyromq.client import (
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tests.interop.client_driver import ClientDriver
from tests.interop.client_programs import java_driver
from tests.interop.cluster import Cluster
from tests.support.apache_rocketmq import VERSION

MEMBERS, ROUNDS, QUEUES = 3, 4, 8
RATE, BETWEEN_SECONDS, HANDLER_SECONDS = 500, 2.0, 0.005


class Member(Protocol):
    async def close(self) -> None: ...


class Ours:
    """Our push consumers."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.handled: Counter[str] = Counter()

    async def join(self) -> Member:
        consumer = PushConsumer(
            self._namesrv,
            group="g",
            handler=self._handle,
            subscriptions={"t": "*"},
            start_from=StartFrom.FIRST,
        )
        await consumer.start()
        return consumer

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(HANDLER_SECONDS)
        self.handled[message.body.decode()] += 1


class OurReaders:
    """Our lite pull consumers."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.handled: Counter[str] = Counter()

    async def join(self) -> Member:
        return Reader(LitePullConsumer(self._namesrv, group="g", start_from=StartFrom.FIRST), self)


class Reader:
    def __init__(self, consumer: LitePullConsumer, owner: OurReaders) -> None:
        self._is_closing = False
        self._task = asyncio.create_task(self._read(consumer, owner.handled))

    async def close(self) -> None:
        self._is_closing = True
        await self._task

    async def _read(self, consumer: LitePullConsumer, handled: Counter[str]) -> None:
        async with consumer:
            await consumer.subscribe("t")
            while not self._is_closing:
                messages = await consumer.poll(0.2)
                await asyncio.sleep(HANDLER_SECONDS)
                handled.update(message.body.decode() for message in messages)


class Javas:
    """Java's push consumers."""

    def __init__(self, namesrv: str, driver: ClientDriver) -> None:
        self._namesrv = namesrv
        self._driver = driver
        self._names: list[str] = []

    @property
    def handled(self) -> Counter[str]:
        return Counter(line["body"] for name in self._names for line in self._driver.reports(name))

    async def join(self) -> Member:
        name = f"member-{len(self._names)}"
        self._names.append(name)
        await asyncio.to_thread(
            self._driver.consumer,
            name,
            self._namesrv,
            "g",
            "t",
            handlerMillis=int(HANDLER_SECONDS * 1000),
        )
        return JavaMember(self._driver, name)


class JavaMember:
    def __init__(self, driver: ClientDriver, name: str) -> None:
        self._driver = driver
        self._name = name

    async def close(self) -> None:
        await asyncio.to_thread(self._driver.close, self._name)


async def measure(namesrv: str, members: Ours | OurReaders | Javas) -> str:
    sent = 0
    is_enough = False

    async def send_on() -> None:
        nonlocal sent
        async with Producer(namesrv) as producer:
            began = time.monotonic()
            while not is_enough:
                await producer.send(Message("t", b"%d" % sent))
                sent += 1
                await asyncio.sleep(max(0.0, began + sent / RATE - time.monotonic()))

    sending = asyncio.create_task(send_on())
    group = [await members.join() for _ in range(MEMBERS)]
    await asyncio.sleep(BETWEEN_SECONDS)
    for _ in range(ROUNDS):
        await group.pop(0).close()
        await asyncio.sleep(BETWEEN_SECONDS)
        group.append(await members.join())
        await asyncio.sleep(BETWEEN_SECONDS)
    is_enough = True
    await sending
    for _ in range(60):
        if len(members.handled) >= sent:
            break
        await asyncio.sleep(1)
    handled = members.handled
    await asyncio.gather(*(member.close() for member in group))
    repeated = sum(count > 1 for count in handled.values())
    return f"{sent} sent, {sent - len(handled)} lost, {repeated} handled more than once"


def ours(kind: str, make: Callable[[str], Ours | OurReaders]) -> str:
    with Cluster(kind) as cluster:  # type: ignore[arg-type]
        cluster.create_topic("t", QUEUES)
        return asyncio.run(measure(cluster.namesrv_address, make(cluster.namesrv_address)))


def javas() -> str:
    with Cluster("apache") as cluster, java_driver(VERSION) as driver:
        cluster.create_topic("t", QUEUES)
        members = Javas(cluster.namesrv_address, driver)
        return asyncio.run(measure(cluster.namesrv_address, members))


def main(names: list[str]) -> None:
    cases: dict[str, Callable[[], str]] = {
        "pyromq": lambda: ours("pyromq", Ours),
        "lite": lambda: ours("pyromq", OurReaders),
        "apache": lambda: ours("apache", Ours),
        "java": javas,
    }
    for name in names or cases:
        print(f"{name}: {cases[name]()}", flush=True)  # noqa: T201 - its result


if __name__ == "__main__":
    main(sys.argv[1:])
