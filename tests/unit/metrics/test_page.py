from __future__ import annotations

import math
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.metrics.family import counter, gauge, histogram
from pyromq.metrics.histogram import Histogram
from pyromq.metrics.page import Page, label_text, number
from tests.support.examples import examples
from tests.support.metrics import Scrape

REQUESTS = counter("requests_total", "Requests.", ("topic",))
SIZE = gauge("size_bytes", "Size, with a \\ and a\nbreak.", ("topic",))
TOOK = histogram("took_seconds", "Took.", ("topic",))
LABELS = {"node_id": "b"}


def text_of(page: Page) -> str:
    return b"".join(page.parts).decode()


def test_the_text_format() -> None:
    page = Page(LABELS, max_series=10)
    page.add(REQUESTS, (label_text(topic="a"), 7))
    page.add(SIZE, ("", 1.5))
    assert text_of(page) == (
        "# HELP requests_total Requests.\n# TYPE requests_total counter\n"
        'requests_total{node_id="b",topic="a"} 7\n'
        "# HELP size_bytes Size, with a \\\\ and a\\nbreak.\n# TYPE size_bytes gauge\n"
        'size_bytes{node_id="b"} 1.5\n'
    )


def test_open_metrics_names_counters_without_total() -> None:
    page = Page(LABELS, max_series=10, is_open_metrics=True)
    page.add(REQUESTS, ("", 7))
    assert text_of(page) == (
        '# HELP requests Requests.\n# TYPE requests counter\nrequests_total{node_id="b"} 7\n'
    )


@pytest.mark.parametrize("is_open_metrics", [False, True])
def test_histograms(is_open_metrics: bool) -> None:
    values = Histogram((0.5, 1.0))
    values.observe(0.2)
    values.observe(3.0, 2)
    page = Page(LABELS, max_series=10, is_open_metrics=is_open_metrics)
    page.add_histogram(TOOK, (label_text(topic="a"), values))
    text = text_of(page) + ("# EOF\n" if is_open_metrics else "")
    scrape = Scrape(text, is_open_metrics=is_open_metrics)
    assert scrape.value("took_seconds_bucket", le="0.5", topic="a") == 1
    assert scrape.value("took_seconds_bucket", le="1.0", topic="a") == 1
    assert scrape.value("took_seconds_bucket", le="+Inf", topic="a") == 3
    assert scrape.value("took_seconds_count", topic="a", node_id="b") == 3
    assert scrape.value("took_seconds_sum", topic="a") == pytest.approx(6.2)


@given(st.text(max_size=20), st.sampled_from([False, True]))
@settings(max_examples=examples(200), deadline=None)
def test_every_value_of_a_label_survives(value: str, is_open_metrics: bool) -> None:
    # As UTF-8: surrogates cannot be encoded, and names cannot contain them.
    value = value.encode("utf-8", "replace").decode()
    page = Page(LABELS, max_series=10, is_open_metrics=is_open_metrics)
    page.add(SIZE, (label_text(topic=value), 1))
    text = text_of(page) + ("# EOF\n" if is_open_metrics else "")
    assert Scrape(text, is_open_metrics=is_open_metrics).values_of("size_bytes", "topic") == {value}


def test_names_of_topics_are_kept() -> None:
    page = Page(LABELS, max_series=10)
    for topic in ("%RETRY%group", "a|b", 'quo"te', "back\\slash"):
        page.add(SIZE, (label_text(topic=topic), 1))
    scrape = Scrape(text_of(page))
    assert scrape.values_of("size_bytes", "topic") == {
        "%RETRY%group",
        "a|b",
        'quo"te',
        "back\\slash",
    }


def test_numbers() -> None:
    assert [number(each) for each in (math.inf, -math.inf, math.nan, 1e-7, 2.0)] == [
        "+Inf",
        "-Inf",
        "NaN",
        "1e-07",
        "2.0",
    ]


def test_truth_is_a_number() -> None:
    page = Page(LABELS, max_series=10)
    page.add(SIZE, ("", True))
    assert text_of(page).endswith("} 1\n")


def test_a_family_is_bounded() -> None:
    page = Page(LABELS, max_series=2)
    page.add(SIZE, *((label_text(topic=name), 1) for name in string.ascii_lowercase))
    page.add_histogram(
        TOOK, *((label_text(topic=name), Histogram((1.0,))) for name in string.ascii_lowercase)
    )
    assert page.dropped == {"size_bytes": 24, "took_seconds": 24}
    assert page.series == 2 + 2 * 4
    assert text_of(page).count("\nsize_bytes{") == 2


def test_a_family_without_series_is_absent() -> None:
    page = Page(LABELS, max_series=2)
    page.add(SIZE)
    assert page.parts == []


def test_large_families_come_in_parts() -> None:
    page = Page(LABELS, max_series=10_000)
    block = page.block(SIZE)
    for index in range(5000):
        block.add(f',topic="{index}"', index)
    page.close(block)
    assert max(map(len, page.parts)) < len(text_of(page)) / 3
    assert len(Scrape(text_of(page)).samples) == 5000
