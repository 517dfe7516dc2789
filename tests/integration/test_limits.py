"""The default limits leave room for a large broker: docs/limits.md names the size."""

from __future__ import annotations

import io
import re
import resource
from pathlib import Path

import pytest
from rich.console import Console

from bench.connections import Size, measure_load

SIZE = Size(topics=10_000, groups=2_000, connections=5_000, seconds=0.2)


def test_no_default_limit_is_in_the_way_of_a_large_broker(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * SIZE.connections + 1000:
        pytest.skip(f"`ulimit -Hn` is {hard}: too few for {SIZE.connections} connections")
    # Every answer must be a success; a ServerError says which one is not.
    table, _ = measure_load(tmp_path, SIZE, Console(file=io.StringIO()))
    assert re.search(r"10,000 topics, 2,000 groups, 5,000 connections", table), table
