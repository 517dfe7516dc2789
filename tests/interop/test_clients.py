"""Clients of four libraries through a broker: sending, receiving, and everything in between.

Each case runs with every library that can do it, against pyromq; `pytest -m soak` runs it against
Apache's broker too. A case that fails for both is wrong itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from tests.interop.cases import Case, with_clients
from tests.interop.client_driver import Line
from tests.interop.client_programs import CLIENTS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

MODES = ("sync", "async", "oneway", "batch")


@with_clients()
def test_every_kind_of_send_arrives_once(case: Case, request: pytest.FixtureRequest) -> None:
    abilities = CLIENTS[request.node.callspec.params["driver"]].abilities
    modes = [mode for mode in MODES if mode in abilities]
    case.consumer()
    case.producer()
    sent = {}
    for mode in modes:
        messages: list[dict[str, Any]] = [
            {
                "body": f"{mode}-{number} äöü 消息 🚀",
                "tags": ("TagA", "TagB")[number % 2],
                "keys": f"{mode}-{number} all-{mode}",
                "properties": {"number": str(number), "umlaut": f"grün-{number}"},
            }
            for number in range(10)
        ]
        sent[mode] = messages, case.send(messages, mode)
    bodies = [message["body"] for messages, _ in sent.values() for message in messages]
    received = case.driver.wait_bodies("consumer", bodies)
    assert Counter(line["body"] for line in received) == Counter(bodies)
    by_body = {line["body"]: line for line in received}
    places = {(line["queueId"], line["queueOffset"]): line for line in received}
    for mode, (messages, results) in sent.items():
        for message in messages:
            line = by_body[message["body"]]
            assert line["topic"] == case.topic
            assert line["tags"] == message["tags"]
            assert line["keys"].split() == message["keys"].split()
            assert line["properties"]["umlaut"] == message["properties"]["umlaut"]
        if mode == "batch":  # Go tells no ids, and Java 5 others than those of the messages
            (result,) = results
            found = [
                places[result["queueId"], result["queueOffset"] + number]["body"]
                for number in range(len(messages))
            ]
            assert found == [message["body"] for message in messages]
        elif mode != "oneway":
            assert len(results) == len(messages)
            for result, message in zip(results, messages, strict=True):
                line = places[result["queueId"], result["queueOffset"]]
                assert line["body"] == message["body"]
                assert result["msgIds"] == [line["msgId"]]
    assert {result["status"] for _, results in sent.values() for result in results} == {"SEND_OK"}


@with_clients()
def test_tags_choose_messages(case: Case) -> None:
    case.consumer(expression="TagB || TagD")
    case.producer()
    tags = ("TagA", "TagB", "TagC", "TagD")
    messages = [{"body": f"m-{number}", "tags": tags[number % 4]} for number in range(16)]
    case.send(messages)
    wanted = [message["body"] for message in messages if message["tags"] in tags[1::2]]
    received = case.driver.wait_bodies("consumer", wanted)
    assert Counter(line["body"] for line in received) == Counter(wanted)


@with_clients("sql")
def test_sql_chooses_messages(case: Case) -> None:
    case.consumer(
        expression="(size BETWEEN 3 AND 7 AND colour IN ('red', 'blue')) OR extra IS NOT NULL",
        sql=True,
    )
    case.producer()
    messages: list[Line] = [
        {
            "body": f"m-{number}",
            "properties": {"size": str(number), "colour": ("red", "green", "blue")[number % 3]},
        }
        for number in range(12)
    ]
    messages.append({"body": "with extra", "properties": {"extra": "x"}})
    messages.append({"body": "without properties"})
    case.send(messages)
    wanted = ["m-3", "m-5", "m-6", "with extra"]
    received = case.driver.wait_bodies("consumer", wanted)
    assert Counter(line["body"] for line in received) == Counter(wanted)


@with_clients()
def test_large_bodies_come_back(case: Case) -> None:
    """Clients compress above 4 KiB."""
    case.consumer()
    case.producer()
    bodies = [f"large {number} " + "äbc消 " * (5_000 * (number + 1)) for number in range(3)]
    case.send([{"body": body} for body in bodies])
    received = case.driver.wait_bodies("consumer", bodies)
    assert Counter(line["body"] for line in received) == Counter(bodies)


@with_clients()
def test_broadcast_reaches_every_consumer(case: Case) -> None:
    # Broadcasting consumers start at the end of a queue in some libraries: first the consumers.
    case.consumer("first", broadcast=True)
    case.consumer("second", broadcast=True)
    case.producer()
    bodies = [f"m-{number}" for number in range(20)]
    case.send([{"body": body} for body in bodies])
    for name in ("first", "second"):
        received = case.driver.wait_bodies(name, bodies)
        assert Counter(line["body"] for line in received) == Counter(bodies), name


@with_clients("ordered")
def test_shards_stay_in_order(case: Case) -> None:
    case.producer()
    # ali-ons takes any queue for a shard that it counts as queue 0; these three it does not.
    messages: list[dict[str, Any]] = [
        {"body": f"{number}", "properties": {"shard": str(2 + number % 3)}} for number in range(50)
    ]
    case.send(messages, "ordered")
    case.consumer(**orderly(case))
    received = case.driver.wait_bodies("consumer", [message["body"] for message in messages])
    assert len(received) == len(messages)
    assert_shards_in_order(received)


@with_clients("orderly")
def test_a_failure_holds_up_its_queue_alone(case: Case) -> None:
    case.producer()
    messages: list[Line] = [
        {"body": f"{number}", "properties": {"shard": str(number % 2)}} for number in range(12)
    ]
    messages[4]["properties"]["fail"] = "2"
    case.send(messages, "ordered")
    case.consumer(orderly=True)
    received = case.driver.wait_bodies("consumer", [message["body"] for message in messages])
    shards = by_shard(received)
    assert shards["0"] == [0, 2, 4, 4, 4, 6, 8, 10]
    assert shards["1"] == [1, 3, 5, 7, 9, 11]


@with_clients()
def test_delayed_messages_come_after_their_time(case: Case) -> None:
    case.consumer()
    case.producer()
    case.send(
        [{"body": "after 3 s", "delay": 2}, {"body": "after 1 s", "delay": 1}, {"body": "now"}]
    )
    received = case.driver.wait_bodies("consumer", ["now", "after 1 s", "after 3 s"])
    # Not by arrival: a consumer that starts slowly gets the first two together.
    received.sort(key=lambda line: int(line["storeTimestamp"]))
    assert [line["body"] for line in received] == ["now", "after 1 s", "after 3 s"]
    for line, least in zip(received, (0, 1000, 3000), strict=True):
        assert line["topic"] == case.topic
        # A client's clock is the broker's here; born before it was stored first.
        assert line["storeTimestamp"] - line["bornTimestamp"] >= least


@with_clients()
def test_failed_messages_come_again_until_they_succeed(case: Case) -> None:
    case.consumer()
    case.producer()
    case.send([{"body": "twice bad", "keys": "k", "properties": {"fail": "2"}}, {"body": "good"}])
    received = case.driver.wait_reports(
        "consumer", lambda lines: any(line["reconsumeTimes"] == 2 for line in lines)
    )
    deliveries = [line for line in received if line["body"] == "twice bad"]
    assert [line["reconsumeTimes"] for line in deliveries] == [0, 1, 2]
    assert len(received) == 4
    for line in deliveries[1:]:
        assert line["topic"] == case.topic
        assert line["keys"].strip() == "k"
        assert line["properties"].get("UNIQ_KEY") == deliveries[0]["properties"].get("UNIQ_KEY")
    origins = {line["properties"]["ORIGIN_MESSAGE_ID"] for line in deliveries[1:]}
    assert len(origins) == 1


@with_clients()
def test_hopeless_messages_become_dead_letters(case: Case) -> None:
    case.consumer(maxReconsumeTimes=2)
    case.producer()
    case.send([{"body": "hopeless", "keys": "k", "properties": {"fail": "99", "colour": "red"}}])
    received = case.driver.wait_reports("consumer", lambda lines: len(lines) == 3)
    dead_letters = f"%DLQ%{case.group}"
    case.cluster.wait_for_topic(dead_letters)
    case.driver.consumer("undertaker", case.namesrv, f"dead_{case.group}", dead_letters)
    (dead,) = case.driver.wait_reports("undertaker", lambda lines: bool(lines))
    assert dead["body"] == "hopeless"
    assert dead["keys"].strip() == "k"
    assert dead["properties"]["colour"] == "red"
    assert dead["properties"].get("UNIQ_KEY") == received[0]["properties"].get("UNIQ_KEY")
    assert dead["properties"]["ORIGIN_MESSAGE_ID"] == received[1]["properties"]["ORIGIN_MESSAGE_ID"]
    assert len(case.driver.reports("consumer")) == 3


@with_clients("transaction")
def test_transactions_end_as_their_producer_says(case: Case) -> None:
    case.consumer()
    case.producer(transactional=True)
    decisions = [
        ("commit", "unknown"),
        ("rollback", "unknown"),
        ("unknown", "commit"),
        ("unknown", "rollback"),
    ]
    messages = [
        {"body": f"{local}-{check}", "keys": "k", "properties": {"local": local, "check": check}}
        for local, check in decisions
    ]
    sent = case.send(messages, "transaction")
    assert [result["status"] for result in sent] == ["SEND_OK"] * len(messages)
    received = case.driver.wait_bodies("consumer", ["commit-unknown", "unknown-commit"])
    checked = case.driver.wait_reports(
        "producer",
        lambda lines: {"unknown-commit", "unknown-rollback"} <= {line["body"] for line in lines},
        kind="check",
    )
    assert {line["body"] for line in checked} == {"unknown-commit", "unknown-rollback"}
    assert Counter(line["body"] for line in received) == {"commit-unknown": 1, "unknown-commit": 1}
    assert {line["topic"] for line in received} == {case.topic}


@with_clients()
def test_namespaces_are_apart(case: Case) -> None:
    spaced = f"Space%{case.topic}"
    case.cluster.create_topic(spaced)
    case.cluster.create_topic(f"%RETRY%Space%{case.group}", 1)
    case.consumer("outside")
    case.consumer("inside", namespace="Space")
    case.producer("spaced", namespace="Space")
    case.send([{"body": "inside", "properties": {"fail": "1"}}], name="spaced")
    case.producer()
    case.send([{"body": "outside"}])
    inside = case.driver.wait_reports("inside", lambda lines: len(lines) == 2)
    outside = case.driver.wait_reports("outside", lambda lines: len(lines) == 1)
    assert [(line["body"], line["reconsumeTimes"]) for line in inside] == [
        ("inside", 0),
        ("inside", 1),
    ]
    assert [line["body"] for line in outside] == ["outside"]


def orderly(case: Case) -> dict[str, Any]:
    """Node's only consumer takes the messages of a queue one after the other anyway."""
    return {} if "node" in case.topic else {"orderly": True}


def assert_shards_in_order(received: Sequence[Line]) -> None:
    """Each shard in the order of its sends, and in one queue."""
    queues = defaultdict(set)
    for line in received:
        queues[line["properties"]["shard"]].add((line.get("broker"), line["queueId"]))
    assert all(len(found) == 1 for found in queues.values()), queues
    for shard, numbers in by_shard(received).items():
        assert numbers == sorted(numbers), f"shard {shard}"


def by_shard(received: Sequence[Line]) -> dict[str, list[int]]:
    shards = defaultdict(list)
    for line in received:
        shards[line["properties"]["shard"]].append(int(line["body"]))
    return shards
