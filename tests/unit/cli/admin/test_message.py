from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pyromq.client import Message, Producer, SendResult
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.support.patience import wait_until
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


@pytest.fixture
def sent(
    rocketmq: Cluster, rocketmq_topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[SendResult]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Producer.sync(rocketmq.namesrv) as producer:
        results = [
            producer.send(
                Message(rocketmq_topic, b"%d" % number, keys=f"k{number}", tags="t"),
                MessageQueue(rocketmq_topic, "broker-0", 0),
            )
            for number in range(3)
        ]
    line = f"queryMsgByKey -t {rocketmq_topic} -k k2"
    wait_until(lambda: invoke(rocketmq.namesrv, line).exit_code == 0)
    return results


def test_queries(
    rocketmq: Cluster, rocketmq_topic: str, sent: list[SendResult], tmp_path: Path
) -> None:
    namesrv = rocketmq.namesrv
    by_key = output(namesrv, f"queryMsgByKey -t {rocketmq_topic} -k k1").splitlines()
    assert by_key[1].split() == [sent[1].msg_id, "0", "1"]
    for line in (
        f"queryMsgById -i {sent[1].offset_msg_id}",
        f"queryMsgByUniqueKey -t {rocketmq_topic} -i {sent[1].msg_id}",
        f"queryMsgByOffset -t {rocketmq_topic} -b broker-0 -i 0 -o 1",
    ):
        text = output(namesrv, line)
        assert f"{'Topic:':<20} {rocketmq_topic}\n" in text
        assert "WARN: No Consumer" in text
        value = as_json(namesrv, line)
        message = value[0] if isinstance(value, list) else value
        assert (message["body"], message["msg_id"]) == ("1", sent[1].msg_id)
    assert (tmp_path / "rocketmq" / "msgbodys" / sent[1].msg_id).read_bytes() == b"1"
    several = as_json(namesrv, f"queryMsgById -i {sent[0].offset_msg_id},{sent[2].offset_msg_id}")
    assert [each["body"] for each in several] == ["0", "2"]
    by_time = invoke(namesrv, f"queryMsgByTime -t {rocketmq_topic} -b 0 --limit 2")
    assert len(by_time.stdout.splitlines()) == 3
    assert "not complete: there are more than 2" in by_time.stderr
    found = as_json(namesrv, f"queryMsgByTime -t {rocketmq_topic} -b 0")
    assert (len(found["messages"]), found["complete"]) == (3, True)


def test_queue_entries(rocketmq: Cluster, rocketmq_topic: str, sent: list[SendResult]) -> None:
    text = output(rocketmq.namesrv, f"queryCq -t {rocketmq_topic} -q 0 -i 1 -c 5 -g nobody")
    assert f"max: {len(sent)}, min: 0" in text
    assert text.count("ConsumeQueueData{physicOffset=") == 2
    assert "is not online!" in text
    entries = as_json(rocketmq.namesrv, f"queryCq -t {rocketmq_topic} -q 0 -i 1")["entries"]
    assert [each["index"] for each in entries] == [1, 2]


def test_sends(rocketmq: Cluster, rocketmq_topic: str) -> None:
    namesrv = rocketmq.namesrv
    line = f"sendMessage -t {rocketmq_topic} -p hello -k key -c tag"
    head, row = output(namesrv, f"{line} -b broker-0 -i 2").splitlines()
    assert head.split("  ")[0] == "#Broker Name"
    assert row.split()[:3] == ["broker-0", "2", "SEND_OK"]
    value = as_json(namesrv, line)
    assert (value["status"], value["queue"]["topic"]) == ("SEND_OK", rocketmq_topic)
    assert invoke(namesrv, f"{line} -i 2").exit_code == 2
    again = output(namesrv, f"queryMsgById -i {value['offset_msg_id']} -s true")
    assert again.startswith(f"prepare resend msg. originalMsgId={value['offset_msg_id']}SendRes")
    assert rocketmq.message_count(rocketmq_topic) == 3
    times = output(namesrv, f"checkMsgSendRT -t {rocketmq_topic} -a 3 -s 10").splitlines()
    assert times[-1].startswith("Avg RT: ")
    assert [line.split()[2] for line in times[1:4]] == ["true"] * 3
    failed = invoke(namesrv, f"checkMsgSendRT -t {rocketmq_topic} -a 1 -s 5000000")
    assert failed.exit_code == 1
    assert "1 of 1 messages were not sent" in failed.output


def test_traces(rocketmq: Cluster, rocketmq_topic: str) -> None:
    namesrv = rocketmq.namesrv
    value = as_json(namesrv, f"sendMessage -t {rocketmq_topic} -p hello -m true")
    line = f"queryMsgTraceById -i {value['msg_id']}"
    wait_until(lambda: invoke(namesrv, line).exit_code == 0)
    head, row = output(namesrv, line).splitlines()[:2]
    assert head.split()[:2] == ["#Type", "#ProducerGroup"]
    assert (row.split()[0], row.split()[-1]) == ("Pub", "success")


@pytest.mark.parametrize(
    "line",
    [
        "queryMsgByKey -t {topic} -k nothing",
        "queryMsgByUniqueKey -t {topic} -i nothing",
        "queryMsgByOffset -t {topic} -b broker-0 -i 0 -o 9",
        "queryMsgById -i nothing",
        "queryMsgByTime -t nowhere -b 0",
        "queryMsgTraceById -i nothing -t {topic}",
        "queryCq -t {topic} -q 0 -i 9",
        "checkMsgSendRT -t nowhere",
    ],
)
def test_what_does_not_exist(
    rocketmq: Cluster, rocketmq_topic: str, sent: list[SendResult], line: str
) -> None:
    assert sent
    assert invoke(rocketmq.namesrv, line.format(topic=rocketmq_topic)).exit_code == 3
