"""Charts: well-formed, everything inside the picture, nothing from a message unescaped."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from pyromq.spark.report.charts import Line, bar_chart, line_chart, short_number

SVG = "{http://www.w3.org/2000/svg}"


def label(value: float) -> str:
    return f"<{value:g}>"


def test_a_line_goes_through_its_points() -> None:
    chart = line_chart([Line("a", [(0, 0), (5, 10), (10, 5)])], x_label=label, y_title="y")
    picture = ET.fromstring(chart)
    (line,) = picture.iter(SVG + "polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert places[1][1] < places[2][1] < places[0][1], "more is higher"
    assert all(0 <= x <= 860 and 0 <= y <= 230 for x, y in places)
    assert "<0>" in [text.text for text in picture.iter(SVG + "text")]


def test_several_lines_have_a_legend_and_one_point_is_a_dot() -> None:
    lines = [Line("<one>", [(0, 1)]), Line("two & " + "x" * 50, [(0, 1), (1, 2)])]
    picture = ET.fromstring(line_chart(lines, x_label=label, y_title="y"))
    texts = [text.text or "" for text in picture.iter(SVG + "text")]
    assert "<one>" in texts
    assert any(text.startswith("two & x") and text.endswith("…") for text in texts)
    assert len(list(picture.iter(SVG + "circle"))) == 1


@pytest.mark.parametrize("points", [[(0.0, 0.0)], [(3.0, 0.0), (3.0, 0.0)]])
def test_flat_lines_are_no_trouble(points: list[tuple[float, float]]) -> None:
    ET.fromstring(line_chart([Line("a", points)], x_label=label, y_title="y"))


def test_bars_are_as_long_as_their_values() -> None:
    picture = ET.fromstring(bar_chart([("<a>", 10), ("b", 5), ("c", 0)], unit=" B"))
    widths = [float(bar.attrib["width"]) for bar in picture.iter(SVG + "rect")]
    assert widths[0] == pytest.approx(2 * widths[1])
    assert widths[2] == 0
    assert "10 B" in [text.text for text in picture.iter(SVG + "text")]


def test_nothing_to_show() -> None:
    assert "nothing" in bar_chart([])
    assert "nothing" in line_chart([], x_label=label, y_title="y")


def test_numbers_for_people() -> None:
    numbers = (0, 12, 999, 1200, 3.4e7, 5e9, 7e12)
    assert [short_number(n) for n in numbers] == ["0", "12", "999", "1.2k", "34M", "5G", "7T"]
