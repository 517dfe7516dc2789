from __future__ import annotations

import asyncio

import pytest

from pyromq.admin import Admin
from pyromq.admin.groups.groups import GroupSettings
from pyromq.client import Message, Producer, TransactionProducer, TransactionState
from pyromq.testing import Cluster
from tests.support.patience import wait_until
from tests.unit.admin.stored_messages import make_dead_letters
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


@pytest.fixture
def dead(rocketmq: Cluster, rocketmq_topic: str) -> str:
    async def make() -> None:
        async with Admin(rocketmq.namesrv) as admin:
            await admin.groups.update(GroupSettings("billing"), cluster="DefaultCluster")
            await make_dead_letters(
                admin, rocketmq.namesrv, rocketmq_topic, "billing", [b"one", b"two"]
            )

    asyncio.run(make())
    return rocketmq_topic


def test_dead_letters(rocketmq: Cluster, dead: str) -> None:
    namesrv = rocketmq.namesrv
    assert output(namesrv, "dlqList").splitlines()[1].split()[:2] == ["billing", "2"]
    shown = invoke(namesrv, "dlqShow -g billing --limit 1 --full")
    assert "one" in shown.stdout
    assert "not complete" in shown.stderr
    letters = as_json(namesrv, "dlqShow -g billing")["dead_letters"]
    assert [each["origin_topic"] for each in letters] == [dead] * 2

    dry = output(namesrv, "dlqResend -g billing --dry-run").splitlines()
    assert dry[0].endswith("nothing is sent: 2 dead letters would be resent, 0 have been")
    assert dry[2].split() == [dead, "2"]
    assert output(namesrv, "dlqResend -g billing --limit 1 --rate 100").splitlines() == [
        "1 dead letters: 1 resent, 0 had been resent before, 0 failed",
        "there are more: --limit ended the resend",
    ]
    result = as_json(namesrv, "dlqResend -g billing")
    assert (result["sent"], result["already_sent"]) == (1, 1)
    assert as_json(namesrv, "dlqResend -g billing --dry-run")["already_sent"] == 2
    assert rocketmq.message_count(dead) == 4
    assert invoke(namesrv, "dlqResend -g biling").exit_code == 3
    assert invoke(namesrv, "dlqResend -g billing --run a@b").exit_code == 1


@pytest.mark.rocketmq(settings={"messageDelayLevel": "1h 2h"})
def test_delayed_messages(rocketmq: Cluster, rocketmq_topic: str) -> None:
    namesrv = rocketmq.namesrv
    with Producer.sync(namesrv) as producer:
        producer.send(Message(rocketmq_topic, b"x", delay_level=2))
    levels = output(namesrv, "delayedMessages --levels").splitlines()
    assert [line.split()[1:5] for line in levels[1:]] == [
        ["1", "1h", "0", "N/A"],
        ["2", "2h", "1", levels[2].split()[4]],
    ]
    (line,) = output(namesrv, "delayedMessages").splitlines()[1:]
    assert rocketmq_topic in line
    value = as_json(namesrv, "delayedMessages -l 2")
    assert value["by_topic"] == {rocketmq_topic: 1}
    assert value["messages"][0]["message"]["body"] == "x"
    assert invoke(namesrv, "delayedMessages -l 3").exit_code == 1


def test_half_messages(rocketmq: Cluster, rocketmq_topic: str) -> None:
    namesrv = rocketmq.namesrv
    unknown = TransactionState.UNKNOWN
    with TransactionProducer.sync(namesrv, group="makers", check=lambda _: unknown) as producer:
        producer.send_in_transaction(Message(rocketmq_topic, b"half"), lambda _: unknown)
        wait_until(lambda: len(as_json(namesrv, "halfMessages")["messages"]) == 1)
        (line,) = output(namesrv, "halfMessages -g makers").splitlines()[1:]
        assert line.split()[1:4] == [rocketmq_topic, line.split()[2], "makers"]
    assert as_json(namesrv, "halfMessages --abandoned")["messages"] == []
    assert invoke(namesrv, "halfMessages -r nothing").exit_code == 3
