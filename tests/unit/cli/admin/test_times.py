from __future__ import annotations

from datetime import datetime

import click
import pytest

from pyromq.base.clock import now_ms
from pyromq.cli.admin.times import END, Timestamp, parse_time


def test_times_in_mqadmin_s_forms() -> None:
    assert parse_time("1700000000123") == 1700000000123
    assert parse_time("-1") == -1
    local = datetime(2024, 1, 31, 12, 0, 5).astimezone()
    assert parse_time("2024-01-31#12:00:05:007") == int(local.timestamp()) * 1000 + 7
    assert parse_time("2024-1-31#12:0:5:7") == int(local.timestamp()) * 1000 + 7


def test_the_present() -> None:
    for word in ("now", "currentTimeMillis"):
        before = now_ms()
        found = parse_time(word)
        assert found is not None
        assert before <= found <= now_ms()
    assert parse_time("now", allow_now=True) == END


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2024-01-31", "2024-13-31#12:00:05:007", "1e9", "2024-01-31 12:00:05"]
)
def test_other_words_are_refused(text: str) -> None:
    assert parse_time(text) is None
    with pytest.raises(click.BadParameter, match="is not a time: give now, currentTimeMillis"):
        Timestamp(allow_now=True).convert(text, None, None)


def test_values_are_trimmed() -> None:
    assert Timestamp().convert(" 5 ", None, None) == 5
    assert Timestamp().convert(6, None, None) == 6
