from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.copied_tables import CopyError
from pyromq.broker.state.groups import GroupTable
from pyromq.protocol import names
from pyromq.protocol.wire.bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError

CONFIG = BrokerConfig(
    broker_name="broker-a", broker_ip1="127.0.0.1", broker_ip2="127.0.0.1", namesrv_addr=None
)
NO_CREATION = dataclasses.replace(CONFIG, auto_create_subscription_group=False)

JAVA_FILE = """{
\t"dataVersion":{
\t\t"counter":3,
\t\t"timestamp":1700000000123
\t},
\t"subscriptionGroupTable":{
\t\t"payments":{
\t\t\t"brokerId":0,
\t\t\t"consumeBroadcastEnable":true,
\t\t\t"consumeEnable":false,
\t\t\t"consumeFromMinEnable":true,
\t\t\t"groupName":"payments",
\t\t\t"notifyConsumerIdsChangedEnable":true,
\t\t\t"retryMaxTimes":5,
\t\t\t"retryQueueNums":1,
\t\t\t"whichBrokerWhenConsumeSlowly":1
\t\t}
\t}
}"""
PAYMENTS = SubscriptionGroupConfig("payments", consume_enable=False, retry_max_times=5)


@pytest.fixture
def groups(tmp_path: Path) -> GroupTable:
    return GroupTable(CONFIG, tmp_path, now=lambda: 1000)


def test_system_groups_exist(groups: GroupTable) -> None:
    assert set(groups.snapshot().subscription_group_table) == set(names.SYSTEM_GROUPS)
    assert len(groups) == 7


def test_first_appearance_creates_a_group(groups: GroupTable) -> None:
    created = groups.find("orders")
    assert created == SubscriptionGroupConfig("orders")
    assert groups.find("orders") is created
    assert groups.data_version == DataVersion(1000, 1)


def test_creation_can_be_switched_off_but_not_for_system_groups(tmp_path: Path) -> None:
    groups = GroupTable(NO_CREATION, tmp_path)
    assert groups.find("orders") is None
    assert groups.find("TOOLS_CONSUMER") is not None
    assert groups.find("CID_RMQ_SYS_TRANS") is not None


@pytest.mark.parametrize("name", ["", "a/../../b", "x" * 256, "a@b", "a b"])
def test_illegal_names_are_not_created(groups: GroupTable, name: str) -> None:
    assert groups.find(name) is None
    assert name not in groups


def test_update_disable_delete(groups: GroupTable) -> None:
    config = SubscriptionGroupConfig("orders", retry_queue_nums=3)
    groups.update(config)
    assert groups.find("orders") is config
    groups.disable_consume("orders")
    disabled = groups.find("orders")
    assert disabled == dataclasses.replace(config, consume_enable=False)
    assert config.consume_enable, "a configuration that was handed out must not change"
    assert groups.delete("orders")
    assert not groups.delete("orders")
    assert "orders" not in groups
    assert groups.data_version.counter == 3


def test_reads_and_writes_the_file_of_rocketmq(groups: GroupTable, tmp_path: Path) -> None:
    (tmp_path / "subscriptionGroup.json").write_text(JAVA_FILE)
    groups.load()
    assert groups.find("payments") == PAYMENTS
    assert groups.data_version == DataVersion(1700000000123, 3)
    groups.find("orders")
    saved = json.loads((tmp_path / "subscriptionGroup.json").read_text())
    assert set(saved) == {"dataVersion", "subscriptionGroupTable"}
    expected = json.loads(JAVA_FILE)["subscriptionGroupTable"]["payments"]
    assert saved["subscriptionGroupTable"]["payments"] == expected
    again = GroupTable(CONFIG, tmp_path)
    again.load()
    assert again.snapshot() == groups.snapshot()


def test_a_full_table_takes_only_system_groups(tmp_path: Path) -> None:
    limit = len(GroupTable(CONFIG, tmp_path)) + 1
    groups = GroupTable(dataclasses.replace(CONFIG, max_subscription_groups=limit), tmp_path)
    groups.find("first")
    creations: list[Callable[[], object]] = [
        lambda: groups.find("second"),
        lambda: groups.update(SubscriptionGroupConfig("second")),
    ]
    for create in creations:
        with pytest.raises(RequestError, match=r"second not created: .*Groups\)") as refused:
            create()
        assert refused.value.code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert groups.find("first") is not None
    assert groups.find("CID_RMQ_SYS_x") is not None
    groups.update(SubscriptionGroupConfig("first", retry_queue_nums=3))
    groups.delete("first")
    groups.delete("CID_RMQ_SYS_x")
    groups.find("second")


def test_a_copy_replaces_table_and_version(tmp_path: Path) -> None:
    table = GroupTable(CONFIG, tmp_path)
    table.find("gone")
    copy = SubscriptionGroupWrapper(
        {"g": SubscriptionGroupConfig("g", retry_max_times=3)}, DataVersion(5000, 9)
    )
    assert table.take_over(copy)
    assert table.snapshot() == copy
    assert table.data_version is copy.data_version
    again = GroupTable(CONFIG, tmp_path)
    again.load()
    assert again.get("g") == SubscriptionGroupConfig("g", retry_max_times=3)
    table.find("local")
    assert "local" not in copy.subscription_group_table, "the table has its own copy"
    assert table.take_over(copy)
    assert "local" not in table
    assert not table.take_over(copy), "the same version"


def test_a_copy_with_too_many_groups_changes_nothing(tmp_path: Path) -> None:
    table = GroupTable(dataclasses.replace(CONFIG, max_subscription_groups=2), tmp_path)
    before = table.snapshot()
    system = before.subscription_group_table
    groups = {name: SubscriptionGroupConfig(name) for name in ("a", "b", "c")}
    with pytest.raises(CopyError, match="3 consumer groups, limit 2: raise maxSubscriptionGroups"):
        table.take_over(SubscriptionGroupWrapper(system | groups, DataVersion(5000, 9)))
    assert table.snapshot() == before
    del groups["c"]
    assert table.take_over(SubscriptionGroupWrapper(system | groups, DataVersion(5000, 9)))
