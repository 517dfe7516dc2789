"""The real Java client through our NameServer and broker, and through Apache's as the control.

A test that fails for both is wrong itself; one that fails for pyromq alone has found something.
Each command is a process of its own, as an application is, and takes seconds to start: most of
it is for the long run, as test_clients.py and test_java_features.py do it with one process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from tests.interop.java_programs import Line, interop_client, javac_or_skip
from tests.interop.servers import PyromqServer
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

MODES = ("sync", "async", "oneway", "batch")
ENCODINGS = {"json": (), "binary": ("-Drocketmq.serialize.type=ROCKETMQ",)}

Server = PyromqServer | ApacheRocketMQ


@pytest.fixture(scope="module", params=[pytest.param("apache", marks=pytest.mark.soak), "pyromq"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    java_or_skip()
    javac_or_skip()
    if request.param == "pyromq":
        with PyromqServer() as pyromq:
            yield pyromq
    else:
        apache = ApacheRocketMQ(jvm_options=QUICK_JVM_OPTIONS)
        apache.start()
        try:
            yield apache
        finally:
            apache.kill()  # a clean stop takes ten seconds, and nobody looks at the store


@pytest.mark.parametrize("encoding", [pytest.param("json", marks=pytest.mark.soak), "binary"])
def test_every_kind_of_send_arrives_once(server: Server, encoding: str) -> None:
    topic = f"EveryKind-{encoding}"
    count = 12
    options = ENCODINGS[encoding]
    sent = produce(server, topic, modes=MODES, count=count, options=options)
    received = consume(server, topic, len(MODES) * count, options=options)
    assert_exactly_once(received, [f"message-{mode}-{i}" for mode in MODES for i in range(count)])
    for line in received:
        number = int(line["properties"]["number"])
        assert line["body"] == f"{first_key(line)} äöü 消息 🚀"
        assert line["tags"] == ("TagA", "TagB")[number % 2]
        assert line["flag"] == number
        assert line["properties"]["umlaut"] == f"grün-{number}"
    assert_results_match(sent, received, count)


def assert_results_match(sent: list[Line], received: list[Line], count: int) -> None:
    """What each producer was told is what the consumer saw."""
    places = {(line["queueId"], line["queueOffset"]): line for line in received}
    told = 0
    for result in sent:
        assert result["status"] == "SEND_OK"
        for number, message_id in enumerate(result.get("msgIds") or [result["msgId"]]):
            message = places[result["queueId"], result["queueOffset"] + number]
            assert message["msgId"] == message_id
            assert result.get("keys") in (None, message["keys"])
            told += 1
    assert told == (len(MODES) - 1) * count  # oneway sends are told nothing


@pytest.mark.soak
def test_two_consumers_share_the_queues(server: Server) -> None:
    topic = "Shared"
    count = 40
    produce(server, topic, prefix="first", count=1)
    arguments = consume_arguments(server, topic, count + 1, "shared_group")
    with interop_client(*arguments, "--consumers", "2", "--settle", "1000") as consumer:
        consumer.wait_for("ready")
        produce(server, topic, count=count)
        received = consumer.lines()
    # The first message makes the topic. It comes while the group still shares out the queues,
    # when RocketMQ promises at least one delivery, and Java's own broker also gives two.
    first = [line for line in received if first_key(line) == "first-sync-0"]
    received = [line for line in received if first_key(line) != "first-sync-0"]
    assert_exactly_once(
        [first[0], *received],
        ["first-sync-0", *(f"message-sync-{number}" for number in range(count))],
    )
    owners = {(line["consumer"], line["queueId"]) for line in received}
    assert {consumer for consumer, _ in owners} == {"consumer0", "consumer1"}
    assert len({queue for _, queue in owners}) == len(owners), "a queue had two owners"


@pytest.mark.soak
def test_tags_choose_messages(server: Server) -> None:
    topic = "Tagged"
    produce(server, topic, modes=("sync", "batch"), count=12, tags="TagA,TagB,TagC,Etikett-ä")
    received = consume(server, topic, 12, expression="TagB || Etikett-ä")
    keys = [f"message-{mode}-{i}" for mode in ("sync", "batch") for i in range(12) if i % 2]
    assert Counter(map(first_key, received)) == Counter(keys)
    assert {line["tags"] for line in received} == {"TagB", "Etikett-ä"}


@pytest.mark.soak
def test_large_bodies_are_compressed_and_come_back(server: Server) -> None:
    topic = "Large"
    produce(server, topic, count=3, size=200_000)
    received = consume(server, topic, 3)
    assert_exactly_once(received, [f"message-sync-{i}" for i in range(3)])
    for line in received:
        assert line["sysFlag"] & 1
        assert len(line["body"]) >= 200_000
        assert line["body"].startswith(first_key(line))


def test_messages_and_offsets_survive_a_restart() -> None:
    java_or_skip()
    javac_or_skip()
    topic = "Restarted"
    before = [f"before-{mode}-{number}" for mode in MODES for number in range(5)]
    after = [f"after-sync-{number}" for number in range(5)]
    with PyromqServer() as server:
        produce(server, topic, modes=MODES, count=5, prefix="before")
        assert_exactly_once(consume(server, topic, 20, group="restart_group"), before)
        server.stop()
        server.start()
        produce(server, topic, count=5, prefix="after")
        rest = consume(server, topic, 5, group="restart_group")
        assert Counter(map(first_key, rest)) == Counter(after), "committed offsets were lost"
        everything = consume(server, topic, 25, group="another_group")
        assert_exactly_once(everything, before + after)


def produce(
    server: Server,
    topic: str,
    *,
    modes: tuple[str, ...] = ("sync",),
    count: int,
    prefix: str = "message",
    tags: str = "TagA,TagB",
    size: int = 0,
    options: tuple[str, ...] = (),
) -> list[Line]:
    with interop_client(
        *("produce", "--namesrv", server.namesrv_address, "--topic", topic),
        *("--modes", ",".join(modes), "--count", str(count), "--prefix", prefix),
        *("--tags", tags, "--size", str(size)),
        options=options,
    ) as producer:
        return producer.lines()


def consume(
    server: Server,
    topic: str,
    count: int,
    *,
    group: str = "",
    expression: str = "*",
    options: tuple[str, ...] = (),
) -> list[Line]:
    arguments = consume_arguments(server, topic, count, group or f"group-of-{topic}")
    with interop_client(*arguments, "--expression", expression, options=options) as consumer:
        return consumer.lines()


def consume_arguments(server: Server, topic: str, count: int, group: str) -> tuple[str, ...]:
    return (
        *("consume", "--namesrv", server.namesrv_address, "--topic", topic),
        *("--group", group, "--count", str(count)),
    )


def assert_exactly_once(received: list[Line], keys: list[str]) -> None:
    """Each message once, and the offsets of each queue without a gap from 0 on."""
    assert Counter(map(first_key, received)) == Counter(keys)
    offsets: dict[int, list[int]] = defaultdict(list)
    for line in received:
        offsets[line["queueId"]].append(line["queueOffset"])
    for queue, found in offsets.items():
        assert sorted(found) == list(range(len(found))), f"queue {queue}"


def first_key(line: Line) -> str:
    key: str = line["keys"].split(" ")[0]
    return key
