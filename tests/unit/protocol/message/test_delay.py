import pytest

from pyromq.protocol.message.delay import DelayLevels

JAVA_DEFAULT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def test_levels_count_from_one() -> None:
    levels = DelayLevels(JAVA_DEFAULT)
    assert len(levels) == 18
    assert levels.due(1, 1000) == 2000
    assert levels.due(5, 0) == 60_000
    assert levels.due(18, 5) == 7_200_005


def test_a_level_above_the_highest_is_the_highest() -> None:
    levels = DelayLevels("1s 1d")
    assert levels.due(19, 0) == levels.due(2, 0) == 86_400_000


def test_a_level_below_one_is_due_after_a_second() -> None:
    assert DelayLevels("5s").due(0, 10) == 1010
    assert DelayLevels("5s").due(-3, 10) == 1010


def test_milliseconds_are_for_tests() -> None:
    levels = DelayLevels("100ms 1s 0ms")
    assert [levels.due(level, 7) for level in (1, 2, 3)] == [107, 1007, 7]


@pytest.mark.parametrize("text", ["1", "s", "1x", "-1s", "1.5s", "1s 2", "ms", "1sm", "m1s"])
def test_what_is_no_delay_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a delay"):
        DelayLevels(text)
