from __future__ import annotations

import pytest

from pyromq.base import log_lines
from pyromq.base.log_lines import MAX_LINES_OF_A_KIND, Dropped, Repeats, printable, shortened


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_long_text_is_cut_and_its_length_is_shown() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "abc... (4 characters)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("topic größe 主题", "topic größe 主题"),
        ("a\nINFO forged\r", r"a\nINFO forged\r"),
        ("\x1b[2J\x00\x7f", r"\x1b[2J\x00\x7f"),
        ("\u2028\u202e\x85", r"\u2028\u202e\x85"),
        ("\ud800", r"\ud800"),
        ("a\nb" * 10, r"a\nba\n... (30 characters)"),
    ],
)
def test_text_becomes_one_printable_line(text: str, shown: str) -> None:
    assert printable(text, 30 if len(text) < 30 else 5) == shown
    assert printable(text, 5).encode()


def test_the_first_lines_of_each_kind_are_written_and_the_others_counted() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    wanted = [repeats.is_wanted("a") for _ in range(MAX_LINES_OF_A_KIND + 7)]
    assert wanted == [True] * MAX_LINES_OF_A_KIND + [False] * 7
    assert repeats.is_wanted("b")
    assert repeats.ended() == []
    clock.now += 9.9
    assert repeats.ended() == []
    clock.now += 0.2
    [dropped] = repeats.ended()
    assert (dropped.kind, dropped.lines) == ("a", 7)
    assert dropped.seconds == pytest.approx(10.1)
    assert repeats.is_wanted("a")


def test_a_kind_may_have_its_own_limit() -> None:
    repeats = Repeats(Clock())
    assert [repeats.is_wanted("a", 1) for _ in range(3)] == [True, False, False]


def test_all_counts_can_be_fetched_early() -> None:
    repeats = Repeats(Clock())
    for _ in range(3):
        repeats.is_wanted("a", 1)
    assert repeats.ended(all_of_them=True) == [Dropped("a", 2, 0.0)]
    assert repeats.ended(all_of_them=True) == []


def test_kinds_beyond_the_limit_share_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MAX_KINDS", 10)
    clock = Clock()
    repeats = Repeats(clock)
    wanted = sum(repeats.is_wanted(number) for number in range(1000))
    assert wanted == 10 + MAX_LINES_OF_A_KIND
    clock.now += 20
    assert [each.lines for each in repeats.ended()] == [1000 - wanted]
    assert repeats.is_wanted("a new kind")


def test_few_items_are_all_named() -> None:
    assert log_lines.first_few(["a", "b"]) == "a, b"
    assert log_lines.first_few({"only": 1}) == "only"
    assert log_lines.first_few([]) == ""


def test_the_first_of_many_items_are_named() -> None:
    assert log_lines.first_few(range(5), 2) == "0, 1 and 3 others"
