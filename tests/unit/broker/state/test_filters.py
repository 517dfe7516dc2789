"""Filters: versions, deaths, bit maps, the file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state import filters as module
from pyromq.broker.state.copied_tables import CopyError
from pyromq.broker.state.filters import (
    ConsumerFilterData,
    ConsumerFilterTable,
    compile_expression,
    copied_filters,
)
from pyromq.protocol.filter.bloom import BloomFilter
from pyromq.protocol.filter.sql import SqlError, SqlExpression, compile_sql
from pyromq.protocol.wire.bodies import SubscriptionData

CONFIG = BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")

#: Written by Java 4.9.7's ConsumerFilterManager with its default bloom filter for tests.
JAVA = (
    b'{"filterDataByTopic":{"T1":{"groupFilterData":{"G1":{"bloomFilterData":{"bitNum":216,'
    b'"bitPos":[68,60,52]},"bornTime":1794795604632,"clientVersion":7,"consumerGroup":"G1",'
    b'"dead":false,"deadTime":0,"expression":"a > 5","expressionType":"SQL92","topic":"T1"},'
    b'"G2":{"bloomFilterData":{"bitNum":216,"bitPos":[167,132,97]},"bornTime":1794795604721,'
    b'"clientVersion":8,"consumerGroup":"G2","dead":true,"deadTime":1794795604723,'
    b'"expression":"b = \'x\'","expressionType":"SQL92","topic":"T1"}},"topic":"T1"},'
    b'"T2":{"groupFilterData":{"G1":{"bloomFilterData":{"bitNum":216,"bitPos":[155,166,6]},'
    b'"bornTime":1794795604722,"clientVersion":9,"consumerGroup":"G1","dead":false,'
    b'"deadTime":0,"expression":"a IS NULL","expressionType":"SQL92","topic":"T2"}},'
    b'"topic":"T2"}}}'
)
JAVA_CONFIG = dataclasses.replace(
    CONFIG, max_error_rate_of_bloom_filter=20, expect_consumer_num_use_filter=64
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(tmp_path: Path, clock: Clock) -> ConsumerFilterTable:
    return ConsumerFilterTable(CONFIG, tmp_path, now=lambda: clock.now)


def sql(text: str, version: int = 1, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, expression_type=kind)


def text_of(table: ConsumerFilterTable, topic: str = "T", group: str = "g") -> str | None:
    found = table.find(topic, group)
    return None if found is None else found.text


def test_a_heartbeat_registers_sql_subscriptions(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("a > 5"), SubscriptionData("Tags", "x"), sql("", topic="Empty")])
    assert text_of(table) == "a > 5"
    assert text_of(table, "Tags") is None
    assert text_of(table, "Empty") is None
    wanted = table.message_filter("T", "g")
    assert wanted is not None
    assert wanted.wants(b"a\x016")
    assert table.message_filter("T", "other") is None


def test_an_expression_that_does_not_compile_is_not_registered(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("a >"), sql("a > 5", topic="X", kind="XPATH")])
    assert text_of(table) is None
    assert text_of(table, "X") is None


def test_only_a_newer_version_changes_a_filter(table: ConsumerFilterTable, clock: Clock) -> None:
    table.register("g", [sql("a > 5", 7)])
    born = clock.now
    clock.now += 1000
    table.register("g", [sql("a > 6", 6)])
    table.register("g", [sql("a > 6", 7)])
    assert text_of(table) == "a > 5"
    table.register("g", [sql("a > 5", 8)])
    found = table.find("T", "g")
    assert found is not None
    assert (found.client_version, found.born_time) == (8, born)
    table.register("g", [sql("a > 6", 9)])
    found = table.find("T", "g")
    assert found is not None
    assert (found.text, found.client_version, found.born_time) == ("a > 6", 9, clock.now)


def test_a_newer_invalid_expression_removes_the_filter(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("a > 5", 7)])
    table.register("g", [sql("a >", 8)])
    assert text_of(table) is None
    table.register("g", [sql("a > 5", 8)])
    assert text_of(table) == "a > 5"


def test_filters_die_and_are_revived(table: ConsumerFilterTable, clock: Clock) -> None:
    def is_dead(topic: str) -> bool:
        found = table.find(topic, "g")
        assert found is not None
        return found.is_dead

    table.register("g", [sql("a > 5"), sql("b > 5", topic="U")])
    assert (is_dead("T"), is_dead("U")) == (False, False)
    clock.now += 1000
    table.register("g", [sql("a > 5")])
    assert (is_dead("T"), is_dead("U")) == (False, True)
    table.unregister("g")
    table.unregister("nobody")
    assert is_dead("T")
    table.register("g", [sql("a > 5", 0), sql("b > 5", topic="U")])
    assert (is_dead("T"), is_dead("U")) == (True, False), "an old version brings nothing back"
    table.register("g", [sql("a > 5")])
    assert not is_dead("T")


def test_dead_filters_expire(table: ConsumerFilterTable, clock: Clock) -> None:
    table.register("g", [sql("a > 5")])
    table.register("h", [sql("a > 5")])
    assert text_of(table) == "a > 5"
    clock.now += 1
    table.unregister("g")
    clock.now += CONFIG.filter_data_clean_time_span - 1
    table.clean()
    assert text_of(table) == "a > 5"
    clock.now += 1
    table.clean()
    assert text_of(table) is None
    assert text_of(table, group="h") == "a > 5"
    table.unregister("g")


def test_bit_maps_name_the_groups_that_match(table: ConsumerFilterTable) -> None:
    assert table.bit_map("T", {"a": "6"}) is None
    table.register("g", [sql("a > 5")])
    table.register("h", [sql("a < 5")])
    bloom = BloomFilter(
        CONFIG.max_error_rate_of_bloom_filter, CONFIG.expect_consumer_num_use_filter
    )
    for value, expected in (("6", "g"), ("4", "h"), ("5", "")):
        bit_map = table.bit_map("T", {"a": value})
        assert bit_map is not None
        hits = [name for name in "gh" if bloom.is_hit(bloom.positions(f"{name}#T"), bit_map)]
        assert "".join(hits) == expected


def test_ruled_out_messages_do_not_match(table: ConsumerFilterTable, clock: Clock) -> None:
    table.register("g", [sql("a > 5")])
    wanted = table.message_filter("T", "g")
    assert wanted is not None
    for value in ("4", "6"):
        bit_map = table.bit_map("T", {"a": value})
        assert bit_map is not None
        is_wanted = wanted.wants(b"a\x01" + value.encode())
        assert wanted.rules_out(clock.now + 1, bit_map) is not is_wanted


def test_the_file_is_like_javas(tmp_path: Path) -> None:
    path = tmp_path / "consumerFilter.json"
    path.write_bytes(JAVA)
    now = 1794795700000
    table = ConsumerFilterTable(JAVA_CONFIG, tmp_path, now=lambda: now)
    table.load()
    assert text_of(table, "T1", "G1") == "a > 5"
    loaded = table.find("T1", "G1")
    assert loaded is not None
    assert loaded.is_dead, "who was there before is gone until a heartbeat comes"
    assert loaded.dead_time == now - 30_000
    gone = table.find("T1", "G2")
    assert gone is not None
    assert gone.dead_time == 1794795604723
    for group, topics in (("G1", ("T1", "T2")), ("G2", ())):
        table.register(
            group, [sql(text_of(table, topic, group) or "", 9, topic) for topic in topics]
        )
    table.file.save()
    expected = json.loads(JAVA)
    expected["filterDataByTopic"]["T1"]["groupFilterData"]["G1"]["clientVersion"] = 9
    assert json.loads(path.read_bytes()) == expected


def test_a_file_of_another_bloom_filter_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "consumerFilter.json").write_bytes(JAVA)
    table = ConsumerFilterTable(
        dataclasses.replace(JAVA_CONFIG, max_error_rate_of_bloom_filter=10), tmp_path
    )
    table.load()
    assert text_of(table, "T1", "G1") is None
    assert "expectConsumerNumUseFilter" in caplog.text


def test_a_loaded_invalid_expression_rules_out_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "consumerFilter.json").write_bytes(JAVA.replace(b"a IS NULL", b"a IS"))
    table = ConsumerFilterTable(JAVA_CONFIG, tmp_path)
    table.load()
    loaded = table.find("T2", "G1")
    assert loaded is not None
    assert loaded.message_filter is None
    bit_map = table.bit_map("T2", {})
    assert bit_map is not None
    assert any(bit_map)


def test_types_of_expressions() -> None:
    assert compile_expression("SQL92", "a > 5").names == {"a"}
    with pytest.raises(SqlError, match="TAG or SQL92"):
        compile_expression("XPATH", "a")
    with pytest.raises(SqlError, match="empty"):
        compile_expression("SQL92", "")


async def test_changes_are_saved(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("a > 5")])
    await table.file.saved()
    saved = json.loads(table.file.path.read_bytes())
    assert saved["filterDataByTopic"]["T"]["groupFilterData"]["g"]["expression"] == "a > 5"


def test_a_heartbeat_compiles_nothing(
    table: ConsumerFilterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def note(text: str) -> SqlExpression:
        compiled.append(text)
        return compile_sql(text)

    monkeypatch.setattr(module, "compile_sql", note)
    subscriptions = [sql(f"a > {number}", topic=f"T{number}") for number in range(100)]
    table.register("g", subscriptions)
    table.register("g", [sql(each.sub_string, 2, each.topic) for each in subscriptions])
    assert compiled == []
    assert text_of(table, "T7") == text_of(table, "T7") == "a > 7"
    assert table.bit_map("T8", {"a": "9"}) is not None
    assert compiled == ["a > 7", "a > 8"]


def test_an_unused_filter_is_dropped_with_its_group(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("a > 5"), sql("a > 5", topic="U")])
    assert text_of(table, "U") == "a > 5"
    table.unregister("g")
    table.file.save()
    saved = json.loads(table.file.path.read_bytes())
    assert list(saved["filterDataByTopic"]) == ["U"]


@pytest.mark.parametrize(
    "limits", [{"max_consumer_filters": 3}, {"max_consumer_filter_bytes": 3 * len("a > 5")}]
)
def test_a_full_table_takes_no_filter_until_others_are_dropped(
    tmp_path: Path, limits: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    table = ConsumerFilterTable(dataclasses.replace(CONFIG, **limits), tmp_path)
    table.register("g", [sql("a > 5", topic=f"T{number}") for number in range(5)])
    assert [text_of(table, f"T{number}") for number in range(5)] == ["a > 5"] * 3 + [None] * 2
    assert "2 filters of group g refused: topic T3: the broker has" in caplog.text
    assert "(maxConsumerFilter" in caplog.text
    table.register("h", [sql("a > 6")])
    assert text_of(table, group="h") is None
    table.unregister("g")
    table.register("h", [sql("a > 6")])
    assert text_of(table, group="h") == "a > 6", "the dead make room"
    table.register("h", [sql("a > 7", 2)])
    assert text_of(table, group="h") == "a > 7"


def copied(*expressions: tuple[str, str], topic: str = "T") -> list[ConsumerFilterData]:
    """Return a master's table: pairs of group and expression for one topic."""
    return [
        ConsumerFilterData(group, topic, text, "SQL92", 900_000, client_version=3)
        for group, text in expressions
    ]


