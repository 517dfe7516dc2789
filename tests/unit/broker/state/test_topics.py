from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state import topics as module
from pyromq.broker.state.copied_tables import CopyError
from pyromq.broker.state.persistence import PersistenceError
from pyromq.broker.state.topics import TOPIC_UNIT, TOPIC_UNIT_SUBSCRIPTION, TopicTable
from pyromq.protocol.names import TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC
from pyromq.protocol.wire.bodies import (
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
)
from pyromq.protocol.wire.frame import RequestError

CONFIG = BrokerConfig(
    broker_name="broker-a", broker_ip1="127.0.0.1", broker_ip2="127.0.0.1", namesrv_addr=None
)

#: Name, read queues, write queues, permission: RocketMQ 4.9.7 after its first start.
SYSTEM = {
    ("SELF_TEST_TOPIC", 1, 1, 6),
    ("TBW102", 8, 8, 7),
    ("BenchmarkTest", 1024, 1024, 6),
    ("DefaultCluster", 16, 16, 7),
    ("broker-a", 1, 1, 7),
    ("OFFSET_MOVED_EVENT", 1, 1, 6),
    ("SCHEDULE_TOPIC_XXXX", 18, 18, 6),
    ("DefaultCluster_REPLY_TOPIC", 1, 1, 6),
}

#: A file as RocketMQ writes it.
JAVA_FILE = """{
\t"dataVersion":{
\t\t"counter":7,
\t\t"timestamp":1700000000123
\t},
\t"topicConfigTable":{
\t\t"orders":{
\t\t\t"order":true,
\t\t\t"perm":6,
\t\t\t"readQueueNums":4,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"orders",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":3
\t\t},
\t\t"TBW102":{
\t\t\t"order":false,
\t\t\t"perm":7,
\t\t\t"readQueueNums":4,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"TBW102",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":4
\t\t}
\t}
}"""


@pytest.fixture
def changes() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, changes: list[str]) -> Callable[..., TopicTable]:
    def make(**settings: object) -> TopicTable:
        config = dataclasses.replace(CONFIG, **settings)  # type: ignore[arg-type]
        return TopicTable(config, tmp_path, on_change=changes.append, now=lambda: 1000)

    return make


@pytest.fixture
def topics(make: Callable[..., TopicTable]) -> TopicTable:
    return make()


def rows(table: TopicTable) -> set[tuple[str, int, int, int]]:
    return {
        (topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm)
        for topic in table.snapshot().topic_config_table.values()
    }


def test_system_topics(make: Callable[..., TopicTable]) -> None:
    assert rows(make()) == SYSTEM
    assert rows(make(trace_topic_enable=True)) == SYSTEM | {("RMQ_SYS_TRACE_TOPIC", 1, 1, 6)}
    assert rows(make(auto_create_topic_enable=False)) == SYSTEM - {("TBW102", 8, 8, 7)}
    closed = make(cluster_topic_enable=False, broker_topic_enable=False)
    assert {("DefaultCluster", 16, 16, 1), ("broker-a", 1, 1, 1)} < rows(closed)
    assert ("TBW102", 3, 3, 7) in rows(make(default_topic_queue_nums=3))


def test_the_template_depends_on_its_setting(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, auto_create_topic_enable=False)
    table = TopicTable(config, tmp_path)
    version = table.data_version
    table.settings_changed()
    assert table.data_version is version
    assert table.create_for_send("orders", "TBW102", 4) is None
    object.__setattr__(config, "auto_create_topic_enable", True)  # as `LiveConfig` does
    table.settings_changed()
    assert table.create_for_send("orders", "TBW102", 4) is not None
    assert "TBW102" in table.system_topics()


def test_listeners_hear_of_topics_that_sends_create_and_of_no_others(topics: TopicTable) -> None:
    created: list[TopicConfig] = []
    topics.add_creation_listener(created.append)
    topics.update(TopicConfig("by-admin", 4, 4))
    topics.create_for_send_back("%RETRY%group", 1)
    topics.create_for_send("by-admin", "TBW102", 4)
    assert created == []
    topic = topics.create_for_send("orders", "TBW102", 4)
    topics.create_for_send("orders", "TBW102", 4)
    assert created == [topic]


