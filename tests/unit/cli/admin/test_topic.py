from __future__ import annotations

import json

import pytest

from pyromq.cli.admin.topic import permission_text
from pyromq.testing import Cluster
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


def test_the_life_of_a_topic(rocketmq: Cluster) -> None:
    namesrv, (broker,) = rocketmq.namesrv, rocketmq.brokers
    created = output(namesrv, "updateTopic -c DefaultCluster -t orders -r 2 -w 3")
    assert created.splitlines() == [
        f"create topic to {broker.address} success.",
        (
            "TopicConfig [topicName=orders, readQueueNums=2, writeQueueNums=3, perm=RW-, "
            "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]"
        ),
    ]
    assert "orders" in output(namesrv, "topicList").splitlines()
    assert "orders" in as_json(namesrv, "topicList")
    assert output(namesrv, "topicClusterList -t orders") == "DefaultCluster\n"
    assert as_json(namesrv, "topicClusterList -t orders") == ["DefaultCluster"]
    route = json.loads(output(namesrv, "topicRoute -t orders"))
    assert route["queueDatas"][0]["writeQueueNums"] == 3
    assert as_json(namesrv, "topicRoute -t orders")["queues"][0]["read_queues"] == 2
    assert output(namesrv, "topicRoute -t orders -l").splitlines()[-1].split() == [
        "Total:", "1", "2", "3",
    ]  # fmt: skip
    assert as_json(namesrv, "topicStatus -t orders")[2]["queue"]["queue_id"] == 2
    assert as_json(namesrv, "getTopicConfig -t orders")[broker.address]["write_queues"] == 3
    assert len(output(namesrv, "getTopicConfig -t orders").splitlines()) == 2

    dry = invoke(namesrv, "deleteTopic -t orders -c DefaultCluster --dry-run")
    assert "nothing is changed" in dry.output
    deleted = as_json(namesrv, "deleteTopic -t orders -c DefaultCluster")
    assert deleted["brokers"] == [broker.address]
    again = invoke(namesrv, "deleteTopic -t orders -c DefaultCluster")
    assert again.exit_code == 3


def test_permissions(rocketmq: Cluster, rocketmq_topic: str) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    line = f"updateTopicPerm -b {address} -t {rocketmq_topic} -p"
    assert output(namesrv, f"{line} 4").startswith(
        f"update topic perm from 6 to 4 in {address} success.\nTopicConfig [topicName="
    )
    assert output(namesrv, f"{line} 4") == "new perm equals to the old one!\n"
    changed = as_json(namesrv, f"updateTopicPerm -c DefaultCluster -t {rocketmq_topic} -p 6")
    assert (changed[0]["before"], changed[0]["configuration"]["permission"]) == (4, 6)
    assert invoke(namesrv, f"{line} 9").exit_code == 2


def test_order(rocketmq: Cluster) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    created = output(namesrv, f"updateTopic -b {address} -t orders -w 2 -o true")
    assert "set broker orderConf. isOrder=true, orderConf=[broker-0:2]" in created
    assert as_json(namesrv, "updateOrderConf -t orders -m get") == {
        "topic": "orders",
        "order": "broker-0:2",
    }
    assert "[broker-0:4]" in output(namesrv, "updateOrderConf -t orders -m put -v broker-0:4")
    assert invoke(namesrv, "updateOrderConf -t orders -m put").exit_code == 2
    assert invoke(namesrv, "updateOrderConf -t orders -m post").exit_code == 2
    dry = output(namesrv, "updateOrderConf -t orders -m delete --dry-run")
    assert "nothing is changed" in dry
    assert output(namesrv, "updateOrderConf -t orders -m delete").startswith("delete orderConf")
    assert invoke(namesrv, "updateOrderConf -t orders -m get").exit_code == 3


def test_allocation(rocketmq: Cluster, rocketmq_topic: str) -> None:
    line = f"allocateMQ -t {rocketmq_topic} -i a,b"
    shares = json.loads(output(rocketmq.namesrv, line))["result"]
    assert [queue["queueId"] for queue in shares["b"]] == [2, 3]
    assert as_json(rocketmq.namesrv, line)["a"][0]["queue_id"] == 0


def test_clusters_and_groups_of_all_topics(rocketmq: Cluster, rocketmq_topic: str) -> None:
    lines = output(rocketmq.namesrv, "topicList -c").splitlines()
    assert lines[0].split("  ")[0] == "#Cluster Name"
    assert f"DefaultCluster  {rocketmq_topic}" in [" ".join(line.split(" ")) for line in lines]
    found = as_json(rocketmq.namesrv, "topicList -c")
    assert {"topic": rocketmq_topic, "cluster": "DefaultCluster", "groups": []} in found


@pytest.mark.parametrize(("permission", "text"), [(6, "RW-"), (4, "R--"), (2, "-W-"), (7, "RWX")])
def test_permission_text(permission: int, text: str) -> None:
    assert permission_text(permission) == text


def test_a_mistyped_topic(rocketmq: Cluster) -> None:
    rocketmq.create_topic("invoices")
    result = invoke(rocketmq.namesrv, "topicStatus -t invioces")
    assert result.exit_code == 3
    assert result.output == "Error: topic 'invioces' does not exist; did you mean 'invoices'?\n"
