"""The page of a report: everything is on it, hostile names do no harm."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser

from pyromq.spark.report.data import GroupLag, ReportData, TopicFigures
from pyromq.spark.report.page import page

EVIL = "<script>alert('x')</script>"
NOW = datetime(2026, 11, 16, 5, 0, tzinfo=UTC)


class Seen(HTMLParser):
    """Tags and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(data: ReportData) -> Seen:
    parser = Seen()
    parser.feed(page(data, title=EVIL, made_at=NOW))
    return parser


def data_of(*topics: str) -> ReportData:
    return ReportData(
        topics=[
            TopicFigures(topic, 1_234_567, 5_000_000, 0, 1_700_000_000_000, 1.5, 20.0, 12_000.0)
            for topic in topics
        ],
        step=10,
        rates={topic: [(0, 100, 1000), (10, 50, 500)] for topic in topics},
        sizes={topic: [(8, 3), (9, 7)] for topic in topics},
        delays={topic: [(0, 5), (1, 5)] for topic in topics},
        keys={topics[0]: [(EVIL, 9)]},
        queues={topic: [("broker-a", 0, 30, 300), ("broker-a", 1, 10, 100)] for topic in topics},
        lags=[GroupLag("slow", topics[0], 42, 1_700_000_000_000), GroupLag("new", topics[0], 7, 0)],
    )


def test_everything_is_on_the_page() -> None:
    found = seen(data_of("Orders", EVIL))
    assert found.text.count(EVIL) >= 3
    assert "script" not in found.tags
    for text in ("1,234,567", "2023-11-14 22:13:20", "1.5 ms", "12 s", "slow", "42"):
        assert text in found.text
    assert "The fullest queue has 1.50 times the average" in found.text
    assert "below 512B" in found.text


def test_nothing_comes_from_elsewhere() -> None:
    text = page(data_of("Orders"), title="Report", made_at=NOW)
    assert "src=" not in text
    assert "href=" not in text
    assert text.replace("http://www.w3.org/2000/svg", "").count("http") == 0


def test_many_topics_are_left_out_of_the_common_charts() -> None:
    found = seen(data_of(*[f"T{number}" for number in range(9)]))
    assert "The busiest 7 topics; 2 more are not shown." in found.text


def test_a_page_about_nothing() -> None:
    assert "nothing to show" in seen(ReportData()).text


def test_clocks_that_are_far_off() -> None:
    data = data_of("Orders")
    data.topics[0] = data.topics[0]._replace(last_ms=1 << 62)
    assert f"{1 << 62} ms" in seen(data).text
