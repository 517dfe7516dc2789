from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.metrics.endpoint import Endpoint, run_collectors
from pyromq.metrics.family import gauge
from pyromq.metrics.page import Page, Steps, label_text
from pyromq.metrics.settings import ExporterType
from tests.support.brokers import local_broker
from tests.support.metrics import OPEN_METRICS, Scrape, fetched, scraped

THINGS = gauge("things", "Things.", ("name",))


class Things:
    """A collector, and a readiness that a test decides on."""

    def __init__(self) -> None:
        self.names = ["a"]
        self.faults: dict[str, str | None] = {"store": None}

    def collect(self, page: Page) -> Steps:
        page.add(THINGS, *((label_text(name=name), 1) for name in self.names))
        yield None

    def readiness(self) -> dict[str, str | None]:
        return self.faults


def config(**changes: Any) -> BrokerConfig:
    return local_broker(
        metrics_exporter_type=ExporterType.PROM, metrics_prom_exporter_port=0, **changes
    )


@pytest.fixture
def things() -> Things:
    return Things()


Make = Callable[..., Endpoint]


@pytest.fixture
async def make(things: Things) -> AsyncIterator[Make]:
    made = []

    def make_one(**changes: Any) -> Endpoint:
        endpoint = Endpoint(config(**changes), {"node_id": "b"}, [things.collect], things.readiness)
        made.append(endpoint)
        endpoint.bind()
        return endpoint

    yield make_one
    for endpoint in made:
        await endpoint.stop()
        await endpoint.stop()


async def test_a_scrape(make: Make, things: Things) -> None:
    endpoint = make(metrics_label="rack:r1")
    await endpoint.start()
    scrape = await scraped(endpoint.port)
    assert scrape.value("things", name="a", node_id="b", rack="r1") == 1
    # From prometheus_client: memory, files and garbage of the process.
    assert scrape.value("process_resident_memory_bytes") > 1_000_000
    assert "python_gc_collections_total" in scrape.names()
    assert scrape.value("pyromq_scrapes_total") == 0
    things.names = ["b"]
    scrape = await scraped(endpoint.port)
    assert scrape.values_of("things", "name") == {"b"}
    assert scrape.value("pyromq_scrapes_total") == 1
    assert scrape.value("pyromq_scrape_series") > 0
    assert scrape.value("pyromq_scrape_seconds", part="all") > 0


async def test_open_metrics_by_accept(make: Make) -> None:
    endpoint = make()
    await endpoint.start()
    _, text = await fetched(endpoint.port, headers=[("Accept", OPEN_METRICS)])
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    assert Scrape(text, is_open_metrics=True).value("things", name="a") == 1


async def test_the_limit_and_its_counter(make: Make, things: Things) -> None:
    endpoint = make(metrics_otel_cardinality_limit=2)
    await endpoint.start()
    things.names = list("abcde")
    assert len((await scraped(endpoint.port)).series("things")) == 2
    scrape = await scraped(endpoint.port)
    assert scrape.value("pyromq_scrape_dropped_series_total", metric="things") == 3


async def test_health(make: Make) -> None:
    endpoint = make()
    await endpoint.start()
    status, text = await fetched(endpoint.port, "/healthz")
    assert status == 200
    assert json.loads(text)["status"] == "alive"


async def test_readiness(make: Make, things: Things) -> None:
    endpoint = make()
    await endpoint.start()
    status, text = await fetched(endpoint.port, "/readyz")
    assert (status, json.loads(text)["status"]) == (200, "ready")
    things.faults = {"store": "disk full", "registered": None}
    status, text = await fetched(endpoint.port, "/readyz")
    assert status == 503
    assert json.loads(text) == {
        "status": "not ready",
        "reasons": ["store: disk full"],
        "checks": {"store": "disk full", "registered": "ok"},
    }


async def test_a_taken_port_names_the_setting(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        endpoint = Endpoint(
            local_broker(metrics_exporter_type=ExporterType.PROM, metrics_prom_exporter_port=port),
            {"node_id": "b"},
            [],
            dict,
        )
        with pytest.raises(OSError, match="metricsPromExporterPort") as caught:
            endpoint.bind()
    assert caught.value.errno is None  # callers would talk about listenPort


async def test_a_bound_port_is_given_back(make: Make) -> None:
    endpoint = make()
    await endpoint.stop()
    with socket.create_server(("127.0.0.1", endpoint.port)):
        pass


async def test_too_many_scrapes_are_refused(make: Make, things: Things) -> None:
    gate = threading.Event()
    slow = Endpoint(config(), {"node_id": "b"}, [lambda _: blocked(gate)], dict)
    slow.bind()
    await slow.start()
    try:
        tasks = [asyncio.create_task(fetched(slow.port)) for _ in range(9)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result()[0] for task in done] == [503]
        gate.set()
        assert sorted([(await task)[0] for task in tasks]) == [200] * 8 + [503]
    finally:
        gate.set()
        await slow.stop()


def blocked(gate: threading.Event) -> Steps:
    yield gate.wait


async def test_work_comes_in_slices() -> None:
    turns = []

    def work(_: Page) -> Steps:
        for _turn in range(4):
            time.sleep(0.002)
            yield None

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    used = await run_collectors([work], Page({"a": "b"}, max_series=1), slice_seconds=0.001)
    task.cancel()
    assert len(turns) >= 4
    assert used >= 0.008


async def test_work_on_a_thread_returns_its_result() -> None:
    found = []

    def work(_: Page) -> Steps:
        thread = yield threading.current_thread
        found.append(thread)
        found.append((yield None))

    await run_collectors([work], Page({"a": "b"}, max_series=1))
    assert found[0] is not threading.current_thread()
    assert found[1] is None
