from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from pyromq.broker.metrics.storage import Disk, StorageMetrics, disk_of
from pyromq.store.config import BrokerRole, FlushDiskType
from tests.support.metrics import Scrape, collected
from tests.unit.broker.metrics.metered import MeteredBroker


async def scrape(broker: MeteredBroker) -> Scrape:
    return await collected(StorageMetrics(broker.parts, broker.instruments).collect)


async def test_positions_and_backlogs(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b")
    found = await scrape(broker)
    end = broker.store.max_physical_offset
    assert found.value("pyromq_log_start_bytes") == 0
    assert found.value("pyromq_log_end_bytes") == end
    assert found.value("pyromq_dispatch_behind_bytes") == 0
    assert 0 <= found.value("pyromq_index_behind_bytes") <= end
    labels = {"storage_type": "local", "storage_medium": "disk"}
    assert found.value("rocketmq_storage_dispatch_behind_bytes", **labels) <= end
    assert 0 <= found.value("rocketmq_storage_flush_behind_bytes", **labels) <= end
    assert 0 <= found.value("pyromq_log_flushed_bytes") <= end
    assert found.value("rocketmq_storage_size_bytes", **labels) > 0
    assert found.value("pyromq_consume_queues") == broker.store.queue_count
    assert found.series("pyromq_transient_store_free_buffers") == []


async def test_the_age_of_the_log(broker: MeteredBroker) -> None:
    name = "rocketmq_storage_message_reserve_time_milliseconds"
    assert (await scrape(broker)).value(name) == 0
    broker.put(b"a")
    first = broker.store.store_time(0)
    assert first is not None
    broker.now = first + 5000
    assert (await scrape(broker)).value(name) == 5000


async def test_disks(broker: MeteredBroker) -> None:
    found = await scrape(broker)
    paths = found.values_of("pyromq_disk_used_ratio", "path")
    config = broker.store.config
    assert paths == {str(config.commit_log_directory), str(config.consume_queue_directory)}
    for path in paths:
        assert 0 < found.value("pyromq_disk_used_ratio", path=path) < 1
        assert found.value("pyromq_disk_free_bytes", path=path) > 0


async def test_the_forecast(broker: MeteredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pyromq.broker.metrics.storage.disk_of", lambda _: Disk(used=50_000, usable=1_000_000)
    )
    now = [100.0]
    metrics = StorageMetrics(broker.parts, broker.instruments, monotonic=lambda: now[0])
    path = str(broker.store.config.commit_log_directory)
    found = await collected(metrics.collect)
    assert found.value("pyromq_log_growth_bytes_per_second") == 0
    assert found.value("pyromq_disk_seconds_until_refusal", path=path) == math.inf
    broker.put(b"x" * 1000)
    now[0] += 10
    growth = broker.store.max_physical_offset / 10
    found = await collected(metrics.collect)
    config = broker.store.config
    assert found.value("pyromq_log_growth_bytes_per_second") == pytest.approx(growth)
    for name, percent in (
        ("pyromq_disk_seconds_until_cleaning", config.disk_cleaning_percent),
        ("pyromq_disk_seconds_until_refusal", config.disk_space_warning_level_ratio),
    ):
        left = percent * 10_000 - 50_000
        assert found.value(name, path=path) == pytest.approx(left / growth)


async def test_the_forecast_forgets(broker: MeteredBroker) -> None:
    now = [0.0]
    metrics = StorageMetrics(broker.parts, broker.instruments, monotonic=lambda: now[0])
    broker.put(b"x" * 1000)
    now[0] += 1
    assert metrics.growth > 0.0
    for _ in range(100):
        now[0] += 10
        metrics.sample()
    assert metrics.growth == 0.0


def test_a_full_disk_has_no_time_left() -> None:
    disk = Disk(used=90, usable=100)
    assert disk.seconds_until(85, 1.0) == 0.0
    assert disk.seconds_until(95, 1.0) == 5.0
    assert disk.seconds_until(95, 0.0) == math.inf


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert disk_of(tmp_path / "a" / "b").usable == disk_of(tmp_path).usable


async def test_latencies(broker: MeteredBroker) -> None:
    broker.instruments.put.observe(0.002)
    broker.instruments.acknowledgement.observe(0.2)
    found = await scrape(broker)
    assert found.value("pyromq_put_seconds_count") == 1
    assert found.value("pyromq_put_seconds_bucket", le="0.001") == 0
    assert found.value("pyromq_put_seconds_bucket", le="0.0025") == 1
    assert found.value("pyromq_acknowledgement_seconds_sum", waits_for="nothing") == 0.2
    for name in ("flush", "pull", "delivery", "end_to_end"):
        assert found.value(f"pyromq_{name}_seconds_count") == 0


async def test_what_responses_wait_for(broker: MeteredBroker) -> None:
    broker.store.config = dataclasses.replace(
        broker.store.config, flush_disk_type=FlushDiskType.SYNC_FLUSH
    )
    broker.parts.role.change(BrokerRole.SYNC_MASTER, 0)
    name = "pyromq_acknowledgement_seconds_count"
    assert (await scrape(broker)).values_of(name, "waits_for") == {"flush_and_replica"}
