from __future__ import annotations

import random
import time

import pytest

from pyromq.broker.services.stats_items import DAY, HOUR, MINUTE, Snapshot, StatsItem, StatsItems


class JavaItem:
    """RocketMQ's StatsItem for the minute: every tick is kept."""

    def __init__(self) -> None:
        self.value = self.times = 0
        self.samples: list[tuple[int, int, int]] = []

    def sample(self, now: int) -> None:
        if not self.samples:
            self.samples.append((now - 10_000, 0, 0))
        self.samples.append((now, self.value, self.times))
        del self.samples[:-7]

    def snapshot(self) -> Snapshot:
        if not self.samples:
            return Snapshot()
        (begun, first, first_times), (ended, last, last_times) = self.samples[0], self.samples[-1]
        value, times = last - first, last_times - first_times
        return Snapshot(
            value, value * 1000 / (ended - begun), value / times if times else 0.0, times
        )


def sample(items: StatsItems, now: int) -> int:
    """Take samples; how often others had their turn."""
    return sum(1 for _ in items.sample(now))


def item(items: StatsItems, key: str = "T", name: str = "PUT") -> StatsItem:
    found = items.find(name, key)
    assert found is not None
    return found


def test_any_history_gives_what_java_gives() -> None:
    chance = random.Random(7)
    items = StatsItems(("PUT",), 0)
    java = {key: JavaItem() for key in "abc"}
    seen: set[str] = set()
    for tick in range(1, 200):
        for key in "abc":
            if chance.random() < 0.3:
                value, times = chance.randrange(100), chance.randrange(1, 3)
                items.add("PUT", key, value, times)
                java[key].value += value
                java[key].times += times
                seen.add(key)
        sample(items, tick * 10_000)
        for key in seen:
            java[key].sample(tick * 10_000)
            assert items.snapshot(item(items, key), MINUTE) == java[key].snapshot()
    assert seen == set("abc")


def test_the_spans_are_a_minute_an_hour_and_a_day() -> None:
    items = StatsItems(("PUT",), 0)
    for second in range(1, 26 * 3600 + 1):
        if second % 10 == 0:
            items.add("PUT", "T", 10)
            sample(items, second * 1000)

    snapshots = [items.snapshot(item(items), span) for span in (MINUTE, HOUR, DAY)]

    assert snapshots == [
        Snapshot(60, 1.0, 10.0, 6),
        Snapshot(3600, 1.0, 10.0, 360),
        Snapshot(86400, 1.0, 10.0, 8640),
    ]


def test_nothing_is_told_before_the_first_sample() -> None:
    items = StatsItems(("PUT",), 0)
    items.add("PUT", "T", 5)
    sample(items, 9_999)

    assert items.snapshot(item(items), MINUTE) == Snapshot()
    assert items.find("PUT", "other") is None
    assert items.find("OTHER", "T") is None


def test_counters_can_be_forgotten() -> None:
    items = StatsItems(("PUT",), 0)
    for key in ("T@g", "T@h", "U@g"):
        items.add("PUT", key, 1)

    items.remove_if("PUT", lambda key: key.startswith("T@"))
    sample(items, 10_000)
    assert items.find("PUT", "T@g") is None
    assert items.find("PUT", "U@g") is not None
    items.remove("PUT", "not there")


@pytest.mark.parametrize("span", [MINUTE, HOUR, DAY])
def test_a_counter_keeps_few_samples(span: int) -> None:
    items = StatsItems(("PUT",), 0)
    for tick in range(1, 300):
        items.add("PUT", "T", 1)
        sample(items, tick * 3_600_000)

    assert len(item(items).samples[span]) <= 26


def test_idle_counters_cost_nothing() -> None:
    items = StatsItems(("PUT",), 0)
    for number in range(20_000):
        items.add("PUT", str(number), 1)
    sample(items, 3_600_000)

    def sampled(now: int) -> float:
        begun = time.process_time()
        turns.append(sample(items, now))
        return time.process_time() - begun

    turns: list[int] = []

    for number in range(20_000):
        items.add("PUT", str(number), 1)
    busy = sampled(2 * 3_600_000)
    idle = sampled(3 * 3_600_000)
    assert idle < busy / 10
    assert turns[0] > 3 * 20_000 / 1000
    assert turns[1] == 0
