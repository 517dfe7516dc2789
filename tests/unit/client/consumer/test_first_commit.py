from __future__ import annotations

from pyromq.client.consumer.first_commit import KnownOffsetTables, OffsetTable


def table_of(queue: str) -> OffsetTable:
    """Queues are named BROKER-TOPIC-NUMBER here."""
    broker, topic, _ = queue.split("-")
    return broker, "g", topic


def test_one_commit_of_each_unknown_table_goes_first() -> None:
    tables = KnownOffsetTables()
    offsets = {"b0-t-0": 1, "b0-t-1": 2, "b1-t-0": 3, "b0-u-0": 4, "b1-t-1": 5}
    first, rest = tables.split_first(offsets, table_of)
    assert first == {"b0-t-0": 1, "b1-t-0": 3, "b0-u-0": 4}
    assert rest == {"b0-t-1": 2, "b1-t-1": 5}


def test_a_table_counts_only_when_it_was_added() -> None:
    tables = KnownOffsetTables()
    offsets = {"b0-t-0": 1, "b0-t-1": 2}
    assert tables.split_first(offsets, table_of) == tables.split_first(offsets, table_of)
    assert ("b0", "g", "t") not in tables
    tables.add(("b0", "g", "t"))
    assert ("b0", "g", "t") in tables
    assert tables.split_first(offsets, table_of) == ({}, offsets)


def test_groups_have_tables_of_their_own() -> None:
    tables = KnownOffsetTables()
    tables.add(("b0", "other", "t"))
    assert tables.split_first({"b0-t-0": 1}, table_of) == ({"b0-t-0": 1}, {})


def test_no_commits_split_into_none() -> None:
    assert KnownOffsetTables().split_first({}, table_of) == ({}, {})


def test_the_tables_of_one_broker_are_forgotten() -> None:
    known = KnownOffsetTables()
    known.add(("a", "g", "t"))
    known.add(("b", "g", "t"))
    known.forget("a")
    assert ("a", "g", "t") not in known
    assert ("b", "g", "t") in known
