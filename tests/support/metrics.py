"""What a scrape returned, and scrapes without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from pyromq.metrics.endpoint import run_collectors
from pyromq.metrics.page import Collector, Page
from tests.support.patience import DEADLINE

_CONSTANT = {"node_type": "test"}
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """The samples of a page, as Prometheus' own parser reads them."""

    def __init__(self, text: str, *, is_open_metrics: bool = False) -> None:
        self.text = text
        parse = open_metrics_families if is_open_metrics else text_string_to_metric_families
        self.families = list(parse(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def series(self, name: str, /, **labels: str) -> list[float]:
        """Return the values of a metric whose labels include these."""
        return [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, /, **labels: str) -> float:
        """Return the value of the only such series."""
        (value,) = self.series(name, **labels)
        return value

    def names(self) -> set[str]:
        """Return the names of all samples."""
        return {sample.name for sample in self.samples}

    def values_of(self, name: str, label: str) -> set[str]:
        """Return the values that a label has in the series of a metric."""
        return {sample.labels[label] for sample in self.samples if sample.name == name}


async def collected(
    *collectors: Collector, max_series: int = 1000, is_open_metrics: bool = False
) -> Scrape:
    """Scrape collectors without a server."""
    page = Page(_CONSTANT, max_series=max_series, is_open_metrics=is_open_metrics)
    await run_collectors(collectors, page)
    end = [b"# EOF\n"] if is_open_metrics else []
    text = b"".join([*page.parts, *end]).decode()
    return Scrape(text, is_open_metrics=is_open_metrics)


async def fetched(
    port: int, path: str = "/metrics", *, headers: Sequence[tuple[str, str]] = ()
) -> tuple[int, str]:
    """Return status and text of a page of this machine."""

    lines = [f"GET {path} HTTP/1.0", *(f"{name}: {value}" for name, value in headers), "", ""]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write("\r\n".join(lines).encode())
        async with asyncio.timeout(DEADLINE):
            data = await reader.read()
    finally:
        writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body.decode()


async def scraped(port: int) -> Scrape:
    """Scrape a server."""
    status, text = await fetched(port)
    assert status == 200, text
    return Scrape(text)
