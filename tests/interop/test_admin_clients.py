"""`pyromq admin` prints what Java's mqadmin prints, on the same cluster: groups, offsets, messages
and connections.

Each command runs twice against a cluster of pyromq and one of Apache's 4.9.7, by Java's mqadmin and
by ours, and the lines are compared. Commands that mqadmin does not have are tried against both.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from pyromq.admin import Admin, SyncAdmin
from pyromq.cli.main import main
from pyromq.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import ConsumerSendMsgBackRequestHeader
from tests.interop import cluster as clusters
from tests.interop import mqadmin
from tests.interop.client_driver import ClientDriver
from tests.interop.mqadmin import Outcome, comparable
from tests.support.patience import DEADLINE, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

KINDS: tuple[clusters.Kind, ...] = ("apache", "pyromq")
TOPIC, GROUP, PRODUCERS, BROKER = "Orders", "readers", "makers", "broker-a"
#: Messages in each queue of the topic.
COUNTS = (6, 4)
#: Groups without members, with equal offsets.
OFFLINE = ("sleepers-1", "sleepers-2")
#: Of four, the level of a delay that does not end during the tests.
LONG_LEVEL = 3
SETTINGS = {"messageDelayLevel": "1s 2s 1h 2h"}


class Cluster(NamedTuple):
    """A live cluster with messages, groups and clients."""

    kind: str
    namesrv: str
    broker: str
    #: Values for the words of command lines.
    known: dict[str, str]
    admin: SyncAdmin

    def words(self, line: str) -> list[str]:
        return [word.format(**self.known) for word in line.split()]

    def ours(self, line: str) -> Result:
        """Run `pyromq admin`."""
        words = ["admin", *self.words(line), "-n", self.namesrv, "--timeout", str(DEADLINE)]
        return CliRunner().invoke(main, words)

    def json(self, line: str) -> Any:
        result = self.ours(f"{line} --json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def java(self, admin: ClientDriver, line: str) -> Outcome:
        return mqadmin.run(admin, self.namesrv, self.words(line))


@pytest.fixture(scope="module")
def java_admin() -> Iterator[ClientDriver]:
    with mqadmin.mqadmin() as driver:
        yield driver


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with _live(request.param, tmp_path_factory.mktemp(request.param)) as cluster:
        yield cluster


@contextmanager
def _live(kind: clusters.Kind, folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        server = stack.enter_context(clusters.Cluster(kind, settings=SETTINGS))
        server.create_topic(TOPIC, len(COUNTS))
        namesrv, broker = server.namesrv_address, server.broker_address()
        admin = stack.enter_context(Admin.sync(namesrv, timeout=DEADLINE))
        cluster = Cluster(kind, namesrv, broker, {"broker": broker}, admin)
        # Some commands write files to the working directory.
        here = Path.cwd()
        os.chdir(folder)
        stack.callback(os.chdir, here)
        _fill(cluster, stack)
        yield cluster


def _fill(cluster: Cluster, stack: ExitStack) -> None:
    """Send messages, let a group consume them, and leave the clients at work."""
    namesrv, known = cluster.namesrv, cluster.known
    known["begin"] = str(int(time.time() * 1000) - 3_600_000)
    producer = stack.enter_context(Producer.sync(namesrv, group=PRODUCERS, trace=True))
    for queue_id, count in enumerate(COUNTS):
        for number in range(count):
            message = Message(
                TOPIC,
                f"{queue_id}-{number}".encode(),
                tags=f"tag-{number % 2}",
                keys=f"key-{queue_id}-{number} all",
            )
            result = producer.send(message, MessageQueue(TOPIC, BROKER, queue_id))
            known.setdefault("unique", result.msg_id)
            known.setdefault("id", result.offset_msg_id)
    received: list[ReceivedMessage] = []
    consumer = PushConsumer.sync(
        namesrv,
        group=GROUP,
        handler=received.append,
        subscriptions={TOPIC: "tag-0 || tag-1"},
        commit_interval=0.2,
        start_from=StartFrom.FIRST,
        trace=True,
    )
    stack.enter_context(consumer)
    wait_until(lambda: len(received) == sum(COUNTS))
    wait_until(lambda: _consumed(cluster) == sum(COUNTS))
    known["client"] = consumer.client_id
    for group in (*OFFLINE, "target-1", "target-2"):
        done = cluster.ours(f"updateSubGroup -b {{broker}} -g {group}")
        assert done.exit_code == 0, done.output
    wait_until(lambda: len(_traces(cluster)) >= 2)


def _consumed(cluster: Cluster) -> int:
    try:
        progress = cluster.admin.groups.progress(GROUP)
    except Exception:
        return 0  # the NameServer does not know its retry topic yet
    return sum(each.consumer_offset for each in progress.queues if each.queue.topic == TOPIC)


def _traces(cluster: Cluster) -> list[str]:
    found = cluster.admin.messages.trace(cluster.known["unique"])
    return [each.type for each in found if each.type in ("Pub", "SubAfter")]


class Command(NamedTuple):
    """One command line of both tools, and how to compare what they print."""

    line: str
    #: "exact", or "words" (no numbers).
    compare: str = "exact"

    @property
    def name(self) -> str:
        return self.line.split()[0]


LOOKS = (
    Command(f"consumerConnection -g {GROUP}"),
    Command(f"consumerConnection -g {GROUP} -b {{broker}}"),
    Command(f"producerConnection -g {PRODUCERS} -t {TOPIC}"),
    Command("consumerProgress"),
    Command(f"consumerProgress -g {GROUP}"),
    Command(f"consumerProgress -g {GROUP} -s true"),
    Command(f"consumerStatus -g {GROUP} -b {{broker}}"),
    Command(f"consumerStatus -g {GROUP} -i {{client}}", "words"),
    Command(f"getConsumerConfig -g {OFFLINE[0]}"),
    Command(f"queryMsgByKey -t {TOPIC} -k key-0-1"),
    Command(f"queryMsgByKey -t {TOPIC} -k all"),
    Command(f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}}"),
    Command(f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}} -a"),
    Command(f"queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 1"),
    Command("queryMsgById -i {id}"),
    Command("queryMsgTraceById -i {unique}"),
    Command(f"queryCq -t {TOPIC} -q 0 -i 1 -c 3 -b {{broker}} -g {GROUP}"),
    Command(f"queryCq -t {TOPIC} -q 0 -i 0"),
    Command(f"printMsg -t {TOPIC}"),
    Command(f"printMsg -t {TOPIC} -s tag-1 -d false -b {{begin}}"),
    Command(f"printMsgByQueue -t {TOPIC} -a {BROKER} -i 0 -p true -d true -f true"),
    Command(f"consumeMessage -t {TOPIC} -b {BROKER} -i 0 -o 1 -c 2"),
    Command(f"consumeMessage -t {TOPIC} -b {BROKER} -i 1"),
)
#: Idempotent: the second tool changes nothing more.
CHANGES = (
    Command("updateSubGroup -b {broker} -g others -s true -m false -d true -q 1 -r 5 -i 0 -w 1"),
    Command("updateSubGroup -c DefaultCluster -g others -a false"),
    Command(f"queryMsgById -i {{id}} -g {GROUP} -d {{client}}", "words"),
    Command(f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}} -g {GROUP} -d {{client}}", "words"),
    Command(f"checkMsgSendRT -t {TOPIC} -a 3 -s 16", "words"),
    Command(f"sendMessage -t {TOPIC} -p body -k key -c tag -b {BROKER} -i 0"),
    Command(f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s now"),
    Command(f"skipAccumulatedMessage -g {GROUP} -t {TOPIC}"),
)
#: Covered by tests of their own.
OTHERS = ("cloneGroupOffset", "deleteSubGroup", "startMonitoring")


def _lines(text: str, compare: str) -> list[str]:
    # A map in the order of its hash table, and what one tool prints of a message beyond the other.
    text = re.sub(r"\{([A-Z]\w+=[^{}]*)\}", lambda found: _sorted_map(found[1]), text)
    text = re.sub(r", (?:properties=\{|toString\(\)=).*?\] BODY: ", "] BODY: ", text)
    # One tool forgets the line end before a result.
    text = re.sub(r"(?<=\.)SubscriptionGroupConfig", "\nSubscriptionGroupConfig", text)
    # Rates: the last but one of the columns of all groups.
    text = re.sub(r"(?m)^(\S+ +\d+ +(?:V\d|OFFLINE).*?) +\d+ +(\d+)$", r"\1 RATE \2", text)
    return comparable(text, numbers=compare == "words")


def _sorted_map(text: str) -> str:
    # Java's client adds the bounds of the queue to messages that it pulled.
    words = [word for word in text.split(", ") if not word.startswith(("MIN_OFF", "MAX_OFF"))]
    return "{" + ", ".join(sorted(words)) + "}"


def _same(cluster: Cluster, java_admin: ClientDriver, command: Command) -> None:
    java = cluster.java(java_admin, command.line)
    ours = cluster.ours(command.line)
    assert java.error == "", java
    assert ours.exit_code == 0, ours.output
    assert _lines(ours.output, command.compare) == _lines(java.out, command.compare)


@pytest.mark.parametrize("command", LOOKS, ids=lambda command: command.line)
def test_shows_what_mqadmin_shows(
    cluster: Cluster, java_admin: ClientDriver, command: Command
) -> None:
    _same(cluster, java_admin, command)


@pytest.mark.parametrize("command", CHANGES, ids=lambda command: command.line)
def test_changes_what_mqadmin_changes(
    cluster: Cluster, java_admin: ClientDriver, command: Command
) -> None:
    _same(cluster, java_admin, command)


@pytest.mark.parametrize(
    "line",
    [
        f"resetOffsetByTime -t {TOPIC} -s {{begin}} -f false",
        f"resetOffsetByTime -t {TOPIC} -s {{begin}}",
        f"skipAccumulatedMessage -t {TOPIC} -f false",
        f"skipAccumulatedMessage -t {TOPIC}",
        f"resetOffsetByTime -t {TOPIC} -s 2001-01-01#00:00:00:000",
    ],
)
def test_moves_an_offline_group_as_mqadmin_does(
    cluster: Cluster, java_admin: ClientDriver, line: str
) -> None:
    by_java, by_us = OFFLINE
    if not _offsets(cluster, by_us):
        for group in OFFLINE:
            cluster.admin.offsets.set_exact(group, TOPIC, {(BROKER, 0): 2, (BROKER, 1): 1})
    plan = cluster.json(f"{line} -g {by_us} --dry-run")
    before = _offsets(cluster, by_us)
    assert {each["queue"]["queue_id"]: each["before"] for each in plan["changes"]} == before
    java = cluster.java(java_admin, f"{line} -g {by_java}")
    assert _offsets(cluster, by_us) == before
    ours = cluster.ours(f"{line} -g {by_us}")

    assert ours.exit_code == 0, ours.output
    assert _lines(ours.output.replace(by_us, "GROUP"), "exact") == _lines(
        java.out.replace(by_java, "GROUP"), "exact"
    )
    after = {each["queue"]["queue_id"]: each["after"] for each in plan["changes"]}
    assert _offsets(cluster, by_us) == _offsets(cluster, by_java) == after


def test_clones_offsets(cluster: Cluster, java_admin: ClientDriver) -> None:
    line = f"cloneGroupOffset -s {GROUP} -t {TOPIC} -o true"
    assert cluster.json(f"{line} -d target-2 --dry-run")["dry_run"] is True
    assert _offsets(cluster, "target-2") == {}
    java = cluster.java(java_admin, f"{line} -d target-1")
    ours = cluster.ours(f"{line} -d target-2")

    assert comparable(ours.output.replace("target-2", "G")) == comparable(
        java.out.replace("target-1", "G")
    )
    assert _offsets(cluster, "target-2") == _offsets(cluster, "target-1")
    assert _offsets(cluster, "target-2") == _offsets(cluster, GROUP)
    online = cluster.ours(f"cloneGroupOffset -s target-1 -d {GROUP} -t {TOPIC} -o true")
    assert online.exit_code == 1
    assert "connected member" in online.output


def _offsets(cluster: Cluster, group: str) -> dict[int, int]:
    return {
        each.queue.queue_id: each.offset
        for each in cluster.admin.offsets.committed(group, TOPIC)
        if each.offset is not None
    }


@pytest.mark.parametrize("where", ["-b {broker}", "-c DefaultCluster"])
def test_deletes_a_group(cluster: Cluster, java_admin: ClientDriver, where: str) -> None:
    outputs = []
    for group in ("gone", "lost"):
        created = cluster.ours(f"updateSubGroup -c DefaultCluster -g {group}")
        assert created.exit_code == 0, created.output
        line = f"deleteSubGroup {where} -g {group} -r true"
        if group == "gone":
            dry = cluster.ours(f"{line} --dry-run")
            assert dry.exit_code == 0, dry.output
            assert group in cluster.admin.groups.names()
            outputs.append(cluster.ours(line).output.replace(group, "GROUP"))
        else:
            outputs.append(cluster.java(java_admin, line).out.replace(group, "GROUP"))
        assert group not in cluster.admin.groups.names()
    assert comparable(outputs[0]) == comparable(outputs[1])


def test_monitoring(cluster: Cluster) -> None:
    result = cluster.ours("startMonitoring --rounds 1")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].endswith("beginRound")
    assert lines[-1].endswith("endRound")
    assert any(f"consumerGroup={GROUP}, topic={TOPIC}, undone" in line for line in lines)


def test_exit_codes(cluster: Cluster) -> None:
    for line, code in (
        ("consumerConnection -g nobody", 3),
        ("consumerProgress -g nobody", 3),
        ("consumerStatus -g nobody", 3),
        ("getConsumerConfig -g nobody", 3),
        (f"producerConnection -g nobody -t {TOPIC}", 3),
        (f"queryMsgByKey -t {TOPIC} -k nothing", 3),
        (f"queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 999999", 3),
        ("queryMsgById -i 7F00000100002A9F00000000FFFFFFFF", 4),
        (f"queryMsgByUniqueKey -t {TOPIC} -i 00", 3),
        ("dlqShow -g nobody", 3),
        ("printMsg -t Ordes", 3),
        (f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s yesterday", 2),
        (f"setOffset -g {GROUP} -t {TOPIC} -o {BROKER}:0=1", 1),
        (f"setOffset -g {OFFLINE[0]} -t {TOPIC} -o {BROKER}:0=999999", 1),
    ):
        result = cluster.ours(line)
        assert result.exit_code == code, (line, result.output)
        assert "Error: " in result.output


def test_sets_and_previews_offsets(cluster: Cluster) -> None:
    group = OFFLINE[0]
    changed = cluster.json(f"setOffset -g {group} -t {TOPIC} -o {BROKER}:0=3 -o {BROKER}:1=2")
    assert [each["after"] for each in changed["changes"]] == [3, 2]
    shown = cluster.json(f"previewOffsets -g {group} -t {TOPIC}")
    assert [each["offset"] for each in shown] == [3, 2]
    plan = cluster.json(f"previewOffsets -g {group} -t {TOPIC} -s now")
    assert [each["after"] for each in plan["changes"]] == [each["max_offset"] for each in shown]


def test_messages_by_time(cluster: Cluster) -> None:
    line = f"queryMsgByTime -t {TOPIC} -b {{begin}}"
    found = cluster.json(f"{line} --limit 3")
    assert (len(found["messages"]), found["complete"]) == (3, False)
    whole = cluster.json(f"{line} --limit 1000")
    assert whole["complete"] is True
    assert {
        f"{queue}-{number}" for queue, count in enumerate(COUNTS) for number in range(count)
    } <= {each["body"] for each in whole["messages"]}
    assert whole["messages"][:3] == found["messages"]


def test_delayed_messages(cluster: Cluster) -> None:
    before = int(time.time() * 1000)
    with Producer.sync(cluster.namesrv) as producer:
        sent = producer.send(Message(TOPIC, b"later", delay_level=LONG_LEVEL))

    def found() -> list[Any]:
        messages = cluster.json(f"delayedMessages -t {TOPIC} -l {LONG_LEVEL}")["messages"]
        return [each for each in messages if each["message"]["msg_id"] == sent.msg_id]

    wait_until(lambda: len(found()) == 1)
    (message,) = found()
    assert (message["delay"], message["topic"]) == ("1h", TOPIC)
    assert 3_600_000 <= message["due"] - before < 3_600_000 + DEADLINE * 1000
    levels = cluster.json("delayedMessages --levels")
    assert [each["waiting"] for each in levels] == [0, 0, 1, 0]
    assert levels[LONG_LEVEL - 1]["next_due"] == message["due"]
    assert cluster.json("delayedMessages -t Other")["messages"] == []


def test_half_messages(cluster: Cluster) -> None:
    unknown = TransactionState.UNKNOWN
    with TransactionProducer.sync(
        cluster.namesrv, group="transactions", check=lambda _: unknown
    ) as producer:
        ids = {
            producer.send_in_transaction(Message(TOPIC, b"half"), lambda _, to=to: to).msg_id: to  # type: ignore[misc]
            for to in (unknown, TransactionState.COMMIT, TransactionState.ROLLBACK)
        }

        def found() -> list[Any]:
            messages = cluster.json("halfMessages -g transactions")["messages"]
            return [each for each in messages if each["message"]["msg_id"] in ids]

        wait_until(lambda: [ids[each["message"]["msg_id"]] for each in found()] == [unknown])
        assert found()[0]["topic"] == TOPIC
        assert cluster.json("halfMessages -t Other")["messages"] == []


def test_dead_letters(cluster: Cluster) -> None:
    _make_dead_letters(cluster)
    shown = cluster.json(f"dlqShow -g {GROUP}")
    assert [each["message"]["body"] for each in shown["dead_letters"]] == [
        "dead-0",
        "dead-1",
        "dead-2",
    ]
    assert {each["origin_topic"] for each in shown["dead_letters"]} == {TOPIC}
    origins = [each["origin_msg_id"] for each in shown["dead_letters"]]
    assert [cluster.json(f"queryMsgById -i {each}")[0]["body"] for each in origins] == [
        "dead-0",
        "dead-1",
        "dead-2",
    ]
    assert cluster.json(f"dlqResend -g {GROUP} --dry-run")["by_topic"] == {TOPIC: 3}
    _resend(cluster, "--limit 1", (1, 0))
    _resend(cluster, "", (2, 1))
    _resend(cluster, "", (0, 3))
    _resend(cluster, "--run again", (3, 0))
    _resend(cluster, "--retry", (3, 0))
    _resend(cluster, "--retry", (0, 3))
    copies = cluster.json(f"queryMsgByTime -t {TOPIC} -b {{begin}} --limit 1000")["messages"]
    bodies = [each["body"] for each in copies if each["body"].startswith("dead-")]
    assert sorted(bodies) == sorted(["dead-0", "dead-1", "dead-2"] * 3)


def _make_dead_letters(cluster: Cluster) -> None:
    with Producer.sync(cluster.namesrv) as producer:
        sent = [producer.send(Message(TOPIC, b"dead-%d" % number)) for number in range(3)]
    for result in sent:
        _, _, offset = decode_message_id(result.offset_msg_id)
        header = ConsumerSendMsgBackRequestHeader(offset, GROUP, delay_level=-1, origin_topic=TOPIC)
        _ask(cluster, RequestCode.CONSUMER_SEND_MSG_BACK, header)
    wait_until(lambda: _dead(cluster) == {GROUP: 3})


def _resend(cluster: Cluster, options: str, outcome: tuple[int, int]) -> None:
    result = cluster.json(f"dlqResend -g {GROUP} {options}")
    assert (result["sent"], result["already_sent"]) == outcome, options
    assert result["failures"] == {}


def _ask(cluster: Cluster, code: RequestCode, header: Any) -> None:
    cluster.admin._run(lambda admin: admin.session.ask(cluster.broker, code, header))


def _dead(cluster: Cluster) -> dict[str, int]:
    return {each["group"]: each["count"] for each in cluster.json("dlqList")}


def test_every_command_of_these_areas_is_tried() -> None:
    from tests.unit.cli.admin.mqadmin_commands import COMMANDS

    areas = {"connection", "consumer", "message", "offset", "queue"}
    expected = {command.name for command in COMMANDS if command.area in areas}
    assert {command.name for command in (*LOOKS, *CHANGES)} | set(OTHERS) == expected


@pytest.mark.soak
def test_brokers_of_5x(tmp_path: Path) -> None:
    """They differ in resets, half messages and groups of topics; only mqadmin 4.9.7 is at hand."""
    with _live("apache-5.3.3", tmp_path) as cluster:
        for line in (
            f"consumerProgress -g {GROUP}",
            f"consumerStatus -g {GROUP}",
            "consumerProgress",
        ):
            result = cluster.ours(line)
            assert result.exit_code == 0, result.output
        group = OFFLINE[0]
        test_messages_by_time(cluster)
        cluster.json(f"setOffset -g {group} -t {TOPIC} -o {BROKER}:0=2 -o {BROKER}:1=1")
        for line, offsets in (
            (f"skipAccumulatedMessage -g {group} -t {TOPIC}", dict(enumerate(COUNTS))),
            (f"resetOffsetByTime -g {group} -t {TOPIC} -s {{begin}}", {0: 0, 1: 0}),
        ):
            cluster.json(line)
            assert _offsets(cluster, group) == offsets
        test_sets_and_previews_offsets(cluster)
        test_delayed_messages(cluster)
        test_half_messages(cluster)
        _make_dead_letters(cluster)
        _resend(cluster, "", (3, 0))
        _resend(cluster, "", (0, 3))
