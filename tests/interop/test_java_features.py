"""What the Java client can do beyond the core: pull and lite-pull consumers, sharing of queues,
request-reply, offset reset, traces, two brokers. Against both brokers, as in test_clients.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.interop.cases import Case, with_clients
from tests.interop.client_driver import ClientDriver, ClientError
from tests.interop.client_programs import java_driver
from tests.interop.cluster import Cluster
from tests.support.patience import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@with_clients("queues")
def test_consumers_share_queues_and_take_over(case: Case) -> None:
    case.producer()
    case.consumer("first")
    case.consumer("second")
    wait_until(lambda: (owned(case, "first"), owned(case, "second")) == ([0, 1], [2, 3]))
    bodies = [f"shared {number}" for number in range(16)]
    case.send([{"body": body} for body in bodies])
    case.driver.wait_reports("first", lambda lines: len(lines) == 8)
    case.driver.wait_reports("second", lambda lines: len(lines) == 8)
    received = case.driver.reports("first") + case.driver.reports("second")
    assert Counter(line["body"] for line in received) == Counter(bodies)
    case.driver.close("first")
    wait_until(lambda: owned(case, "second") == [0, 1, 2, 3])
    case.send([{"body": f"alone {number}"} for number in range(8)])
    case.driver.wait_bodies("second", [f"alone {number}" for number in range(8)])


@with_clients("pull")
def test_a_pull_consumer_goes_on_where_it_was(case: Case) -> None:
    case.producer()
    for prefix in ("before", "after"):
        bodies = [f"{prefix} {number}" for number in range(20)]
        case.send([{"body": body, "tags": prefix} for body in bodies])
        received = case.driver.call(
            "pull", name="pull", namesrv=case.namesrv, group=case.group, topic=case.topic
        )
        assert Counter(line["body"] for line in received) == Counter(bodies)


@with_clients("lite")
def test_a_lite_consumer_goes_on_where_it_was(case: Case) -> None:
    case.producer()
    for prefix in ("before", "after"):
        bodies = [f"{prefix} {number}" for number in range(20)]
        case.lite(prefix)
        case.send([{"body": body} for body in bodies])
        received = case.driver.wait_bodies(prefix, bodies)
        assert Counter(line["body"] for line in received) == Counter(bodies)
        case.driver.close(prefix)


@with_clients("lite")
def test_a_lite_consumer_takes_the_queues_that_it_is_given(case: Case) -> None:
    case.producer()
    bodies = [f"m {number}" for number in range(20)]
    case.send([{"body": body} for body in bodies[:10]])
    case.lite(assign=True)
    case.send([{"body": body} for body in bodies[10:]])
    received = case.driver.wait_bodies("lite", bodies)
    assert Counter(line["body"] for line in received) == Counter(bodies)


@with_clients("lite", "sql")
def test_a_lite_consumer_with_a_filter(case: Case) -> None:
    case.producer()
    case.lite(expression="size > 7", sql=True)
    case.send([{"body": f"m {size}", "properties": {"size": str(size)}} for size in range(10)])
    received = case.driver.wait_bodies("lite", ["m 8", "m 9"])
    assert len(received) == 2


def test_lite_consumers_of_5x_ask_in_their_own_way() -> None:
    """With a request that Apache's 4.9 broker refuses, so there is no control."""
    with Cluster("pyromq") as cluster, java_driver("5.3.3") as driver:
        case = Case(cluster, driver, "LiteOf5x")
        case.create_topics()
        case.producer()
        case.lite()
        bodies = [f"m {number}" for number in range(20)]
        case.send([{"body": body} for body in bodies])
        received = driver.wait_bodies("lite", bodies)
        assert Counter(line["body"] for line in received) == Counter(bodies)


@with_clients("sql", "queues")
def test_bad_sql_is_refused_at_the_start(case: Case) -> None:
    with pytest.raises(ClientError, match="CODE: 23"):
        case.consumer(expression="size >", sql=True)


@with_clients("request")
def test_requests_are_replied_to(case: Case) -> None:
    case.consumer(replies=True)
    case.producer()
    calls = [
        case.driver.begin(
            "request", name="producer", topic=case.topic, body=f"question {number}", millis=20_000
        )
        for number in range(5)
    ]
    replies = [case.driver.finish(call) for call in calls]
    assert [reply["body"] for reply in replies] == [f"reply to question {n}" for n in range(5)]
    assert len({reply["properties"]["CORRELATION_ID"] for reply in replies}) == 5