def nobody(_: str) -> bool:
    return False


def test_a_copy_replaces_the_filters_of_absent_groups(
    table: ConsumerFilterTable, tmp_path: Path, clock: Clock
) -> None:
    table.take_over(copied(("g", "a > 5"), ("gone", "b = 1")), nobody)
    assert text_of(table) == "a > 5"
    assert table.take_over(copied(("g", "a > 6"), ("h", "c = 1")), nobody)
    assert [text_of(table, group=group) for group in ("g", "h", "gone")] == ["a > 6", "c = 1", None]
    assert not table.take_over(copied(("g", "a > 6"), ("h", "c = 1")), nobody)
    again = ConsumerFilterTable(CONFIG, tmp_path, now=lambda: clock.now)
    again.load()
    assert [text_of(again, group=group) for group in ("g", "h", "gone")] == ["a > 6", "c = 1", None]


def test_groups_with_members_keep_their_filters(table: ConsumerFilterTable) -> None:
    table.register("here", [sql("a > 5", version=9)])
    table.take_over(copied(("here", "a > 1"), ("g", "a > 2")), lambda group: group == "here")
    assert text_of(table, group="here") == "a > 5"
    assert text_of(table) == "a > 2"
    table.take_over([], lambda group: group == "here")
    assert text_of(table, group="here") == "a > 5"
    assert text_of(table) is None


