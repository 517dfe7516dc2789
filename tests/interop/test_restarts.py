"""A broker that goes and comes back while clients of every kind are at work: nothing is lost.

It goes in peace (SIGTERM) or is killed, and starts again on the same port and store. Producers
repeat a send until they are told that it is stored, as RocketMQ asks of them; then every consumer
must get every message at least once, ordered ones in order, and of transactions only those that
were committed. Against both brokers, as in test_clients.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.interop.cases import Case
from tests.interop.client_driver import ClientDriver, ClientError, Line
from tests.interop.client_programs import CLIENTS
from tests.interop.cluster import Cluster
from tests.support.apache_rocketmq import VERSION

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

COUNT = 60
PACE_MILLISECONDS = 40

DECISIONS = [
    ("commit", "commit"),
    ("rollback", "rollback"),
    ("unknown", "commit"),
    ("unknown", "rollback"),
]


@pytest.fixture(params=[pytest.param("apache", marks=pytest.mark.soak), "pyromq"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Not shared with other tests: its broker is restarted."""
    with Cluster(request.param) as cluster:
        yield cluster


@pytest.mark.parametrize("how", [pytest.param("stopped", marks=pytest.mark.soak), "killed"])
def test_every_kind_of_client_at_work(cluster: Cluster, how: str) -> None:
    with CLIENTS[f"java-{VERSION}"].start() as driver:
        run = Run(cluster, driver)
        sync = run.topic(
            "sync",
            [
                {"body": f"sync {n}", "tags": f"Tag{n % 2}", "properties": {"number": str(n)}}
                for n in range(COUNT)
            ],
        )
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("async", {}),
            ("batch", {}),
            ("delayed", {"delay": 1}),
            ("retried", {"properties": {"fail": "1"}}),
            ("pulled", {}),
        ]
        broadcast, batch, delayed, retried, pulled = (
            run.topic(name, [{"body": f"{name} {number}", **extra} for number in range(COUNT)])
            for name, extra in kinds
        )
        asked = run.topic("asked", [])
        ordered = run.topic(
            "ordered",
            [{"body": str(n), "properties": {"shard": str(n % 3)}} for n in range(COUNT)],
        )
        transactions = run.topic(
            "transactions",
            [
                {"body": f"{check} {number}", "properties": {"local": local, "check": check}}
                for number in range(COUNT)
                for local, check in [DECISIONS[number % len(DECISIONS)]]
            ],
        )
        sync.consumer()
        sync.lite()
        driver.consumer("tagged", run.namesrv, "tagged", sync.topic, expression="Tag1")
        driver.consumer(
            "filtered", run.namesrv, "filtered", sync.topic, expression="number > 9", sql=True
        )
        asked.consumer("replying", replies=True)
        asked.producer("asking")
        broadcast.consumer("broadcast-1", broadcast=True)
        broadcast.consumer("broadcast-2", broadcast=True)
        batch.consumer("batched")
        delayed.lite("delayed")
        retried.consumer("retried")
        ordered.consumer("orderly", orderly=True)
        transactions.consumer("committed")
        run.send(sync, "sync")
        run.send(broadcast, "async")
        run.send(batch, "batch", batch=5)
        run.send(delayed, "sync")
        run.send(retried, "sync")
        run.send(pulled, "sync")
        run.send(ordered, "ordered")
        run.send(transactions, "transaction", transactional=True)
        driver.wait_reports("consumer", lambda lines: len(lines) >= COUNT // 4)
        assert ask(driver, asked, "before") == "reply to before"
        run.restart(how)
        run.finish_sends()

        for name in ("consumer", "lite"):
            assert_at_least_once(driver.wait_bodies(name, run.bodies(sync)), run.bodies(sync))
        odd = run.bodies(sync)[1::2]
        assert_at_least_once(driver.wait_bodies("tagged", odd), odd)
        large = run.bodies(sync)[10:]
        assert_at_least_once(driver.wait_bodies("filtered", large), large)
        for name in ("broadcast-1", "broadcast-2"):
            received = driver.wait_bodies(name, run.bodies(broadcast))
            assert_at_least_once(received, run.bodies(broadcast))
        assert_at_least_once(driver.wait_bodies("batched", run.bodies(batch)), run.bodies(batch))
        received = driver.wait_bodies("delayed", run.bodies(delayed))
        assert_at_least_once(received, run.bodies(delayed))
        assert all(line["storeTimestamp"] - line["bornTimestamp"] >= 1000 for line in received)
        received = driver.wait_reports(
            "retried",
            lambda lines: (
                {line["body"] for line in lines if line["reconsumeTimes"] == 1}
                >= set(run.bodies(retried))
            ),
        )
        assert_at_least_once(received, run.bodies(retried))
        received = driver.wait_bodies("orderly", run.bodies(ordered))
        assert_at_least_once(received, run.bodies(ordered))
        assert_first_deliveries_in_order(received)
        committed = [body for body in run.bodies(transactions) if body.startswith("commit")]
        assert_at_least_once(driver.wait_bodies("committed", committed), committed)
        found = driver.call(
            "pull", name="pull", namesrv=run.namesrv, group="pull_group", topic=pulled.topic
        )
        assert_at_least_once(found, run.bodies(pulled))
        assert ask(driver, asked, "after") == "reply to after"
        # Whatever else was under way had its time now: a rolled back transaction would show.
        assert_at_least_once(driver.reports("committed"), committed)


@pytest.mark.parametrize(
    "client",
    [
        "node",
        # These two need up to thirty seconds to find back.
        pytest.param("go", marks=pytest.mark.soak),
        pytest.param("java-5.3.3", marks=pytest.mark.soak),
    ],
)
def test_other_clients_at_work(cluster: Cluster, client: str) -> None:
    with CLIENTS[client].start() as driver:
        run = Run(cluster, driver)
        case = run.topic("sync", [{"body": f"sync {number}"} for number in range(COUNT)])
        case.consumer()
        run.send(case, "sync")
        driver.wait_reports("consumer", lambda lines: len(lines) >= COUNT // 4)
        run.restart("killed")
        run.finish_sends()
        received = driver.wait_bodies("consumer", run.bodies(case), timeout=150.0)
        assert_at_least_once(received, run.bodies(case))


class Run:
    """Topics with the messages that are sent to them, all at once, while the broker restarts."""

    def __init__(self, cluster: Cluster, driver: ClientDriver) -> None:
        self.namesrv = cluster.namesrv_address
        self._cluster = cluster
        self._driver = driver
        self._messages: dict[str, list[Line]] = {}
        self._sends: list[int] = []

    def topic(self, name: str, messages: list[Line]) -> Case:
        case = Case(self._cluster, self._driver, f"Restart-{name}")
        case.create_topics()
        self._messages[case.topic] = messages
        return case

    def bodies(self, case: Case) -> list[str]:
        return [message["body"] for message in self._messages[case.topic]]

    def send(self, case: Case, mode: str, *, transactional: bool = False, **options: int) -> None:
        """Begin to send the topic's messages, one after the other, each until it is stored."""
        name = f"to-{case.topic}"
        case.producer(name, transactional=transactional)
        self._sends.append(
            self._driver.begin(
                "send",
                name=name,
                topic=case.topic,
                mode=mode,
                messages=self._messages[case.topic],
                pace=PACE_MILLISECONDS * options.get("batch", 1),
                patient=True,
                **options,
            )
        )

    def restart(self, how: str) -> None:
        self._cluster.stop_broker(kill=how == "killed")
        # Clients are to notice: some only do when a request fails.
        down = time.monotonic() + 0.5
        while time.monotonic() < down:
            time.sleep(0.05)
        self._cluster.start_broker()

    def finish_sends(self) -> None:
        for call in self._sends:
            results = self._driver.finish(call, timeout=150.0)
            assert {result["status"] for result in results} == {"SEND_OK"}


def ask(driver: ClientDriver, case: Case, question: str) -> str:
    """The reply to a request, which is asked again while the consumer finds its way back."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            reply = driver.call(
                "request", name="asking", topic=case.topic, body=question, millis=5000
            )
        except ClientError:
            assert time.monotonic() < deadline, f"{question}: never replied to"
        else:
            return str(reply["body"])


def assert_at_least_once(received: Sequence[Line], bodies: Sequence[str]) -> None:
    assert {line["body"] for line in received} == set(bodies)


def assert_first_deliveries_in_order(received: Sequence[Line]) -> None:
    """What comes again, comes in order, too, but a second time: look at the first ones."""
    shards: dict[str, list[int]] = defaultdict(list)
    for line in received:
        number = int(line["body"])
        shard = shards[line["properties"]["shard"]]
        if number not in shard:
            shard.append(number)
    for shard in shards.values():
        assert shard == sorted(shard)
