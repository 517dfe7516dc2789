"""Masters and replicas of pyromq and Java, in every combination.

Restarts and kills of either side while 100,000 messages are sent leave two equal logs. A
SYNC_MASTER says what its replica has. A Java consumer goes on at the replica while the master is
away, and returns. The pair of two Java brokers is the control, for the long run only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.remoting.client import RemotingClient
from tests.interop.client_programs import CLIENTS
from tests.support.apache_rocketmq import VERSION, ask
from tests.support.crash import Load, Verifier, send_command
from tests.support.java_pair import Node, Role
from tests.support.log_compare import assert_same_logs, read_records
from tests.support.patience import DEADLINE, wait_until
from tests.support.replication_nodes import Kind, pair

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

MESSAGES = 100_000
QUEUES = 4
TOPIC = "Followed"
GROUP = "followers"
#: A replica of Java's asks for the first time this long after it has connected; 5 s by default.
ASK_MILLIS = "1000"


@pytest.fixture(
    params=[
        pytest.param(("java", "java"), marks=pytest.mark.soak),
        ("pyromq", "java"),
        ("java", "pyromq"),
        # tests/crash and tests/clients have replicas of our own.
        pytest.param(("pyromq", "pyromq"), marks=pytest.mark.soak),
    ],
    ids=lambda kinds: f"{kinds[1]}-follows-{kinds[0]}",
)
def kinds(request: pytest.FixtureRequest) -> tuple[Kind, Kind]:
    """Master and replica."""
    master, replica = request.param
    return master, replica


def test_logs_are_equal_after_restarts_and_kills_of_either_side(
    kinds: tuple[Kind, Kind], namesrv: str, tmp_path: Path
) -> None:
    load = Load(seed=15)
    with pair(
        *kinds, tmp_path, namesrv, role=Role.ASYNC_MASTER, haSendHeartbeatInterval=ASK_MILLIS
    ) as (master, replica):
        # An empty Java replica begins with the newest segment: let it begin with the first one.
        _send_up_to(100, load, master)
        replica.wait_for_log_end(master.log_end())
        with _sending_up_to(MESSAGES // 4, load, master):
            _wait_for_messages(MESSAGES // 20, load)
            replica.kill()
            _wait_for_messages(MESSAGES // 6, load)
            replica.start()
        with _sending_up_to(MESSAGES, load, master):
            _wait_for_messages(MESSAGES // 3, load)
            master.kill()
        master.start()
        _send_up_to(MESSAGES // 2, load, master)
        replica.stop()
        _send_up_to(3 * MESSAGES // 4, load, master)
        replica.start()
        _send_up_to(4 * MESSAGES // 5, load, master)
        master.stop()
        master.start()
        _send_up_to(MESSAGES, load, master)
        replica.wait_for_log_end(master.log_end())
        _stop_both(master, replica)
    found = assert_same_logs(master.store, replica.store)
    assert found.begins == (0, 0)
    verifier = Verifier(load.acknowledged)
    for record in read_records(replica.store):
        verifier.take(record)
    verifier.finish()


def _send_up_to(goal: int, load: Load, master: Node) -> None:
    """Send until so many messages of the load are acknowledged."""
    with _sending_up_to(goal, load, master):
        pass
    assert len(load.acknowledged) >= goal


@contextmanager
def _sending_up_to(goal: int, load: Load, master: Node) -> Iterator[Future[None]]:
    """Send on another thread, up to a goal or until the master is gone."""
    load.goal = goal
    with ThreadPoolExecutor(1) as executor:
        sending = executor.submit(lambda: asyncio.run(load.run(master.address)))
        yield sending
        sending.result()


def _wait_for_messages(count: int, load: Load) -> None:
    wait_until(lambda: len(load.acknowledged) >= count)


def test_a_sync_master_tells_what_its_replica_has(
    kinds: tuple[Kind, Kind], namesrv: str, tmp_path: Path
) -> None:
    with pair(
        *kinds, tmp_path, namesrv, slaveTimeout="1000", haSendHeartbeatInterval=ASK_MILLIS
    ) as (master, replica):
        # Until the replica has asked for the first time, the master waits for it in vain.
        wait_until(lambda: _send(master) == ResponseCode.SUCCESS)
        assert replica.log_end() == master.log_end()
        replica.pause()
        assert _send(master) == ResponseCode.FLUSH_SLAVE_TIMEOUT
        replica.resume()
        replica.wait_for_log_end(master.log_end())
        assert _send(master) == ResponseCode.SUCCESS
        replica.kill()
        wait_until(lambda: _send(master) == ResponseCode.SLAVE_NOT_AVAILABLE)
        replica.start()
        wait_until(lambda: _send(master) == ResponseCode.SUCCESS)
        # Sends to a replica are refused.
        assert _send(replica) == ResponseCode.SERVICE_NOT_AVAILABLE
        replica.wait_for_log_end(master.log_end())
        _stop_both(master, replica)
    assert_same_logs(master.store, replica.store)


def _stop_both(master: Node, replica: Node) -> None:
    """Stop them at once: Java's takes seconds."""
    with ThreadPoolExecutor(2) as executor:
        for ending in [executor.submit(node.stop) for node in (master, replica)]:
            ending.result()


