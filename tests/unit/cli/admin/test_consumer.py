from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.client import Message, Producer, PushConsumer, StartFrom
from pyromq.testing import Cluster
from tests.support.patience import wait_until
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


def test_the_life_of_a_group(rocketmq: Cluster) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    created = output(namesrv, "updateSubGroup -c DefaultCluster -g billing -r 3 -d true")
    assert created.splitlines() == [
        f"create subscription group to {address} success.",
        (
            "SubscriptionGroupConfig [groupName=billing, consumeEnable=true, "
            "consumeFromMinEnable=false, consumeBroadcastEnable=true, retryQueueNums=1, "
            "retryMaxTimes=3, brokerId=0, whichBrokerWhenConsumeSlowly=1, "
            "notifyConsumerIdsChangedEnable=true]"
        ),
    ]
    shown = output(namesrv, "getConsumerConfig -g billing").splitlines()
    assert shown[0].strip("=") == "DefaultCluster:broker-0"
    assert shown[6].split() == ["retryMaxTimes", "=", "3"]
    assert as_json(namesrv, "getConsumerConfig -g billing")[0]["settings"]["retry_max_times"] == 3
    dry = output(namesrv, "deleteSubGroup -c DefaultCluster -g billing --dry-run")
    assert "nothing is changed" in dry
    deleted = output(namesrv, "deleteSubGroup -c DefaultCluster -g billing").splitlines()
    assert deleted[0] == (
        f"delete subscription group [billing] from broker [{address}] in cluster "
        "[DefaultCluster] success."
    )
    assert len(deleted) == 5
    assert invoke(namesrv, f"deleteSubGroup -b {address} -g billing").exit_code == 3


def test_members(
    rocketmq: Cluster, rocketmq_topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namesrv = rocketmq.namesrv
    with (
        Producer.sync(namesrv, group="makers") as producer,
        PushConsumer.sync(
            namesrv,
            group="readers",
            subscriptions=rocketmq_topic,
            handler=lambda _: None,
            commit_interval=0.1,
            start_from=StartFrom.FIRST,
        ) as consumer,
    ):
        producer.send(Message(rocketmq_topic, b"x"))
        wait_until(lambda: "Diff Total: 0" in _progress(namesrv))
        client = consumer.client_id
        connected = output(namesrv, "consumerConnection -g readers").splitlines()
        assert connected[1].split()[0] == client
        assert "ConsumeType: CONSUME_PASSIVELY" in connected
        assert as_json(namesrv, "consumerConnection -g readers")["message_model"] == "CLUSTERING"
        (line,) = output(namesrv, f"producerConnection -g makers -t {rocketmq_topic}").splitlines()
        assert line.split()[:2] == ["0001", producer.client_id]

        owned = output(namesrv, "consumerProgress -g readers -s true").splitlines()
        assert owned[0].split("#")[6].strip() == "Client IP"
        summary = as_json(namesrv, "consumerProgress")
        assert [(each["group"], each["count"]) for each in summary] == [("readers", 1)]
        assert output(namesrv, "consumerProgress").splitlines()[1].split()[3:5] == [
            "PUSH",
            "CLUSTERING",
        ]
        status = output(namesrv, "consumerStatus -g readers").splitlines()
        assert "Rebalance OK" in status
        (path,) = tmp_path.glob("*/*")
        assert path.name == client
        assert path.read_text().startswith("#Consumer Properties#\n")
        info = output(namesrv, f"consumerStatus -g readers -i {client} -s")
        assert "#Consumer jstack#" in info
        reported = as_json(namesrv, "consumerStatus -g readers")
        assert reported["members"][0]["info"]["queues"][0]["queue"]["broker_name"] == "broker-0"
        rounds = output(namesrv, "startMonitoring --rounds 2 --interval 0.1").splitlines()
        assert sum(line.endswith("beginRound") for line in rounds) == 2
        assert as_json(namesrv, "startMonitoring --rounds 1")["groups"][0]["group"] == "readers"
    offline = output(namesrv, "consumerProgress").splitlines()[1].split()
    assert offline[:3] == ["readers", "0", "OFFLINE"]


def _progress(namesrv: str) -> str:
    result = invoke(namesrv, "consumerProgress -g readers")
    return result.output if result.exit_code == 0 else ""


@pytest.mark.parametrize(
    "line",
    [
        "consumerConnection -g nobody",
        "consumerProgress -g nobody",
        "consumerStatus -g nobody",
        "getConsumerConfig -g nobody",
        "producerConnection -g nobody -t TBW102",
    ],
)
def test_what_does_not_exist(rocketmq: Cluster, line: str) -> None:
    result = invoke(rocketmq.namesrv, line)
    assert result.exit_code == 3
    assert "'nobody'" in result.output
