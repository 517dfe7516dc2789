"""The case `load`: its tables are a broker's own, and, as a soak, its bounds hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from bench.connections import (
    QUICK,
    Figures,
    Size,
    group_names,
    measure_load,
    topic_names,
    write_tables,
)
from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.groups import GroupTable
from pyromq.broker.state.topics import TopicTable


def test_a_broker_reads_the_tables(tmp_path: Path) -> None:
    size = Size(topics=50, groups=20, connections=0, seconds=0)
    write_tables(tmp_path / "config", size)
    topics = TopicTable(BrokerConfig(), tmp_path / "config")
    groups = GroupTable(BrokerConfig(), tmp_path / "config")

    topics.load()
    groups.load()

    assert set(topics.names()) >= set(topic_names(size))
    assert all(groups.find(name) is not None for name in group_names(size))
    assert len(set(topic_names(size))) == 50


def test_the_stall_is_the_factor_between_the_two_p99() -> None:
    figures = Figures(idle_p99_ms=2.0, busy_p99_ms=5.0)

    assert figures.stall == 2.5
    assert dict(figures.rows())["  p99 divided by idle p99"] == "2.50"


@pytest.mark.soak
def test_many_topics_groups_and_connections(tmp_path: Path) -> None:
    text, enough = measure_load(tmp_path, QUICK, Console(quiet=True))

    assert enough, text