def test_send_creates_from_the_template(topics: TopicTable, changes: list[str]) -> None:
    created = topics.create_for_send("orders", "TBW102", 4, sys_flag=TOPIC_UNIT)
    assert created == TopicConfig("orders", 4, 4, 6, TopicFilterType.SINGLE_TAG, TOPIC_UNIT)
    assert topics.get("orders") is created
    assert topics.create_for_send("orders", "TBW102", 7) is created
    assert changes == ["orders"]
    assert topics.data_version == DataVersion(1000, 1)


@pytest.mark.parametrize(("asked", "got"), [(4, 4), (100, 8), (2**31 - 1, 8), (0, 1), (-5, 1)])
def test_queues_are_at_most_the_templates(topics: TopicTable, asked: int, got: int) -> None:
    created = topics.create_for_send("orders", "TBW102", asked)
    assert created is not None
    assert (created.read_queue_nums, created.write_queue_nums) == (got, got)


@pytest.mark.parametrize("template", ["absent", "SELF_TEST_TOPIC"])
def test_send_does_not_create_without_a_template(
    topics: TopicTable, changes: list[str], template: str
) -> None:
    assert topics.create_for_send("orders", template, 4) is None
    assert "orders" not in topics
    assert changes == []


def test_send_does_not_create_when_switched_off(make: Callable[..., TopicTable]) -> None:
    table = make(auto_create_topic_enable=False)
    # The template may come from a file that was written when creation was on.
    table.update(TopicConfig("TBW102", 8, 8, 7))
    assert table.create_for_send("orders", "TBW102", 4) is None


@pytest.mark.parametrize("name", ["", "a/../b", "x" * 128, "a b", "主题"])
def test_send_does_not_create_illegal_names(topics: TopicTable, name: str) -> None:
    assert topics.create_for_send(name, "TBW102", 4) is None


def test_send_back_creates_a_topic(topics: TopicTable, changes: list[str]) -> None:
    created = topics.create_for_send_back("%RETRY%g", 2, 6, TOPIC_UNIT_SUBSCRIPTION)
    assert created == TopicConfig("%RETRY%g", 2, 2, 6, topic_sys_flag=2)
    assert topics.create_for_send_back("%RETRY%g", 9) is created
    assert changes == ["%RETRY%g"]


def test_update_and_delete(topics: TopicTable, changes: list[str]) -> None:
    topics.update(TopicConfig("orders", 1, 1))
    topics.update(TopicConfig("orders", 2, 2))
    assert topics.get("orders") == TopicConfig("orders", 2, 2)
    assert topics.delete("orders")
    assert not topics.delete("orders")
    assert topics.get("orders") is None
    assert changes == ["orders"] * 3
    assert topics.data_version.counter == 3


def test_order_topics_follow_the_name_server(topics: TopicTable, changes: list[str]) -> None:
    for name in ("a", "b", "c"):
        topics.update(TopicConfig(name, order=name == "a"))
    kept = topics.get("a")
    del changes[:]
    topics.set_order_topics({"b", "absent"})
    assert [topics.is_order_topic(name) for name in ("a", "b", "c", "absent")] == [
        False,
        True,
        False,
        False,
    ]
    assert kept is not None
    assert kept.order, "a configuration that was handed out must not change"
    assert changes == ["a", "b"]
    version = topics.data_version
    topics.set_order_topics(["b"])
    assert topics.data_version == version


def test_unit_flags(topics: TopicTable) -> None:
    topics.update(TopicConfig("orders"))
    topics.set_sys_flag("orders", TOPIC_UNIT, present=True)
    topics.set_sys_flag("orders", TOPIC_UNIT_SUBSCRIPTION, present=True)
    topics.set_sys_flag("orders", TOPIC_UNIT, present=False)
    topics.set_sys_flag("absent", TOPIC_UNIT, present=True)
    config = topics.get("orders")
    assert config is not None
    assert config.topic_sys_flag == TOPIC_UNIT_SUBSCRIPTION
    assert "absent" not in topics


def test_system_topics_are_known_by_name(topics: TopicTable) -> None:
    own = ["broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC"]
    assert all(map(topics.is_system_topic, [*own, "rmq_sys_x"]))
    topics.update(TopicConfig("orders"))
    assert not topics.is_system_topic("orders")


