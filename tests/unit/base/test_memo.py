from __future__ import annotations

import pytest

from pyromq.base.memo import Memo


def test_a_value_is_computed_once() -> None:
    made = []

    def make(key: str) -> int:
        made.append(key)
        return int(key)

    memo: Memo[str, int] = Memo(make)

    assert [memo["1"], memo["2"], memo["1"], memo["1"]] == [1, 2, 1, 1]
    assert made == ["1", "2"]


def test_an_exception_is_not_cached() -> None:
    memo: Memo[str, int] = Memo(int)

    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            memo["x"]
    assert len(memo) == 0


def test_none_is_a_value_like_others() -> None:
    made: list[str] = []
    memo: Memo[str, None] = Memo(made.append)

    assert memo["a"] is memo["a"] is None
    assert made == ["a"]


def test_hostile_keys_do_not_grow_the_cache() -> None:
    memo: Memo[int, int] = Memo(lambda key: -key, max_entries=10)

    for key in range(1000):
        assert memo[key] == -key
        assert len(memo) <= 10


@pytest.mark.parametrize("key", ["x" * 100_000, b"x" * 100_000])
def test_a_long_key_is_not_cached(key: str | bytes) -> None:
    """A header field may have megabytes; caching thousands would exhaust memory."""
    memo: Memo[str | bytes, int] = Memo(len)

    assert memo[key] == 100_000
    assert len(memo) == 0
    assert memo[key[:100]] == 100
    assert len(memo) == 1


def test_a_cache_of_few_long_strings() -> None:
    memo: Memo[str, int] = Memo(len, max_entries=2, max_length=100_000)

    for letter in "abc":
        assert memo[letter * 100_000] == 100_000
    assert list(memo) == ["c" * 100_000]
    assert memo["c" * 100_001] == 100_001
    assert len(memo) == 1


def test_a_long_value_is_not_cached() -> None:
    memo: Memo[int, bytes] = Memo(bytes)

    assert len(memo[100_000]) == 100_000
    assert len(memo) == 0
    assert memo[3] is memo[3]
