from __future__ import annotations

import re

import pytest

from pyromq.testing import Cluster
from tests.support.patience import wait_until
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


@pytest.mark.rocketmq(brokers=2)
def test_brokers(rocketmq: Cluster) -> None:
    namesrv = rocketmq.namesrv
    header, first, second = output(namesrv, "clusterList").splitlines()
    assert header.split()[-5:] == [
        "#InTPS(LOAD)", "#OutTPS(LOAD)", "#PCWait(ms)", "#Hour", "#SPACE",
    ]  # fmt: skip
    assert first.split()[:5] == [
        "DefaultCluster", "broker-0", "0", rocketmq.brokers[0].address, "V4_9_7",
    ]  # fmt: skip
    assert re.fullmatch(r"\d+\.\d\d\(0,0ms\)", second.split()[5])
    more = output(namesrv, "clusterList -m").splitlines()
    assert more[1].split() == ["DefaultCluster", "broker-0", "0", "0", "0", "0"]
    assert [each["broker_name"] for each in as_json(namesrv, "clusterList")] == [
        "broker-0",
        "broker-1",
    ]


def test_send_times(rocketmq: Cluster) -> None:
    namesrv = rocketmq.namesrv
    header, line = output(namesrv, "clusterRT -a 2 -s 8 --rounds 1").splitlines()
    assert header.split()[-1] == "#failCount"
    assert line.split()[-2:] == ["2", "0"]
    lines = output(namesrv, "clusterRT -a 2 -s 8 --rounds 2 -i 0").splitlines()
    assert len(lines) == 3
    log = output(namesrv, "clusterRT -a 2 -p true -m room-1 --rounds 1")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\|room-1\|DefaultCluster\|broker-0\|\d+\n", log
    )
    assert invoke(namesrv, "clusterRT -c nowhere").exit_code == 3


@pytest.mark.rocketmq(replicas=1)
def test_replication(rocketmq: Cluster) -> None:
    (master,) = rocketmq.brokers

    def has_replica() -> bool:
        states = as_json(rocketmq.namesrv, "haStatus")
        return bool(states[0]["replicas"])

    wait_until(has_replica)
    lines = output(rocketmq.namesrv, "haStatus -c DefaultCluster").splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["ASYNC_MASTER", "REPLICA", "SLAVE"]
    assert master.address in lines[1]


@pytest.mark.rocketmq(raft=3)
def test_raft(rocketmq: Cluster) -> None:
    def roles() -> list[str]:
        lines = output(rocketmq.namesrv, "raftStatus -b broker-0").splitlines()
        return sorted(line.split()[4] for line in lines[1:])

    wait_until(lambda: len(as_json(rocketmq.namesrv, "raftStatus")) == 3)
    wait_until(lambda: roles() == ["FOLLOWER", "FOLLOWER", "LEADER"])