def test_reads_a_file_of_rocketmq(topics: TopicTable, tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(JAVA_FILE)
    topics.load()
    assert topics.get("orders") == TopicConfig("orders", 4, 3, 6, order=True)
    # The template of the file wins, even if the setting has changed since.
    assert rows(topics) == (SYSTEM - {("TBW102", 8, 8, 7)}) | {
        ("TBW102", 4, 4, 7),
        ("orders", 4, 3, 6),
    }
    assert topics.data_version == DataVersion(1700000000123, 7)


def test_saved_table_has_the_shape_of_rocketmq(topics: TopicTable, tmp_path: Path) -> None:
    topics.update(TopicConfig("orders", 4, 3, 6, order=True))
    saved = json.loads((tmp_path / "topics.json").read_text())
    assert set(saved) == {"dataVersion", "topicConfigTable"}
    assert saved["dataVersion"] == {"counter": 1, "timestamp": 1000}
    expected = json.loads(JAVA_FILE)["topicConfigTable"]["orders"]
    assert saved["topicConfigTable"]["orders"] == expected


def test_survives_a_restart(make: Callable[..., TopicTable]) -> None:
    before = make()
    before.create_for_send("orders", "TBW102", 4)
    after = make()
    after.load()
    assert after.snapshot() == before.snapshot()


def test_unreadable_file_is_an_error(topics: TopicTable, tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text('{"topicConfigTable":{"a":{"perm":"x"}}}')
    with pytest.raises(PersistenceError, match=r"topics\.json"):
        topics.load()


def test_topics_with_messages_are_adopted(topics: TopicTable, changes: list[str]) -> None:
    topics.update(TopicConfig("orders", 2, 2))
    del changes[:]
    topics.adopt({"orders": 9, "wide": 10, "narrow": 3, "%RETRY%group": 1})
    assert topics.get("wide") == TopicConfig("wide", 10, 10)
    assert topics.get("narrow") == TopicConfig("narrow", 8, 8), "what a send would have made"
    assert topics.get("%RETRY%group") == TopicConfig("%RETRY%group", 1, 1)
    assert topics.get("orders") == TopicConfig("orders", 2, 2)
    assert changes == ["wide", "narrow", "%RETRY%group"]


def test_queues_of_transactions_are_adopted(topics: TopicTable) -> None:
    topics.adopt({TRANSACTION_HALF_TOPIC: 1, TRANSACTION_OP_TOPIC: 1})
    assert topics.get(TRANSACTION_HALF_TOPIC) == TopicConfig(TRANSACTION_HALF_TOPIC, 1, 1)
    assert TRANSACTION_OP_TOPIC not in topics


def test_every_listener_is_called_for_each_change(topics: TopicTable, changes: list[str]) -> None:
    heard: list[str] = []
    topics.add_listener(heard.append)
    topics.update(TopicConfig("orders"))
    assert heard == changes == ["orders"]


def full_table(directory: Path, room: int, **settings: int) -> TopicTable:
    """Return a table with room for `room` topics besides the system's."""
    system = len(TopicTable(CONFIG, directory))
    changes: dict[str, Any] = {"max_topics": system + room, **settings}
    config = dataclasses.replace(CONFIG, **changes)
    return TopicTable(config, directory)


def test_a_full_table_takes_no_topic(tmp_path: Path) -> None:
    topics = full_table(tmp_path, 1)
    assert topics.create_for_send("first", "TBW102", 4) is not None
    version = topics.data_version
    creations: list[Callable[[], object]] = [
        lambda: topics.create_for_send("second", "TBW102", 4),
        lambda: topics.create_for_send_back("%RETRY%second", 1),
        lambda: topics.update(TopicConfig("second")),
    ]
    for create in creations:
        with pytest.raises(RequestError, match=r"second not created: .*\(maxTopics\)"):
            create()
    assert topics.data_version is version
    assert topics.create_for_send("first", "TBW102", 4) is not None
    topics.update(TopicConfig("first", 2, 2))
    topics.create_for_send_back(TRANSACTION_HALF_TOPIC, 1)
    topics.delete(TRANSACTION_HALF_TOPIC)
    topics.delete("first")
    topics.update(TopicConfig("second"))


def test_topics_whose_registration_would_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REGISTRATION_TOPICS", 2000)
    topics = TopicTable(CONFIG, tmp_path)

    def fill() -> None:
        for number in range(100):
            topics.update(TopicConfig(f"{number:0100}"))

    with pytest.raises(RequestError, match=r"bytes of topics to register, limit 2000 \(size"):
        fill()
    made = [name for name in topics.names() if name.startswith("0")]
    assert 5 < len(made) < 16
    topics.delete(made[0])
    topics.update(TopicConfig(f"{100:0100}"))
    again = TopicTable(CONFIG, tmp_path)
    again.load()
    with pytest.raises(RequestError, match="bytes of topics to register"):
        again.update(TopicConfig(f"{101:0100}"))


def test_a_table_that_fills_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topics = full_table(tmp_path, 100)
    for number in range(100):
        topics.update(TopicConfig(f"t{number}"))
    assert caplog.text.count("table nearly full: 87 topics") == 1


def copy_of(table: TopicTable, *more: TopicConfig, version: int = 9) -> TopicConfigSerializeWrapper:
    """Return a master's table: all topics of `table`, and more."""
    topics = dict(table.snapshot().topic_config_table)
    return TopicConfigSerializeWrapper(
        topics | {topic.topic_name: topic for topic in more}, DataVersion(5000, version)
    )


def test_a_copy_replaces_table_and_version(tmp_path: Path) -> None:
    table = TopicTable(CONFIG, tmp_path)
    table.update(TopicConfig("same", 4, 4))
    table.update(TopicConfig("changed", 4, 4))
    copy = copy_of(table, TopicConfig("changed", 8, 8), TopicConfig("new", 1, 1))
    table.update(TopicConfig("gone", 4, 4))
    kept = table.get("same")
    told: list[str] = []
    table.add_listener(told.append)

    assert table.take_over(copy) == ["gone"]

    assert table.snapshot() == copy
    assert table.data_version is copy.data_version
    assert table.get("same") is kept
    assert told == ["changed", "new", "gone"]
    again = TopicTable(CONFIG, tmp_path)
    again.load()
    assert again.snapshot() == copy
    registered = table.json.table(table.snapshot())
    assert TopicConfigSerializeWrapper.decode(registered) == copy


def test_a_copy_with_the_same_version_changes_nothing(tmp_path: Path) -> None:
    table = TopicTable(CONFIG, tmp_path)
    before = table.snapshot()
    copy = TopicConfigSerializeWrapper({}, table.data_version)
    assert table.take_over(copy) is None
    assert table.snapshot() == before


def test_a_copy_beyond_a_limit_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TopicTable(dataclasses.replace(CONFIG, max_topics=2), tmp_path)
    before = table.snapshot()
    topics = [TopicConfig(name) for name in ("a", "b", "c")]
    table.take_over(copy_of(table, *topics[:2]))  # the system's own topics do not count
    with pytest.raises(CopyError, match="3 topics, limit 2: raise maxTopics"):
        table.take_over(copy_of(table, *topics, version=10))
    assert set(table.names()) - before.topic_config_table.keys() == {"a", "b"}
    monkeypatch.setattr(module, "MAX_REGISTRATION_TOPICS", 100)
    with pytest.raises(CopyError, match="bytes of topics to register, limit 100"):
        table.take_over(copy_of(table, TopicConfig("a", 7, 7), version=11))
    assert table.data_version == DataVersion(5000, 9)


def test_the_size_of_a_registration_follows_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TopicTable(CONFIG, tmp_path)
    fresh = sum(topic.line_size() for topic in table.snapshot().topic_config_table.values())
    topic = TopicConfig("t" * 100, 4, 4)
    table.take_over(copy_of(table, topic))
    table.take_over(copy_of(TopicTable(CONFIG, tmp_path / "other"), version=10))
    assert topic.topic_name not in table
    monkeypatch.setattr(module, "MAX_REGISTRATION_TOPICS", fresh + topic.line_size() + 1)
    table.update(topic)  # fits only if the size shrank as well
    with pytest.raises(RequestError):
        table.update(TopicConfig("u"))


def test_a_local_change_is_undone_by_the_next_copy(tmp_path: Path) -> None:
    table = TopicTable(CONFIG, tmp_path)
    copy = copy_of(table, TopicConfig("t"))
    table.take_over(copy)
    table.create_for_send_back("%RETRY%g", 1)
    assert table.data_version != copy.data_version
    assert table.take_over(copy) == ["%RETRY%g"]
    assert table.snapshot() == copy
