from __future__ import annotations

import json

import pytest

from pyromq.client import Message, Producer
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.unit.cli.admin.admin_runs import invoke, output


@pytest.fixture
def topic(rocketmq: Cluster) -> str:
    rocketmq.create_topic("orders", queues=2)
    with Producer.sync(rocketmq.namesrv) as producer:
        for number in range(5):
            queue = MessageQueue("orders", "broker-0", number % 2)
            producer.send(Message("orders", "grün".encode("gbk"), tags=f"t{number % 2}"), queue)
    return "orders"


def test_prints_a_topic(rocketmq: Cluster, topic: str) -> None:
    lines = output(rocketmq.namesrv, f"printMsg -t {topic} -c GBK").splitlines()
    assert lines[0] == (
        "minOffset=0, maxOffset=3, MessageQueue [topic=orders, brokerName=broker-0, queueId=0]"
    )
    assert sum(line.endswith(" BODY: grün") for line in lines) == 5
    assert lines.count("-" * 56) == 2
    few = output(rocketmq.namesrv, f"printMsg -t {topic} -s t1 -d false -b 0")
    assert few.count("BODY: NOT PRINT BODY") == 2
    values = output(rocketmq.namesrv, f"printMsg -t {topic} --json").splitlines()
    assert [json.loads(line)["queue_offset"] for line in values] == [0, 1, 2, 0, 1]
    assert invoke(rocketmq.namesrv, f"printMsg -t {topic} -c nothing").exit_code == 2


def test_prints_a_queue(rocketmq: Cluster, topic: str) -> None:
    line = f"printMsgByQueue -t {topic} -a broker-0 -i 0"
    assert output(rocketmq.namesrv, line) == ""
    counted = output(rocketmq.namesrv, f"{line} -f true")
    assert counted.split() == ["Tag:", "t0", "Count:", "3"]
    printed = output(rocketmq.namesrv, f"{line} -p true -d true -c GBK").splitlines()
    assert len(printed) == 3
    values = output(rocketmq.namesrv, f"{line} -p true -f true --json").splitlines()
    assert json.loads(values[-1]) == {"tags": {"t0": 3}}


def test_consumes_from_a_place(rocketmq: Cluster, topic: str) -> None:
    namesrv = rocketmq.namesrv
    lines = output(namesrv, f"consumeMessage -t {topic} -b broker-0 -i 0 -o 1 -c 1").splitlines()
    assert lines[0] == "The oldler 1 message will be provided"
    assert lines[1] == "Consume ok"
    assert "queueOffset=1" in lines[2]
    whole = output(namesrv, f"consumeMessage -t {topic}").splitlines()
    assert sum(line.startswith("MSGID") for line in whole) == 5
    assert whole[-1].endswith("print msg finished. status=NO_NEW_MSG, offset=2")
    values = output(namesrv, f"consumeMessage -t {topic} -c 2 --json").splitlines()
    assert len(values) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("-i 0", "-b/--brokerName"),
        ("-b broker-0 -o 1", "-i/--queueId"),
        ("-s 99999999999999", "in the future"),
        ("-e 99999999999999", "in the future"),
        ("-s 20 -e 10", "is after"),
        ("-c 0", "range"),
    ],
)
def test_wrong_options_of_consume_message(
    rocketmq: Cluster, topic: str, options: str, problem: str
) -> None:
    result = invoke(rocketmq.namesrv, f"consumeMessage -t {topic} {options}")
    assert result.exit_code == 2
    assert problem in result.output
