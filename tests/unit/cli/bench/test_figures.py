from __future__ import annotations

import io

import pytest
from rich.console import Console

from pyromq.cli.bench.figures import Latencies, Recorder, Report, Sample


def sample(messages: int, latencies: list[float], cpu: float = 0.0) -> Sample:
    return Sample(messages, messages * 1024, cpu, Latencies.of(latencies))


def text_of(report: Report) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(report.table())
    return out.getvalue()


def test_percentiles_are_right_within_one_per_cent() -> None:
    latencies = Latencies.of([number / 1e6 for number in range(1, 100_001)])
    for percent in (0.1, 1, 50, 90, 99, 99.9):
        assert latencies.percentile(percent) == pytest.approx(percent / 1e3, rel=0.0101)
    assert latencies.percentile(100) == latencies.longest == 0.1
    assert latencies.mean() == pytest.approx(0.05, rel=0.001)
    assert latencies.count == 100_000


def test_samples_add_up_exactly() -> None:
    values = [number**3 / 1e9 for number in range(1, 1000)]
    whole, parts = Latencies.of(values), Latencies.of(values[::2])
    parts.add(Latencies.of(values[1::2]))
    assert list(parts.counts) == list(whole.counts)
    assert (parts.longest, parts.count) == (whole.longest, whole.count)


def test_extreme_latencies_have_a_bucket() -> None:
    latencies = Latencies.of([-5.0, 0.0, 1e9])
    assert latencies.count == 3
    assert latencies.percentile(50) == pytest.approx(1e-6)
    assert latencies.longest == 1e9


def test_without_latencies_all_figures_are_zero() -> None:
    assert Latencies.of([]).percentile(99) == Latencies.of([]).mean() == 0.0
    report = Report("title", "send", 1)
    assert "0 messages" in report.line()
    assert report.json()["messages_per_second"] == 0
    assert "title" in text_of(report)


def test_taking_a_sample_resets_the_recorder() -> None:
    recorder = Recorder()
    recorder.messages, recorder.size = 3, 30
    recorder.latencies += [0.1, 0.2, 0.3]
    recorder.errors["broken"] += 1
    first, second = recorder.take(), recorder.take()
    assert (first.messages, first.size, first.latencies.count) == (3, 30, 3)
    assert first.errors == {"broken": 1}
    assert (second.messages, second.size, second.latencies.count) == (0, 0, 0)
    assert not second.errors


def test_a_report_as_line_table_and_json() -> None:
    report = Report("a load", "send", 2)
    report.add(sample(1000, [0.001] * 99 + [0.5], cpu=1.0), 1.0)
    failing = sample(3000, [0.002] * 100)
    failing.errors["RemotingTimeoutError"] = 7
    report.add(failing, 2.0)
    assert report.rate == 2000
    assert "4,000 messages  3,000/s now  2,000/s" in report.line()
    assert report.line().endswith("7 failed")
    text = text_of(report)
    for row in ("2,000", "failed: RemotingTimeoutError", "500 ms", "client CPU", "250.0"):
        assert row in text
    figures = report.json()
    assert figures["messages"] == 4000
    assert figures["failed"] == 7
    assert figures["seconds"] == 2
    assert figures["messages_per_second"] == 2000
    assert figures["latency_ms"]["max"] == 500
    assert list(figures["latency_ms"]) == ["mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"]
    assert figures["client_cores"] == 0.5
    assert [point["messages_per_second"] for point in figures["course"]] == [1000, 3000]
    assert figures["course"][0]["max_ms"] == 500


def test_a_busy_client_is_reported() -> None:
    for cpu, is_busy in ((0.95, True), (0.5, False)):
        report = Report("a load", "send", 1)
        report.add(sample(10, [0.1], cpu=cpu), 1.0)
        assert ("may be the bottleneck" in " ".join(text_of(report).split())) is is_busy
