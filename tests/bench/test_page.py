from __future__ import annotations

import os
import platform
from pathlib import Path
from xml.etree import ElementTree as ET

import orjson
import pytest

from bench.cases import INVALID, SECTIONS, THROUGHPUT
from bench.page import BEGIN, END, write_page
from bench.plot import plot
from bench.report import Rounds, baseline_file

FACTS = {"machine": platform.machine(), "cores": os.cpu_count() or 0, "commit": "abc1234"}


def _rounds() -> Rounds:
    return {
        section.name: {
            name: [dict.fromkeys(section.figures, value), dict.fromkeys(section.figures, 2 * value)]
            for name, value in (("java", 16.0), ("pyromq", 2.0))
        }
        for section in SECTIONS
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    file = baseline_file(tmp_path, "broker", FACTS)
    file.parent.mkdir(parents=True)
    cases = {name: {"environment": FACTS, "rounds": rounds} for name, rounds in _rounds().items()}
    file.write_bytes(orjson.dumps({"environment": FACTS, "cases": cases}))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.md").write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n")
    return tmp_path


def test_the_tables_replace_those_between_the_markers(repository: Path) -> None:
    page, picture = write_page(repository)
    text = page.read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nmore\n")
    assert "old" not in text
    assert (
        "| send 128 B, 4 x 64 in flight | 24.00 (16.00 to 32.00) | 3.00 (2.00 to 4.00) | 0.12 |"
        in text
    )
    assert "**missed**" in text
    assert "abc1234" in text
    assert picture.read_text().startswith("<svg")
    write_page(repository)
    assert page.read_text() == text, "writing is idempotent"


def test_the_page_names_every_loss(repository: Path) -> None:
    page, _ = write_page(repository)
    losses = page.read_text().partition("### Where pyromq loses")[2]
    # Eight times less of everything is better but for the rates.
    assert "| send 128 B, 4 x 64 in flight | messages/s | 3 | 24 | java |" in losses
    assert "server CPU" not in losses.partition("### Runs")[0]


def test_a_warm_up_that_did_not_settle_has_a_star(repository: Path) -> None:
    file = baseline_file(repository, "broker", FACTS)
    content = orjson.loads(file.read_bytes())
    content["cases"]["send128"]["rounds"]["java"][0] |= {"slices": 20, "settled": 0.0}
    content["cases"]["send128"]["rounds"]["pyromq"][0] |= {"slices": 4, "settled": 1.0}
    file.write_bytes(orjson.dumps(content))
    page, _ = write_page(repository)
    assert "| send 128 B, 4 x 64 in flight | 20 \\* | 4 |" in page.read_text()


def test_the_page_has_tables_of_replication_also_with_an_invalid_round(repository: Path) -> None:
    file = baseline_file(repository, "broker", FACTS)
    content = orjson.loads(file.read_bytes())
    content["cases"]["replication"]["rounds"]["java"].insert(0, {INVALID: 1.0})
    file.write_bytes(orjson.dumps(content))
    page, _ = write_page(repository)
    text = page.read_text()
    figures = text.partition("### Replication")[2].partition("###")[0]
    assert "| CPU of master and replica, µs per message | 24.00 (16.00 to 32.00) | 3.00" in figures
    figures = text.partition("### Replica that catches up")[2].partition("###")[0]
    assert "| log received and dispatched, MB/s | 24 (16 to 32) | 3 (2 to 4) | 0.12 |" in figures


def test_a_page_without_markers_is_left_alone(repository: Path) -> None:
    page = repository / "docs" / "performance.md"
    page.write_text("by hand\n")
    with pytest.raises(ValueError, match="lacks the marker"):
        write_page(repository)
    assert page.read_text() == "by hand\n"


def test_a_missing_baseline_is_named(repository: Path) -> None:
    file = baseline_file(repository, "broker", FACTS)
    file.unlink()
    with pytest.raises(ValueError, match="holds no baseline"):
        write_page(repository)


def test_the_plot_has_a_bar_per_case_and_contender() -> None:
    tree = ET.fromstring(plot(_rounds(), THROUGHPUT))
    bars = [each for each in tree.iter() if each.tag.endswith("rect")]
    assert len(bars) == 1 + 2 * len(THROUGHPUT)
