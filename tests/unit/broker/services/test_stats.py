from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

import pytest

from pyromq.broker.services.stats import BrokerStats, PutTimes, Totals
from pyromq.protocol.wire.bodies_admin import BrokerStatsData, BrokerStatsItem
from pyromq.store.growth import Growth
from tests.support.requests import send_request
from tests.unit.broker.assembled import AssembledBroker


class Clock:
    def __init__(self) -> None:
        self.ms = 0
        self.day = date(2026, 11, 16)

    async def run(self, stats: BrokerStats, seconds: int) -> None:
        for _ in range(seconds):
            self.ms += 1000
            await stats.sample()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def assembled(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    yield assembled
    await assembled.close()


def stats_of(growth: Growth, clock: Clock) -> BrokerStats:
    return BrokerStats(growth, "Cluster", monotonic_ms=lambda: clock.ms, today=lambda: clock.day)


def minute(data: BrokerStatsData | None) -> BrokerStatsItem:
    assert data is not None
    return data.stats_minute


async def test_puts_are_counted_by_topic_queue_and_broker(
    assembled: AssembledBroker, clock: Clock
) -> None:
    stats = stats_of(assembled.store.growth, clock)
    assembled.put(b"one", b"two", topic="T")
    assembled.put(b"three", topic="T", queue_id=1)
    assembled.put(b"other", topic="U")
    size = sum(record.size for record in assembled.records())

    await clock.run(stats, 10)

    assert minute(stats.view("TOPIC_PUT_NUMS", "T")) == BrokerStatsItem(3, 0.3, 1.0)
    assert minute(stats.view("QUEUE_PUT_NUMS", "T@0")).sum == 2
    assert minute(stats.view("QUEUE_PUT_NUMS", "T@1")).sum == 1
    assert minute(stats.view("BROKER_PUT_NUMS", "Cluster")).sum == 4
    sizes = [minute(stats.view("TOPIC_PUT_SIZE", topic)) for topic in "TU"]
    assert sum(item.sum for item in sizes) == size
    assert sizes[0].avgpt == sizes[0].sum / 3
    assert minute(stats.view("QUEUE_PUT_SIZE", "U@0")) == sizes[1]
    assert stats.totals == Totals(puts=4, put_bytes=size)


async def test_a_delayed_message_counts_where_it_is_put(
    assembled: AssembledBroker, clock: Clock
) -> None:
    stats = stats_of(assembled.store.growth, clock)
    assert assembled.fast.ask(send_request(properties="DELAY\x013")).code == 0
    await stats.count()

    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX") == BrokerStatsData()


async def test_pulls_are_counted_by_group_queue_and_broker(clock: Clock) -> None:
    stats = stats_of(Growth(), clock)
    stats.pulled("g", "T", 0, 10, 1000)
    stats.pulled("g", "T", 0, 20, 2000)
    stats.pulled("g", "T", 1, 30, 3000)
    stats.pulled("h", "T", 1, 5, 500)
    stats.missed += 2

    await clock.run(stats, 10)

    assert minute(stats.view("GROUP_GET_NUMS", "T@g")) == BrokerStatsItem(60, 6.0, 20.0)
    assert minute(stats.view("GROUP_GET_SIZE", "T@g")).sum == 6000
    assert minute(stats.view("QUEUE_GET_NUMS", "T@1@h")).sum == 5
    assert minute(stats.view("QUEUE_GET_SIZE", "T@0@g")).sum == 3000
    assert minute(stats.view("GROUP_GET_LATENCY", "0@T@g")) == BrokerStatsItem()
    assert minute(stats.view("BROKER_GET_NUMS", "Cluster")).sum == 65
    assert stats.group_get_tps("g", "T") == 6.0
    assert stats.group_get_tps("nobody", "T") == 0.0
    assert stats.totals == Totals(found=4, missed=2, transferred=65)


async def test_pulls_that_are_reported_when_they_are_counted(clock: Clock) -> None:
    stats = stats_of(Growth(), clock)
    stats.before_count.append(lambda: stats.pulled("g", "T", 0, 64, 5000, times=2))

    await stats.count()

    assert stats.totals == Totals(found=2, transferred=64)


async def test_sent_back_messages(clock: Clock) -> None:
    stats = stats_of(Growth(), clock)
    stats.sent_back("g", "T")
    await clock.run(stats, 10)

    assert minute(stats.view("SNDBCK_PUT_NUMS", "T@g")).sum == 1


async def test_a_counter_exists_as_soon_as_something_was_counted(
    assembled: AssembledBroker, clock: Clock
) -> None:
    stats = stats_of(assembled.store.growth, clock)
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assembled.put(b"one")
    await stats.count()

    assert stats.view("TOPIC_PUT_NUMS", "T") == BrokerStatsData()
    assert stats.view("NO_SUCH_STATISTIC", "T") is None


async def test_rates_over_ten_sixty_and_six_hundred_seconds(clock: Clock) -> None:
    stats = stats_of(Growth(), clock)
    assert stats.rates(lambda totals: totals.transferred) == (0.0, 0.0, 0.0)
    stats.pulled("g", "T", 0, 100, 1)
    await clock.run(stats, 5)
    # Younger than any of the spans: the rate since the start.
    assert stats.rates(lambda totals: totals.transferred) == (20.0, 20.0, 20.0)

    await clock.run(stats, 15)
    assert stats.rates(lambda totals: totals.transferred) == (0.0, 5.0, 5.0)
    await clock.run(stats, 600)
    assert stats.rates(lambda totals: totals.transferred) == (0.0, 0.0, 0.0)


async def test_mornings(clock: Clock) -> None:
    stats = stats_of(Growth(), clock)
    stats.pulled("g", "T", 0, 1, 1)
    await clock.run(stats, 1)
    assert stats.this_morning == Totals()

    clock.day = date(2026, 11, 17)
    await clock.run(stats, 1)
    assert stats.this_morning.transferred == 1
    stats.pulled("g", "T", 0, 2, 1)
    clock.day = date(2026, 11, 18)
    await clock.run(stats, 1)

    assert (stats.yesterday_morning.transferred, stats.this_morning.transferred) == (1, 3)


async def test_times_of_puts_over_the_last_minute(assembled: AssembledBroker, clock: Clock) -> None:
    stats = stats_of(assembled.store.growth, clock)
    assembled.put(*[b"x"] * 10)
    assembled.store.growth.slow_seals[:] = [40, 7]
    await clock.run(stats, 59)
    assert stats.put_times == PutTimes()
    assert stats.slowest_put == 40

    await clock.run(stats, 1)
    assert stats.put_times == PutTimes(8, (7, 40))
    assert stats.put_times.percentile(0.5) == 5 / 8
    assert stats.put_times.percentile(0.99) == 7.0
    assert stats.put_times.percentile(1.0) == 40.0
    assert PutTimes().percentile(0.99) == 0.0
    await clock.run(stats, 60)
    assert stats.put_times == PutTimes()
    assert stats.slowest_put == 40


async def test_deleted_topics_and_groups_are_forgotten(
    assembled: AssembledBroker, clock: Clock
) -> None:
    stats = stats_of(assembled.store.growth, clock)
    assembled.put(b"x", topic="T")
    assembled.put(b"x", topic="TT")
    for topic in ("T", "TT"):
        for group in ("g", "gg"):
            stats.pulled(group, topic, 0, 1, 1)
            stats.sent_back(group, topic)
    await stats.count()

    stats.topic_deleted("T")
    for name, key in (
        ("TOPIC_PUT_NUMS", "T"),
        ("TOPIC_PUT_SIZE", "T"),
        ("QUEUE_PUT_NUMS", "T@0"),
        ("GROUP_GET_NUMS", "T@g"),
        ("QUEUE_GET_SIZE", "T@0@g"),
        ("GROUP_GET_LATENCY", "0@T@g"),
        ("SNDBCK_PUT_NUMS", "T@g"),
    ):
        assert stats.view(name, key) is None
        assert stats.view(name, key.replace("T", "TT")) is not None

    stats.group_deleted("g")
    for name, key in (
        ("GROUP_GET_NUMS", "TT@g"),
        ("QUEUE_GET_NUMS", "TT@0@g"),
        ("GROUP_GET_LATENCY", "0@TT@g"),
        ("SNDBCK_PUT_NUMS", "TT@g"),
    ):
        assert stats.view(name, key) is None
        assert stats.view(name, key + "g") is not None


async def test_very_many_queues_are_counted_less_often(
    assembled: AssembledBroker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyromq.broker.services.stats._MAX_QUEUES_PER_SAMPLE", 1)
    stats = stats_of(assembled.store.growth, clock)
    assembled.put(b"one", topic="T")
    await clock.run(stats, 1)
    assert stats.totals.puts == 1
    assembled.put(b"two", topic="T")
    assembled.put(b"three", topic="U")

    await clock.run(stats, 9)
    assert stats.totals.puts == 1
    await clock.run(stats, 1)
    assert stats.totals.puts == 3


async def test_what_metrics_read(clock: Clock) -> None:
    stats = stats_of(Growth(), clock)
    stats.pulled("g", "T", 0, 10, 1000, next_offset=10)
    stats.pulled("g", "T", 0, 5, 500, next_offset=15)
    stats.sent_to_dlq("g", "T")
    stats.transaction_ended("T", is_commit=True)
    stats.transaction_ended("T", is_commit=False)
    await stats.count()

    assert stats.pulled_to == {("g", "T", 0): 15}
    assert stats.counters("GROUP_GET_NUMS")["T@g"].value == 15
    assert stats.dead_letters == {("g", "T"): 1}
    assert (stats.commits, stats.rollbacks) == ({"T": 1}, {"T": 1})
    assert stats.minute("GROUP_GET_NUMS", "other").sum == 0
    stats.group_deleted("g")
    assert stats.pulled_to == {}
    stats.topic_deleted("T")
    assert (stats.commits, stats.rollbacks) == ({}, {})
