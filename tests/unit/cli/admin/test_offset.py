from __future__ import annotations

import pytest

from pyromq.client import Message, Producer
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


@pytest.fixture
def topic(rocketmq: Cluster, rocketmq_topic: str) -> str:
    with Producer.sync(rocketmq.namesrv) as producer:
        for _ in range(5):
            producer.send(
                Message(rocketmq_topic, b"x"), MessageQueue(rocketmq_topic, "broker-0", 0)
            )
    return rocketmq_topic


def test_sets_and_shows_offsets(rocketmq: Cluster, topic: str) -> None:
    namesrv = rocketmq.namesrv
    line = f"-g readers -t {topic}"
    dry = output(namesrv, f"setOffset {line} -o broker-0:0=2 --dry-run")
    assert dry.splitlines()[0] == "dry run, nothing is changed"
    assert dry.splitlines()[2].split() == ["broker-0", "0", "5", "0", "2", "2"]
    assert invoke(namesrv, f"previewOffsets {line}").exit_code == 3
    done = as_json(namesrv, f"setOffset {line} -o broker-0:0=2 -o broker-0:1=0")
    assert [each["after"] for each in done["changes"]] == [2, 0]
    shown = output(namesrv, f"previewOffsets {line}").splitlines()
    assert shown[0].split() == ["#brokerName", "#queueId", "#minOffset", "#maxOffset", "#offset"]
    assert shown[1].split() == ["broker-0", "0", "0", "5", "2"]
    plan = as_json(namesrv, f"previewOffsets {line} -s now")
    assert (plan["dry_run"], plan["changes"][0]["after"]) == (True, 5)


def test_moves_a_group(rocketmq: Cluster, topic: str) -> None:
    namesrv = rocketmq.namesrv
    line = f"-g readers -t {topic}"
    skipped = output(namesrv, f"skipAccumulatedMessage {line}").splitlines()
    assert skipped[0].split()[0] == "#brokerName"
    assert skipped[1].split() == ["broker-0", "0", "5", "0", "5", "5"]
    back = output(namesrv, f"resetOffsetByTime {line} -s 0 -f true").splitlines()
    assert back[0] == (
        f"rollback consumer offset by specified consumerGroup[readers], topic[{topic}], "
        "force[true], timestamp(string)[0], timestamp(long)[0]"
    )
    assert back[2].split() == ["broker-0", "0", "5", "5", "0", "0"]
    cloned = output(namesrv, f"cloneGroupOffset -s readers -d others -t {topic}")
    assert cloned == (
        f"clone group offset success. srcGroup[readers], destGroup=[others], topic[{topic}]\n"
    )
    assert as_json(namesrv, f"previewOffsets -g others -t {topic}")[0]["offset"] == 0


@pytest.mark.parametrize("word", ["broker-0", "broker-0:0", "broker-0:x=1", "broker-0:0=-1"])
def test_wrong_offsets_are_refused(rocketmq: Cluster, topic: str, word: str) -> None:
    result = invoke(rocketmq.namesrv, f"setOffset -g readers -t {topic} -o {word}")
    assert result.exit_code == 2
    assert "broker-a:0=1200" in result.output
