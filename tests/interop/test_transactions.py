"""The real Java transactional producer against pyromq, and against Apache's broker as the control.

Both brokers must make the same program print the same lines: what was sent, what the producer was
asked, what consumers got. And what one of them left open, the other one brings to its end.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.interop.java_programs import (
    CLIENT,
    INTEROP_SOURCES,
    JavaProgram,
    Line,
    compiled,
    javac_or_skip,
)
from tests.interop.servers import PyromqServer
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

#: Checks within seconds instead of minutes; files of a size that both brokers find quickly.
SETTINGS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "500",
    "mapedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mapedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}

COMMITTED = (
    "commit-1",
    "commit-2-large",
    "checked-commit-1",
    "checked-commit-2-large",
    "checked-commit-3-immune",
    "twice-commit-1",
)
ROLLED_BACK = ("rollback-1", "checked-rollback-1")
#: What is sent before a broker is handed over to the other kind, and is not ended by then.
LEFT_OPEN = ("checked-commit-8", "checked-commit-9-large", "checked-rollback-9")
ENDED = ("commit-8", "rollback-8")

Server = PyromqServer | ApacheRocketMQ


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    java_or_skip()
    javac_or_skip()


@pytest.fixture(scope="module")
def store_of_apache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apache") / "store"


@pytest.fixture(scope="module")
def of_apache(store_of_apache: Path, namesrv: str) -> list[Line]:
    """What the program prints with Apache's broker, which leaves some transactions open."""
    with apache_broker(store_of_apache, namesrv) as apache:
        lines = run(apache, "Transactions", (*COMMITTED, *ROLLED_BACK), expect=len(COMMITTED))
        leave_open(apache)
    return lines


def test_transactions_end_as_with_apache(of_apache: list[Line]) -> None:
    assert_ends_as_with_apache(of_apache)


@pytest.mark.soak
def test_transactions_end_as_with_apache_in_the_binary_encoding(of_apache: list[Line]) -> None:
    assert_ends_as_with_apache(of_apache, "-Drocketmq.serialize.type=ROCKETMQ")


def assert_ends_as_with_apache(of_apache: list[Line], *options: str) -> None:
    # The control: the program was asked what the comparison is about.
    asked = {(line["key"], line["time"]) for line in of_apache if line["kind"] == "asked"}
    assert {("twice-commit-1", 1), ("twice-commit-1", 2), ("checked-rollback-1", 1)} <= asked
    with PyromqServer(broker_properties=SETTINGS) as server:
        lines = run(
            server,
            "Transactions",
            (*COMMITTED, *ROLLED_BACK),
            expect=len(COMMITTED),
            options=options,
        )
    assert comparable(lines) == comparable(of_apache)
    received = sorted(line["key"] for line in lines if line["kind"] == "received")
    assert received == sorted(COMMITTED), "each committed message once, no other"


@pytest.mark.usefixtures("of_apache")
def test_what_apache_left_open_is_brought_to_its_end(store_of_apache: Path) -> None:
    with PyromqServer(broker_properties=SETTINGS, store=store_of_apache) as server:
        assert_all_end(server)


@pytest.mark.soak
def test_what_was_left_open_is_brought_to_its_end_by_apache(tmp_path: Path, namesrv: str) -> None:
    store = tmp_path / "store"
    with PyromqServer(broker_properties=SETTINGS, store=store) as server:
        leave_open(server)
    with apache_broker(store, namesrv) as apache:
        assert_all_end(apache)


def apache_broker(store: Path, namesrv: str) -> ApacheRocketMQ:
    return ApacheRocketMQ(
        broker_properties=SETTINGS,
        store=store,
        broker_only=True,
        namesrv_address=namesrv,
        jvm_options=QUICK_JVM_OPTIONS,
    )


def leave_open(server: Server) -> None:
    """Send, and be gone before anybody asks about the rest, however slow the machine is."""
    asyncio.run(ask_nobody(server.broker_address))
    lines = run(server, "Handed", (*ENDED, *LEFT_OPEN), expect=0, settle=0)
    assert {line["kind"] for line in lines} <= {"sent", "received"}


async def ask_nobody(address: str) -> None:
    """Let a broker wait for minutes before it asks."""
    client = RemotingClient()
    try:
        request = RemotingCommand(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"transactionTimeOut=600000\n"
        )
        answer = await client.request(address, request)
        assert answer.code == ResponseCode.SUCCESS, answer
    finally:
        await client.close()


def assert_all_end(server: Server) -> None:
    """A producer of the same group comes; it sends something, so that its broker knows of it."""
    lines = run(server, "Handed", ("commit-9",), expect=4)
    received = [line for line in lines if line["kind"] == "received"]
    committed = ["checked-commit-8", "checked-commit-9-large", "commit-8", "commit-9"]
    assert sorted(line["key"] for line in received) == committed
    for line in received:
        assert line["umlaut"] == "grün"
        assert line["body"].startswith(line["key"])
    asked = {line["key"] for line in lines if line["kind"] == "asked"}
    assert asked == set(LEFT_OPEN), "what was ended is asked about no more"


def run(
    server: Server,
    topic: str,
    keys: tuple[str, ...],
    *,
    expect: int,
    settle: int = 2500,
    options: tuple[str, ...] = (),
) -> list[Line]:
    """What tests/interop/java/transactions/Transactions.java prints."""
    arguments = {
        "namesrv": server.namesrv_address,
        "topic": topic,
        "keys": ",".join(keys),
        "expect": str(expect),
        "settle": str(settle),
    }
    program = JavaProgram(
        compiled(INTEROP_SOURCES / "transactions", CLIENT),
        "Transactions",
        [part for name, value in arguments.items() for part in (f"--{name}", value)],
        options,
    )
    with program:
        return program.lines(timeout=240.0)


def comparable(lines: list[Line]) -> list[str]:
    """The lines in an order of their own, each once, without what time alone decides."""
    described = set()
    for line in lines:
        properties = set(line.get("properties", ()))
        # How often an immune half was put back before it was asked about is a matter of time;
        # Java counts that as questions, and leaves a trace of it for consumers. It takes WAIT
        # away from messages, but forgets those of transactions.
        properties -= {"TRAN_PREPARED_QUEUE_OFFSET", "WAIT"}
        immune = "immune" in line["key"]
        times = None
        if line["kind"] == "asked" and not immune:
            # A question that came before the producer was known counts, but is heard by nobody.
            times = line["time"], int(line["checkTimes"]) >= line["time"]
        if line["kind"] == "asked" and line["key"].startswith("checked") and line["time"] > 1:
            continue  # asked again before the answer had come
        described.add(
            repr(
                sorted(
                    {
                        **{k: v for k, v in line.items() if k not in ("time", "checkTimes")},
                        "properties": sorted(properties),
                        "times": times,
                    }.items()
                )
            )
        )
    return sorted(described)
