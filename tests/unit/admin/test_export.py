from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from pyromq.admin import Admin
from pyromq.admin.errors import UnknownClusterError
from pyromq.admin.export import Export
from pyromq.client import PushConsumer
from pyromq.testing import Cluster
from tests.support.patience import until

CLUSTER = "DefaultCluster"


@pytest.mark.rocketmq(brokers=2, replicas=1)
async def test_settings(admin: Admin) -> None:
    export = await admin.export.configs(CLUSTER)
    assert export.file_name == "configs.json"
    assert export.content["clusterScale"] == {
        "namesrvSize": 1,
        "masterBrokerSize": 2,
        "slaveBrokerSize": 2,
    }
    assert set(export.content["brokerConfigs"]) == {"broker-0", "broker-1"}
    assert len(export.content["brokerConfigs"]["broker-0"]) == 16


@pytest.mark.rocketmq(brokers=2)
async def test_metadata_of_a_cluster_is_summed_up(rocketmq: Cluster, admin: Admin) -> None:
    rocketmq.create_topic("orders", queues=3)
    async with PushConsumer(
        rocketmq.namesrv, group="readers", handler=lambda _: None, subscriptions=["orders"]
    ):

        async def has_group() -> bool:
            export = await admin.export.metadata(cluster=CLUSTER)
            retries: dict[str, Any] = export.content["subscriptionGroupTable"]
            return "readers" in retries and retries["readers"]["retryQueueNums"] == 2

        await until(has_group)
    export = await admin.export.metadata(cluster=CLUSTER, special=True)
    topics = export.content["topicConfigTable"]
    assert export.file_name == "metadata.json"
    assert topics["orders"]["readQueueNums"] == topics["orders"]["writeQueueNums"] == 6
    assert "%RETRY%readers" in topics
    assert "TBW102" not in topics
    plain = await admin.export.metadata(cluster=CLUSTER, groups=False)
    assert plain.file_name == "topic.json"
    assert set(plain.content["topicConfigTable"]) == {"orders"}
    assert "subscriptionGroupTable" not in plain.content
    groups = await admin.export.metadata(cluster=CLUSTER, topics=False)
    assert groups.file_name == "subscriptionGroup.json"
    (broker, _) = rocketmq.brokers
    one = await admin.export.topics(broker.address)
    assert one.content["topicConfigTable"]["orders"]["readQueueNums"] == 3
    assert (await admin.export.groups(broker.address)).content["dataVersion"]


async def test_metrics(rocketmq: Cluster, admin: Admin) -> None:
    rocketmq.create_topic("orders")
    async with PushConsumer(
        rocketmq.namesrv, group="readers", handler=lambda _: None, subscriptions=["orders"]
    ):

        async def shows_client() -> bool:
            report = (await admin.export.metrics(CLUSTER)).content["evaluateReport"]["broker-0"]
            return bool(report["runtimeVersion"]["clientInfo"])

        await until(shows_client)
        export = await admin.export.metrics(CLUSTER)
    report = export.content["evaluateReport"]["broker-0"]
    assert report["runtimeVersion"] == {
        "rocketmqVersion": "V4_9_7",
        "clientInfo": ["PYTHON%V4_9_7"],
    }
    assert report["runtimeQuota"]["topicSize"] == 1
    assert report["runtimeQuota"]["groupSize"] == 1
    assert export.content["totalData"]["totalTps"]["totalNormalInTps"] == 0.0
    with pytest.raises(UnknownClusterError):
        await admin.export.metrics("nowhere")


def test_a_file_is_written_below_a_new_folder(tmp_path: Path) -> None:
    path = Export("one.json", {"b": 1, "a": {"ä": None}}).write(tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "one.json"
    assert orjson.loads(path.read_bytes()) == {"a": {"ä": None}, "b": 1}
