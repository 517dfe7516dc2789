from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from pyromq.cli.bench.figures import Recorder
from pyromq.cli.bench.load import ConsumeLoad, ProduceLoad
from pyromq.cli.client_options import Cluster
from pyromq.client import ClientOptions, StartFrom, TopicNotFoundError
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.support.patience import DEADLINE, until
from tests.unit.client.fake_cluster import FakeCluster, running_cluster


def produce(cluster: FakeCluster, **values: object) -> ProduceLoad:
    load = ProduceLoad(
        Cluster(cluster.namesrv, ClientOptions()), "t", 10, 8, 1, 1, None, None, 50, "", False
    )
    return replace(load, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how", [{}, {"batch": 7}, {"linger": 0.001}, {"rate": 5000.0}, {"connections": 3}]
)
async def test_exactly_the_count_is_sent(how: dict[str, object]) -> None:
    recorder = Recorder()
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await produce(cluster, **how).run(recorder, asyncio.Event())
        records = cluster.brokers[0].queues["t", 0]
        assert [len(record.body) for record in records] == [10] * 50
    requests = 8 if "batch" in how else 50
    assert (recorder.messages, recorder.size) == (50, 500)
    assert len(recorder.latencies) == requests


async def test_tags_and_keys() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        await produce(cluster, tags="a", has_keys=True).run(Recorder(), asyncio.Event())
        properties = [record.properties for record in cluster.brokers[0].queues["t", 0]]
    assert {each["TAGS"] for each in properties} == {"a"}
    assert {each["KEYS"] for each in properties} == {str(number) for number in range(50)}


async def test_a_rate_is_kept_and_waiting_counts() -> None:
    recorder = Recorder()
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        began = time.perf_counter()
        await produce(cluster, rate=200.0).run(recorder, asyncio.Event())
        assert time.perf_counter() - began >= 49 / 200


async def test_failures_are_counted_and_the_load_continues() -> None:
    recorder = Recorder()
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        refusals = cluster.brokers[0].refusals[RequestCode.SEND_MESSAGE_V2]
        load = produce(cluster, count=None)
        stopping = asyncio.Event()
        task = asyncio.create_task(load.run(recorder, stopping))
        await until(lambda: recorder.messages > 10)
        refusals.append((ResponseCode.MESSAGE_ILLEGAL, "no"))
        await until(lambda: bool(recorder.errors))
        before = recorder.messages
        await until(lambda: recorder.messages > before)
        stopping.set()
        await task
        assert recorder.messages == len(cluster.brokers[0].queues["t", 0])
    assert recorder.errors == {"broker answered 13": 1}


async def test_the_first_send_must_succeed() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        with pytest.raises(TopicNotFoundError):
            await produce(cluster, topic="unknown").run(Recorder(), asyncio.Event())


async def test_the_end_does_not_wait_for_a_slow_rate() -> None:
    recorder, stopping = Recorder(), asyncio.Event()
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        task = asyncio.create_task(produce(cluster, rate=0.001).run(recorder, stopping))
        await until(lambda: recorder.messages == 1)
        stopping.set()
        async with asyncio.timeout(DEADLINE):
            await task


def test_shares_add_up() -> None:
    load = ProduceLoad(Cluster("127.0.0.1:9876", {}), "t", 10, 10, 3, 1, None, 90.0, 100, "", False)
    parts = [load.part(number, 3) for number in range(3)]
    assert [part.in_flight for part in parts] == [4, 3, 3]
    assert [part.count for part in parts] == [34, 33, 33]
    assert [part.connections for part in parts] == [1, 1, 1]
    assert sum(part.rate or 0 for part in parts) == 90


def test_titles_say_what_is_measured() -> None:
    load = ProduceLoad(
        Cluster("127.0.0.1:9876", {}), "t", 10, 8, 1, 4, 0.005, 100.0, None, "", False
    )
    assert load.title == (
        "produce to t: 10 B, 8 in flight, batches of 4, accumulated for 5 ms, target 100/s"
    )
    assert load.latency_name == "send of a batch"


@pytest.mark.parametrize("takes_lists", [False, True])
async def test_consuming_ends_with_the_count(takes_lists: bool) -> None:
    recorder = Recorder()
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        for _ in range(20):
            await cluster.brokers[0].put("t", 0, b"12345")
        load = ConsumeLoad(
            Cluster(cluster.namesrv, {}), "t", "g", StartFrom.FIRST, "*", None, takes_lists, 20
        )
        async with asyncio.timeout(DEADLINE):
            await load.run(recorder, asyncio.Event())
    assert (recorder.messages, recorder.size) == (20, 100)
    assert min(recorder.latencies) > 1e9
    assert load.part(0, 2).count is None
