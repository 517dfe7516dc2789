from __future__ import annotations

from pyromq.spark.sink.unique_rows import UniqueRows

NAME = b"UNIQ_KEY\x01"


def keys(unique: UniqueRows, first: int, count: int) -> list[bytes]:
    rows = [row.tobytes() for row in unique.properties(first, count)]
    assert all(row.startswith(NAME) for row in rows)
    return [row.removeprefix(NAME) for row in rows]


def test_the_same_task_has_the_same_keys_however_its_rows_are_batched() -> None:
    whole = keys(UniqueRows.of_task("query", 7, 3), 0, 100)
    parts = UniqueRows.of_task("query", 7, 3)
    assert keys(parts, 0, 40) + keys(parts, 40, 60) == whole
    assert len(set(whole)) == 100
    assert all(len(key) == 32 and key.isalnum() and key.upper() == key for key in whole)


def test_other_tasks_have_other_keys() -> None:
    tasks = [("q", 1, 2), ("q", 12, ""), ("q", 1, 3), ("r", 1, 2), ("q", "", 12)]
    found = [key for task in tasks for key in keys(UniqueRows.of_task(*task), 0, 50)]
    assert len(set(found)) == len(found)


def test_rows_are_counted_beyond_the_counter_of_a_millisecond() -> None:
    unique = UniqueRows.of_task("q")
    assert [key[20:] for key in keys(unique, 0xFFFF, 2)] == [b"00000000FFFF", b"000000010000"]


def test_random_keys_differ_and_hold_a_time_of_this_month() -> None:
    one, other = (keys(UniqueRows.random(), 0, 3) for _ in range(2))
    assert len({*one, *other}) == 6
    assert 0 <= int(one[0][20:28], 16) < 31 * 24 * 3600 * 1000


def test_no_rows() -> None:
    assert keys(UniqueRows.random(), 0, 0) == []