def _send(node: Node) -> int:
    async def send() -> int:
        client = RemotingClient()
        try:
            return (await client.request(node.address, send_command([12]), DEADLINE)).code
        finally:
            await client.close()

    return asyncio.run(send())


def test_a_java_consumer_goes_on_at_the_replica_and_returns_to_the_master(
    kinds: tuple[Kind, Kind], namesrv: str, tmp_path: Path
) -> None:
    with (
        pair(
            *kinds, tmp_path, namesrv, role=Role.ASYNC_MASTER, haSendHeartbeatInterval=ASK_MILLIS
        ) as (master, replica),
        CLIENTS[f"java-{VERSION}"].start() as driver,
    ):
        for topic in (TOPIC, f"%RETRY%{GROUP}"):
            _create_topic(topic, master, namesrv)
        driver.producer("producer", namesrv, "leaders")

        def send(first: int, end: int) -> list[str]:
            bodies = [str(number) for number in range(first, end)]
            for body in bodies:
                driver.send("producer", TOPIC, [{"body": body}])
            return bodies

        driver.consumer("before", namesrv, GROUP, TOPIC)
        driver.wait_bodies("before", consumed := send(0, 100))
        # Not before: a consumer that is closed does not wait for what it is about to commit.
        wait_until(lambda: _consumed(master) == len(consumed))
        driver.close("before")
        left = send(100, 200)
        replica.wait_for_log_end(master.log_end())
        wait_until(lambda: _consumed(replica) == len(consumed))
        master.stop()

        driver.consumer("during", namesrv, GROUP, TOPIC)
        received = driver.wait_bodies("during", left)
        assert {line["body"] for line in received} == set(left), "it goes on where it was"

        master.start()
        wait_until(lambda: _route_has(namesrv, master.address))
        late = send(200, 250)
        driver.wait_bodies("during", late)
        wait_until(lambda: _consumed(master) == 250)
        driver.close_all()


def _create_topic(topic: str, master: Node, namesrv: str) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    header, _ = ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, DEADLINE)
    assert header["code"] == ResponseCode.SUCCESS, header
    wait_until(lambda: _route(namesrv, topic))


def _route(namesrv: str, topic: str) -> bytes:
    header, body = ask(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, DEADLINE)
    return body if header["code"] == ResponseCode.SUCCESS else b""


def _route_has(namesrv: str, address: str) -> bool:
    return f'"{address}"'.encode() in _route(namesrv, TOPIC)


def _consumed(node: Node) -> int:
    """How many messages of the topic the group has consumed, as a broker knows it."""
    total = 0
    for queue_id in range(QUEUES):
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
        header, _ = ask(node.address, RequestCode.QUERY_CONSUMER_OFFSET, fields, DEADLINE)
        if header["code"] == ResponseCode.SUCCESS:
            total += int(header["extFields"]["offset"])
    return total
