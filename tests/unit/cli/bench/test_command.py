from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.cli.bench.command import bench
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.support.patience import until
from tests.unit.cli.processes import running
from tests.unit.client.fake_cluster import FakeCluster, cluster_in_a_thread


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with cluster_in_a_thread({"t": {"b0": 2}}) as cluster:
        yield cluster


def invoke(cluster: FakeCluster, *arguments: str) -> Result:
    return CliRunner().invoke(bench, [*arguments, "--namesrv", cluster.namesrv])


def stored(cluster: FakeCluster) -> int:
    return sum(len(records) for records in cluster.brokers[0].queues.values())


def test_produce_ends_with_a_table(cluster: FakeCluster) -> None:
    result = invoke(cluster, "produce", "t", "--count", "300", "--size", "20")
    assert result.exit_code == 0, result.output
    assert stored(cluster) == 300
    for text in ("produce to t: 20 B, 256 in flight", "messages/s", "send, p99.9", "300"):
        assert text in result.stdout


def test_produce_and_consume_as_json(cluster: FakeCluster) -> None:
    sent = json.loads(
        invoke(cluster, "produce", "t", "--count", "300", "--linger", "1", "--json").stdout
    )
    assert (sent["messages"], sent["failed"], sent["ended_early"]) == (300, 0, False)
    assert sent["latency_ms"]["p50"] > 0
    result = invoke(
        cluster, "consume", "t", "--from", "first", "--count", "300", "--lists", "--json"
    )
    consumed = json.loads(result.stdout)
    assert consumed["messages"] == 300
    assert consumed["latency"] == "born to consumed"
    assert {group for group, _, _ in cluster.brokers[0].offsets} == {"PYROMQ_BENCH"}


def test_a_duration_ends_it_and_a_plot_is_drawn(cluster: FakeCluster, tmp_path: Path) -> None:
    plot = tmp_path / "load.svg"
    result = invoke(cluster, "produce", "t", "--duration", "0.6", "--json", "--plot", str(plot))
    figures = json.loads(result.stdout)
    assert figures["seconds"] >= 0.6
    assert figures["messages"] == stored(cluster) > 0
    assert len(figures["course"]) >= 2
    assert plot.read_text().startswith("<svg ")


def test_failed_sends_make_the_exit_status(cluster: FakeCluster) -> None:
    refusal = (ResponseCode.MESSAGE_ILLEGAL, "no")
    # The first one must succeed.
    cluster.brokers[0].refusals[RequestCode.SEND_BATCH_MESSAGE] += [refusal]
    result = invoke(cluster, "produce", "t", "--count", "40", "--batch", "4", "--in-flight", "2")
    assert result.exit_code == 1
    assert "MESSAGE_ILLEGAL" in result.output


def test_several_processes_share_the_load(cluster: FakeCluster, tmp_path: Path) -> None:
    with running(
        "bench", "produce", "t", "--count", "101", "--processes", "2", "--json",
        "--namesrv", cluster.namesrv, directory=tmp_path,
    ) as child:  # fmt: skip
        assert child.exit_code() == 0
        figures = json.loads(child.printed)
    assert (figures["messages"], figures["processes"]) == (101, 2)
    assert stored(cluster) == 101
    assert len(cluster.brokers[0].clients) == 2


def test_children_that_fail_to_start_say_why(cluster: FakeCluster, tmp_path: Path) -> None:
    with running(
        "bench",
        "produce",
        "unknown",
        "--processes",
        "2",
        "--namesrv",
        cluster.namesrv,
        directory=tmp_path,
    ) as child:
        assert child.exit_code() == 1
        assert child.printed.count("topic 'unknown' has no route") == 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_ends_it_with_the_figures(
    cluster: FakeCluster, tmp_path: Path, processes: str
) -> None:
    with running(
        "bench", "produce", "t", "--duration", "600", "--rate", "200", "--processes", processes,
        "--json", "--namesrv", cluster.namesrv, directory=tmp_path,
    ) as child:  # fmt: skip
        broker = cluster.brokers[0]
        cluster.call(until(lambda: len(broker.seen(RequestCode.SEND_MESSAGE_V2)) > 20))
        assert child.end(signal.SIGINT) == 0
        figures = json.loads(child.printed)
    assert figures["ended_early"] is True
    assert figures["messages"] == stored(cluster) > 20


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("produce",), "Missing argument 'TOPIC'"),
        (("produce", "t", "--batch", "2", "--linger", "5"), "--batch or --linger, not both"),
        (("produce", "t", "--connections", "9", "--in-flight", "8"), "each needs at least one"),
        (("produce", "t", "--processes", "9", "--in-flight", "8"), "each needs at least one"),
        (("produce", "t", "--rate", "0"), "--rate"),
        (("produce", "t", "--duration", "0"), "--duration"),
        (("produce", "t", "--size", "0"), "--size"),
        (("produce", "t", "--plot", "load.png"), "use FILE.svg"),
        (("produce", "t", "--plot", "/no/such/directory/load.svg"), "is not writable"),
        (("consume", "t", "--tags", "a", "--sql", "b = 1"), "--tags or --sql, not both"),
        (("consume", "t", "--from", "yesterday"), "expected first, last or a time"),
    ],
)
def test_wrong_use(cluster: FakeCluster, arguments: tuple[str, ...], problem: str) -> None:
    result = invoke(cluster, *arguments)
    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())
    assert stored(cluster) == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("produce", "unknown"), "topic 'unknown' has no route"),
        (("produce", "no topic"), "topic 'no topic' is not a legal name"),
        (("produce", "t", "--size", "5000000"), "the limit is 4194304"),
        (("consume", "t", "--group", "no group"), "group 'no group' is not a legal name"),
    ],
)
def test_errors_are_one_line(
    cluster: FakeCluster, arguments: tuple[str, ...], problem: str
) -> None:
    result = invoke(cluster, *arguments, "--duration", "1")
    assert result.exit_code == 1
    assert problem in result.output


def test_an_unreachable_cluster() -> None:
    result = CliRunner().invoke(bench, ["produce", "t", "--namesrv", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "pyromq standalone" in result.output