def test_messages_dispatched_before_a_copy_are_not_judged_by_its_bits(
    table: ConsumerFilterTable, clock: Clock
) -> None:
    table.take_over(copied(("g", "a > 5")), nobody)
    found = table.find("T", "g")
    assert found is not None
    assert found.born_time > clock.now, "even if the master's clock is ahead"
    born = found.born_time
    clock.now += 500_000
    table.take_over(copied(("g", "a > 5")), nobody)
    found = table.find("T", "g")
    assert found is not None
    assert found.born_time == born, "its bits have been set since"


def test_a_copied_filter_outlives_the_last_copy_by_the_usual_time(
    table: ConsumerFilterTable, clock: Clock
) -> None:
    span = CONFIG.filter_data_clean_time_span
    table.take_over(copied(("g", "a > 5")), nobody)
    clock.now += span
    table.take_over(copied(("g", "a > 5")), nobody)
    clock.now += span - 1
    table.clean()
    assert text_of(table) == "a > 5"
    clock.now += 1
    table.clean()
    assert text_of(table) is None


def test_a_member_revives_a_copied_filter(table: ConsumerFilterTable, clock: Clock) -> None:
    table.take_over(copied(("g", "a > 5")), nobody)
    table.register("g", [sql("a > 5", version=3)])
    clock.now += 10 * CONFIG.filter_data_clean_time_span
    table.clean()
    assert text_of(table) == "a > 5"


