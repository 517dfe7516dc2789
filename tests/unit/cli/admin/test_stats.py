from __future__ import annotations

from pyromq.client import Message, Producer
from pyromq.testing import Cluster
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


def test_topics(rocketmq: Cluster, rocketmq_topic: str) -> None:
    namesrv = rocketmq.namesrv
    header, line = output(namesrv, f"statsAll -t {rocketmq_topic}").splitlines()
    assert header.split()[0] == "#Topic"
    assert line.split() == [rocketmq_topic, "0", "0.00", "0", "NO_CONSUMER"]
    (row,) = as_json(namesrv, f"statsAll -t {rocketmq_topic}")
    assert (row["group"], row["out_last_day"]) == (None, None)
    assert invoke(namesrv, "statsAll -t nothing").exit_code == 3


def test_one_statistic(rocketmq: Cluster, rocketmq_topic: str) -> None:
    namesrv, address = rocketmq.namesrv, rocketmq.brokers[0].address
    line = f"brokerStats -b {address} -s TOPIC_PUT_NUMS -k"
    assert invoke(namesrv, f"{line} {rocketmq_topic}").exit_code == 3
    with Producer.sync(namesrv) as producer:
        producer.send(Message(rocketmq_topic, b"x"))
    lines = output(namesrv, f"{line} {rocketmq_topic}").splitlines()
    assert [text.split()[0] for text in lines] == ["#Period", "minute", "hour", "day"]
    assert as_json(namesrv, f"{line} {rocketmq_topic}").keys() == {"minute", "hour", "day"}
