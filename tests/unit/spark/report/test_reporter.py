"""The parts of a report job that need no Spark; tests/spark/test_report.py has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.spark.origins.opening import StoreSource
from pyromq.spark.report.data import ReportData
from pyromq.spark.report.reporter import choose_topics, write_page
from tests.support.stores import TOPIC
from tests.unit.spark.stores.test_builds import write_store


def test_topics_are_chosen(tmp_path: Path) -> None:
    source = StoreSource(str(write_store(tmp_path / "store")))
    assert choose_topics(source, (), None) == [TOPIC]
    assert choose_topics(source, (), "none.*") == []
    assert choose_topics(source, (TOPIC, TOPIC), None) == [TOPIC]
    with pytest.raises(ValueError, match="there is no topic Other"):
        choose_topics(source, ("Other",), None)
    with pytest.raises(ValueError, match="--pattern"):
        choose_topics(source, (), "(")


def test_the_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    for title in ("First", "Second"):
        write_page(ReportData(), page, title)
    assert "<h1>Second</h1>" in page.read_text()
    assert list(tmp_path.iterdir()) == [page]
