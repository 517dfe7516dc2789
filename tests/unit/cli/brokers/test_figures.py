from __future__ import annotations

import os
import time

from pyromq.cli.brokers.figures import (
    Figures,
    Rate,
    Sample,
    Target,
    process_usage,
    rate_between,
    table,
)
from pyromq.client import Message, Producer
from pyromq.testing import Cluster

MIB = 1024 * 1024


def test_rates_are_differences_per_second() -> None:
    before = Sample(10.0, 7, 100, MIB, 50, 1.0, 5 * MIB)
    after = Sample(12.0, 7, 4100, 5 * MIB, 2050, 2.5, 6 * MIB)
    rate = rate_between(before, after)
    assert rate == Rate(2000.0, 2 * MIB, 1000.0, 0.75, 6 * MIB)
    assert rate.text() == ("in 2,000 msg/s 2.0 MiB/s, out 1,000 msg/s, CPU 75 %, RSS 6 MiB")


def test_a_restarted_broker_has_no_rate_until_its_second_sample() -> None:
    sample = Sample(10.0, 7, 100, MIB, 50, 1.0, 5 * MIB)
    assert rate_between(None, sample) is None
    assert rate_between(sample._replace(pid=6, time=9.0), sample) is None
    assert rate_between(sample, sample) is None


def test_the_table_lists_every_broker() -> None:
    targets = [Target("broker-0", "a:1", 7), Target("broker-1", "a:2", 8, restarts=2)]
    text = table(targets, [Sample(1.0, 7, 1234567, 3 * MIB, 5, 12.34, 130 * MIB), None])
    assert text.splitlines() == [
        "broker    messages in  MiB in  messages out  CPU s  RSS MiB  restarts",
        "broker-0    1,234,567     3.0             5   12.3      130         0",
        "broker-1    no answer                                               2",
    ]


def test_usage_of_a_process() -> None:
    seconds, rss = process_usage(os.getpid())
    assert 0 < seconds < time.process_time() + 1
    assert rss > MIB


async def test_lines_and_table_of_a_live_broker(rocketmq: Cluster) -> None:
    printed: list[str] = []
    now = [0.0]
    gone = Target("broker-1", "127.0.0.1:1", os.getpid())
    live = Target("broker-0", rocketmq.brokers[0].address, os.getpid())
    figures = Figures(lambda: [live, gone], 3600.0, echo=printed.append, clock=lambda: now[0])
    await figures.start()
    async with Producer(rocketmq.namesrv) as producer:
        for _ in range(10):
            await producer.send(Message("figures", b"x" * 100))
    now[0] = 5.0
    await figures.print_lines()
    await figures.stop()
    lines, totals = printed
    first, second = lines.splitlines()
    assert first.startswith("broker-0: in 2 msg/s 0.0 MiB/s, out 0 msg/s, CPU ")
    assert second == "broker-1: no answer"
    assert totals.splitlines()[1].split()[:2] == ["broker-0", "10"]
    assert totals.splitlines()[2].split() == ["broker-1", "no", "answer", "0"]