def test_a_copy_beyond_a_limit_changes_nothing(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, max_consumer_filters=2, max_consumer_filter_bytes=12)
    table = ConsumerFilterTable(config, tmp_path)
    table.take_over(copied(("g", "a > 5"), ("h", "b = 12")), nobody)
    with pytest.raises(CopyError, match="maxConsumerFilters"):
        table.take_over(copied(("g", "x"), ("h", "y"), ("i", "z")), nobody)
    with pytest.raises(CopyError, match="13 bytes"):
        table.take_over(copied(("g", "a > 5"), ("h", "b = 1234")), nobody)
    assert [text_of(table, group=group) for group in ("g", "h", "i")] == ["a > 5", "b = 12", None]


def test_a_master_s_table_is_decoded() -> None:
    filters = copied_filters(JAVA)
    assert [(data.topic, data.consumer_group, data.expression) for data in filters] == [
        ("T1", "G1", "a > 5"),
        ("T1", "G2", "b = 'x'"),
        ("T2", "G1", "a IS NULL"),
    ]
    assert copied_filters(b'{"filterDataByTopic":{}}') == []


@pytest.mark.parametrize(
    "change",
    [
        (b'"filterDataByTopic"', b'"other"'),
        (b'"consumerGroup":"G1"', b'"consumerGroup":"../G1"'),
        (b'"topic":"T2"', b'"topic":"a/b"'),
        (b'"expressionType":"SQL92"', b'"expressionType":"TAG"'),
        (b'"expression":"a > 5"', b'"expression":""'),
        (b'"bornTime":1794795604632', b'"bornTime":"x"'),
        (b"}", b""),
    ],
)
def test_garbled_filters_are_refused(change: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - CopyError or BodyError
        copied_filters(JAVA.replace(*change))
