from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.client_program import main
from tests.unit.client.fake_cluster import cluster_in_a_thread

JAVA = Path(__file__).parents[2] / "bench" / "java" / "ClientBench.java"


@pytest.mark.parametrize("how", ["single", "accumulate"])
def test_sends_all_messages_and_measures_those_after_the_lead_in(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster:
        main(["produce", cluster.namesrv, "t", "10", "40", "8", "128", how])
        bodies = [record.body for record in cluster.brokers[0].queues["t", 0]]
    assert bodies == [b"x" * 128] * 50
    first, figures = capsys.readouterr().out.splitlines()
    assert first == "first"
    measured = json.loads(figures)
    assert measured["messages"] == 40
    assert all(measured[name] > 0 for name in ("seconds", "cpu_seconds", "rss_mib"))


def test_the_java_program_says_the_same_figures() -> None:
    said = set(re.findall(r'\\"(\w+)\\": %', JAVA.read_text()))
    assert said == {"messages", "seconds", "cpu_seconds", "rss_mib"}