@with_clients("reset")
def test_a_live_consumer_is_set_back_in_time(case: Case) -> None:
    case.producer()
    case.consumer()
    old = [f"old {number}" for number in range(8)]
    case.send([{"body": body} for body in old])
    case.driver.wait_bodies("consumer", old)
    # The offset whose time is nearest is taken, be it before or after: leave a gap.
    later = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > later)
    new = [f"new {number}" for number in range(8)]
    case.send([{"body": body} for body in new])
    received = case.driver.wait_bodies("consumer", new)
    border = min(line["storeTimestamp"] for line in received if line["body"] in new)
    case.driver.call(
        "reset_offset",
        name="admin",
        namesrv=case.namesrv,
        group=case.group,
        topic=case.topic,
        timestamp=border,
    )
    case.driver.wait_reports("consumer", lambda lines: len(lines) == 24)
    case.send([{"body": "last"}])
    received = case.driver.wait_bodies("consumer", ["last"])
    counts = Counter(line["body"] for line in received)
    assert counts == Counter(old + new + new + ["last"])


@with_clients("trace")
def test_traces_tell_of_sends_and_deliveries(case: Case) -> None:
    case.driver.consumer("tracer", case.namesrv, f"tracer_{case.topic}", TRACE_TOPIC)
    case.consumer(trace=True)
    case.producer(trace=True)
    (sent,) = case.send([{"body": "traced", "keys": "traced-key"}])
    case.driver.wait_bodies("consumer", ["traced"])
    message_id = sent["msgIds"][0]

    def kinds() -> set[str]:
        # A line of a trace ends with 2, its fields with 1; the first field is its kind.
        return {
            line.split("\x01")[0]
            for report in case.driver.reports("tracer")
            for line in report["body"].split("\x02")
            if message_id in line.split("\x01")
        }

    wait_until(lambda: kinds() >= {"Pub", "SubBefore", "SubAfter"})
    traces = case.driver.reports("tracer")
    assert any(message_id in line["keys"].split() for line in traces)
    assert any("traced-key" in line["keys"].split() for line in traces)


@pytest.fixture(params=[pytest.param("apache", marks=pytest.mark.soak), "pyromq"])
def two_brokers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(request.param, ("broker-a", "broker-b")) as cluster:
        yield cluster


@pytest.fixture
def java() -> Iterator[ClientDriver]:
    with java_driver() as driver:
        yield driver


def test_two_brokers_serve_one_topic(two_brokers: Cluster, java: ClientDriver) -> None:
    case = Case(two_brokers, java, "TwoBrokers")
    case.create_topics()
    case.consumer()
    case.consumer("second")
    java.consumer("orderly", case.namesrv, "orderly_group", case.topic, orderly=True)
    case.producer()
    bodies = [f"{n}" for n in range(80)]
    messages = [{"body": f"{n}", "properties": {"shard": f"{n % 8}"}} for n in range(80)]
    sent = case.send(messages, "ordered")
    assert Counter(result["broker"] for result in sent) == {"broker-a": 40, "broker-b": 40}
    received = java.wait_bodies("orderly", bodies)
    for shard in range(8):
        found = [line["body"] for line in received if line["properties"]["shard"] == str(shard)]
        assert found == bodies[shard::8]
    wait_until(lambda: len(java.reports("consumer") + java.reports("second")) == 80)
    both = java.reports("consumer") + java.reports("second")
    assert Counter(line["body"] for line in both) == Counter(bodies)
    # One goes: a producer that may choose sends to the other, and consumers notice nothing.
    two_brokers.stop_broker("broker-b", kill=True)
    more = [f"more {number}" for number in range(20)]
    sent = case.send([{"body": body} for body in more], patient=True)
    assert {result["broker"] for result in sent} == {"broker-a"}
    wait_until(
        lambda: (
            {line["body"] for line in java.reports("consumer") + java.reports("second")}
            >= set(more)
        )
    )


def owned(case: Case, name: str) -> list[int]:
    return sorted(queue for _, queue in case.driver.call("queues", name=name))
