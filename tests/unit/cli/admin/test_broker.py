from __future__ import annotations

import asyncio

from pyromq.client import Message, Producer
from pyromq.testing import Cluster
from tests.support.patience import wait_until
from tests.unit.admin.dead_brokers import dead_broker
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


def test_status(rocketmq: Cluster) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    lines = output(namesrv, f"brokerStatus -b {address}").splitlines()
    assert f"{'brokerVersionDesc':<32}: V4_9_7" in lines
    of_cluster = output(namesrv, "brokerStatus -c DefaultCluster").splitlines()
    assert f"{address:<24} {'brokerVersionDesc':<32}: V4_9_7" in of_cluster
    assert as_json(namesrv, f"brokerStatus -b {address}")["values"]["brokerVersion"] == "407"
    assert as_json(namesrv, "brokerStatus -c DefaultCluster")[0]["address"] == address
    assert invoke(namesrv, "brokerStatus").exit_code == 2
    assert invoke(namesrv, "brokerStatus -b 127.0.0.1:1").exit_code == 4


def test_settings(rocketmq: Cluster) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    changed = output(namesrv, f"updateBrokerConfig -b {address} -k fileReservedTime -v 49")
    assert changed == f"update broker config success, {address}\n"
    shown = output(namesrv, f"getBrokerConfig -b {address}").splitlines()
    assert shown[0] == f"============{address}============"
    assert f"{'fileReservedTime':<50}=  49" in shown
    shown = output(namesrv, "getBrokerConfig -c DefaultCluster").splitlines()
    assert shown[0] == f"============Master: {address}============"
    found = as_json(namesrv, f"getBrokerConfig -b {address}")
    assert found["settings"]["fileReservedTime"] == "49"
    refused = invoke(namesrv, f"updateBrokerConfig -b {address} -k fileReservedTime -v soon")
    assert refused.exit_code == 1
    assert address in refused.output


def test_lags(rocketmq: Cluster) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    lines = output(namesrv, f"brokerConsumeStats -b {address} -t 30000 -l 5 -o true").splitlines()
    assert lines[0].split()[:2] == ["#Topic", "#Group"]
    assert lines[-1] == "Diff Total: 0"
    found = as_json(namesrv, f"brokerConsumeStats -b {address}")
    assert found == {"broker": address, "queues": [], "total": 0}


def test_clean_up(rocketmq: Cluster) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    for name in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert output(namesrv, f"{name} -b {address}") == "success\n"
        assert output(namesrv, f"{name} -c DefaultCluster --yes") == "success\n"
        assert address in output(namesrv, f"{name} --dry-run")
        assert as_json(namesrv, name) == {"brokers": [address]}
        assert invoke(namesrv, f"{name} -c nowhere").exit_code == 3


def test_test_messages(rocketmq: Cluster) -> None:
    lines = output(rocketmq.namesrv, "sendMsgStatus -b broker-0 -s 16 -c 2").splitlines()
    assert len(lines) == 2
    assert "SendResult [sendStatus=SEND_OK, msgId=" in lines[0]
    assert "messageQueue=MessageQueue [topic=broker-0, brokerName=broker-0, queueId=" in lines[1]
    assert len(as_json(rocketmq.namesrv, "sendMsgStatus -b broker-0 -c 3")) == 3
    assert invoke(rocketmq.namesrv, "sendMsgStatus -b broker-9").exit_code == 3


def test_producers(rocketmq: Cluster, rocketmq_topic: str) -> None:
    namesrv, line = rocketmq.namesrv, f"producer -b {rocketmq.brokers[0].address}"
    with Producer.sync(namesrv, group="makers") as producer:
        producer.send(Message(rocketmq_topic, b"x"))
        wait_until(lambda: as_json(namesrv, line))
        (text,) = output(namesrv, line).splitlines()
        assert text.startswith(
            f"producer group (makers) instance : clientId={producer.client_id},remoteIP=/127.0.0.1:"
        )


async def test_brokers_that_answer_are_shown_if_another_does_not(rocketmq: Cluster) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    async with dead_broker(namesrv, "broker-1", topics=("TBW102",)) as dead:
        for line, expected in (
            ("brokerStatus -c DefaultCluster", "brokerVersionDesc"),
            ("getBrokerConfig -c DefaultCluster", "fileReservedTime"),
            ("topicStatus -t TBW102", "broker-0"),
        ):
            result = await asyncio.to_thread(invoke, namesrv, line)
            assert result.exit_code == 1
            assert expected in result.output
            assert f"failed at {dead} (done at {address})" in result.output
