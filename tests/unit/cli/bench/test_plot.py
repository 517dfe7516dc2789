from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from pyromq.cli.bench.figures import Latencies, Report, Sample
from pyromq.cli.bench.plot import plot

SVG = "{http://www.w3.org/2000/svg}"


def report(seconds: int) -> Report:
    made = Report("a <load> & more", "send", 1)
    for number in range(seconds):
        made.add(Sample(1000 * (number + 1), 0, 0.0, Latencies.of([0.001, 0.02])), number + 1.0)
    return made


def places(line: ET.Element) -> list[tuple[float, float]]:
    return [
        (float(x), float(y))
        for x, y in (pair.split(",") for pair in line.get("points", "").split())
    ]


def test_the_timeline_stays_inside_the_picture() -> None:
    picture = ET.fromstring(plot(report(5)))
    _, _, width, height = map(float, picture.get("viewBox", "").split())
    lines = picture.findall(f"{SVG}polyline")
    assert len(lines) == 4  # rate, max, p99, p50
    for line in lines:
        assert len(places(line)) == 5
        for x, y in places(line):
            assert 0 <= x <= width
            assert 0 <= y <= height
    rising = [y for _, y in places(lines[0])]
    assert rising == sorted(rising, reverse=True)  # y grows downwards
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert texts[0] == "a <load> & more"
    assert "5,000" in texts


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_plot_of_few_points(seconds: int) -> None:
    assert len(ET.fromstring(plot(report(seconds))).findall(f"{SVG}polyline")) == 4


def test_a_long_load_is_thinned_out() -> None:
    text = plot(report(5000))
    assert max(len(found.split()) for found in re.findall('points="([^"]*)"', text)) <= 1000
