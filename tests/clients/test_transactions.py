"""Transactions: committed messages arrive, others do not, and brokers that ask are answered."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pyromq.client import (
    HalfMessage,
    Message,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from tests.clients.cases import Case, against_all_brokers, eventually
from tests.interop.client_driver import ClientDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

STATES = {
    "commit": TransactionState.COMMIT,
    "rollback": TransactionState.ROLLBACK,
    "unknown": TransactionState.UNKNOWN,
}
against_apache = pytest.mark.parametrize("cluster", ["apache"], indirect=True)
#: What the properties `local` and `check` of each message say.
PLANS = (
    ("commit", "commit"),
    ("rollback", "rollback"),
    ("unknown", "commit"),
    ("unknown", "rollback"),
    ("raise", "commit"),
    ("unknown", "raise commit"),
)
COMMITTED = [f"{local}/{check}".encode() for local, check in PLANS if "commit" in check]


class Decisions:
    """Ends transactions as the messages themselves say; brokers' questions are counted."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.messages: list[ReceivedMessage] = []

    async def execute(self, half: HalfMessage) -> TransactionState:
        decision = half.properties["local"]
        if decision == "raise":
            raise RuntimeError("the local part has failed")
        return STATES[decision]

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked[message.msg_id] += 1
        self.messages.append(message)
        first, *others = message.properties["check"].split()
        if first == "raise":
            if self.asked[message.msg_id] == 1:
                raise RuntimeError("not known yet")
            (first,) = others
        return STATES[first]


def planned(topic: str, local: str, check: str) -> Message:
    return Message(
        topic,
        f"{local}/{check}".encode(),
        tags="tag",
        keys=f"{local}/{check}".replace(" ", "-"),
        properties={"local": local, "check": check},
    )


@against_all_brokers
async def test_each_ends_as_it_should(case: Case) -> None:
    decisions = Decisions()
    async with TransactionProducer(
        case.namesrv, group=case.group, check=decisions.check
    ) as producer:
        results = [
            await producer.send_in_transaction(planned(case.topic, *plan), decisions.execute)
            for plan in PLANS
        ]
        states = [STATES.get(local, TransactionState.UNKNOWN) for local, _ in PLANS]
        assert [result.state for result in results] == states

        async def all_committed() -> list[ReceivedMessage] | None:
            found = await case.stored()
            return found if {message.body for message in found} >= set(COMMITTED) else None

        stored = await eventually(all_committed)
        # Those that were rolled back are not asked for again: all questions are answered.
        answered = dict.fromkeys((results[n].msg_id for n in range(2, 6)), 1)
        answered[results[5].msg_id] = 2
        await eventually(lambda: _is(decisions.asked >= Counter(answered)))
    if case.cluster.kind == "apache-5.3.3":
        # It remembers an end only after three seconds: asked too early, it commits again.
        assert {message.body for message in stored} == set(COMMITTED)
        return
    assert Counter(message.body for message in stored) == Counter(COMMITTED)
    assert {message.msg_id for message in stored} <= {result.msg_id for result in results}
    assert {message.tags for message in stored} == {"tag"}
    for message in decisions.messages:
        assert message.topic == case.topic
        assert (message.system_properties["PGROUP"], message.tags) == (case.group, "tag")
    assert not {results[0].msg_id, results[1].msg_id} & set(decisions.asked)


async def test_what_an_earlier_run_has_left_open_is_asked_of_the_next_one(case: Case) -> None:
    decisions = Decisions()
    large = Message(case.topic, b"large" * 2000, properties={"local": "unknown", "check": "commit"})

    def forgotten(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(case.namesrv, group=case.group, check=forgotten) as producer:
        result = await producer.send_in_transaction(large, decisions.execute)
    async with TransactionProducer(
        case.namesrv, group=case.group, check=decisions.check, topics=[case.topic]
    ):
        (stored,) = await case.wait_stored(1)
    assert (stored.msg_id, stored.body) == (result.msg_id, large.body)
    assert decisions.messages[0].body == large.body
    assert decisions.messages[0].msg_id == result.msg_id


async def test_in_a_namespace(case: Case) -> None:
    decisions = Decisions()
    await case.create_topic(f"ns%{case.topic}", 1)
    async with TransactionProducer(
        case.namesrv, group=case.group, check=decisions.check, namespace="ns"
    ) as producer:
        await producer.send_in_transaction(
            planned(case.topic, "unknown", "commit"), decisions.execute
        )
        (stored,) = await case.wait_stored(1, f"ns%{case.topic}")
    assert stored.system_properties["PGROUP"] == f"ns%{case.group}"
    assert decisions.messages[0].topic == case.topic


@against_apache
async def test_the_same_as_those_of_java(case: Case, java_clients: ClientDriver) -> None:
    decisions = Decisions()
    java = java_clients
    await asyncio.to_thread(java.producer, "java", case.namesrv, "of_java", transactional=True)
    await asyncio.to_thread(java.consumer, "reader", case.namesrv, case.group, case.topic)
    async with TransactionProducer(
        case.namesrv, group="of_python", check=decisions.check
    ) as producer:
        for plan in (PLANS[0], PLANS[2]):
            message = planned(case.topic, *plan)
            await producer.send_in_transaction(message, decisions.execute)
            line = {
                "body": message.body.decode(),
                "tags": message.tags,
                "keys": message.keys,
                "properties": message.properties,
            }
            await asyncio.to_thread(java.send, "java", case.topic, [line], "transaction")
        lines = await asyncio.to_thread(java.wait_reports, "reader", lambda lines: len(lines) >= 4)
    by_group: dict[str, list[dict[str, str]]] = {"of_java": [], "of_python": []}
    for report in sorted(lines, key=lambda report: str(report["body"])):
        properties: dict[str, str] = dict(report["properties"])
        for name in ("UNIQ_KEY", "REAL_QID", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET"):
            properties.pop(name, None)
        by_group[properties.pop("PGROUP")].append(properties)
    assert by_group["of_python"] == by_group["of_java"]


async def _is(condition: bool) -> bool:
    return condition
