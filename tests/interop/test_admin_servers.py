"""`pyromq admin` prints what Java's mqadmin prints, on the same cluster: topics, brokers, clusters,
NameServers, statistics, access control, exports.

Each command runs twice against a cluster of pyromq and one of Apache's 4.9.7, by Java's mqadmin and
by ours, and the lines are compared. Both clusters have access control, so every request is signed.
`test_admin_clients.py` does the same for groups, offsets, messages and connections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from pyromq.admin import Admin
from pyromq.cli.main import main
from pyromq.client import Message, Producer, PushConsumer, ReceivedMessage, StartFrom, Tls
from pyromq.protocol.java.fastjson import parse_json
from tests.interop import mqadmin
from tests.interop.client_driver import ClientDriver
from tests.interop.cluster import Cluster as OtherCluster
from tests.interop.mqadmin import Outcome, comparable, fields
from tests.interop.servers import PyromqServer
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.patience import DEADLINE, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

KINDS = ("apache", "pyromq")
KEY, SECRET = "admin_key", "admin_secret"
ACCOUNTS = f"""\
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
- accessKey: {KEY}
  secretKey: {SECRET}
  admin: true
- accessKey: other_key
  secretKey: other_secret
  defaultTopicPerm: DENY
  topicPerms: [Orders=PUB|SUB]
"""
TOPIC, GROUP = "Orders", "readers"
#: Messages in each queue of the topic.
COUNTS = (5, 3)

#: Rates and shares have decimals, counts do not.
_DECIMALS = re.compile(r"\d+\.\d+(?:E-?\d+)?")
#: Runtime figures that are the same a moment later.
_STABLE = (
    "brokerVersionDesc",
    "commitLogMaxOffset",
    "commitLogMinOffset",
    "earliestMessageTimeStamp",
    "msgGetTotalTodayNow",
    "msgPutTotalTodayNow",
    "putMessageAverageSize",
    "putMessageSizeTotal",
    "putMessageTimesTotal",
)


class Cluster(NamedTuple):
    """A live cluster with messages, a group and clients."""

    kind: str
    namesrv: str
    broker: str
    broker_name: str
    folder: Path

    def words(self, line: str) -> list[str]:
        known = {
            "namesrv": self.namesrv,
            "broker": self.broker,
            "name": self.broker_name,
            "folder": str(self.folder),
        }
        return [word.format(**known) for word in line.split()]

    def ours(self, line: str) -> Result:
        """Run `pyromq admin`."""
        environment = {"ROCKETMQ_ACCESS_KEY": KEY, "ROCKETMQ_SECRET_KEY": SECRET}
        words = ["admin", *self.words(line), "-n", self.namesrv, "--timeout", "30"]
        return CliRunner(env=environment).invoke(main, words)

    def java(self, admin: ClientDriver, line: str) -> Outcome:
        return mqadmin.run(admin, self.namesrv, self.words(line), accessKey=KEY, secretKey=SECRET)


@pytest.fixture(scope="module")
def admin() -> Iterator[ClientDriver]:
    with mqadmin.mqadmin() as driver:
        yield driver


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cluster]]:
    """Both at once: starts take time, and brokers count messages every ten seconds only."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    with ExitStack() as stack:
        with ThreadPoolExecutor() as threads:
            starts = {
                kind: threads.submit(_start, kind, folder, stack)
                for kind, folder in folders.items()
            }
        clusters = {}
        for kind, start in starts.items():
            server = start.result()
            clusters[kind] = cluster = Cluster(
                kind,
                server.namesrv_address,
                server.broker_address,
                server.broker_name,
                folders[kind],
            )
            _fill(cluster, stack)
        yield clusters


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, clusters: dict[str, Cluster]) -> Cluster:
    return clusters[request.param]


def _start(kind: str, folder: Path, stack: ExitStack) -> PyromqServer | ApacheRocketMQ:
    settings = {"aclEnable": "true"}
    if kind == "apache":
        java_or_skip()
        java = ApacheRocketMQ(
            broker_properties=settings,
            files={"conf/plain_acl.yml": ACCOUNTS},
            jvm_options=QUICK_JVM_OPTIONS,
        )
        stack.callback(java.kill)
        java.start()
        return java
    home = folder / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf/plain_acl.yml").write_text(ACCOUNTS)
    settings |= {"rocketmqHome": str(home), "aclMode": "compatible"}
    return stack.enter_context(PyromqServer(broker_properties=settings))


def _fill(cluster: Cluster, stack: ExitStack) -> None:
    """Create the topic, send messages, let a group consume them, and leave the clients at work."""
    keys = {"access_key": KEY, "secret_key": SECRET}
    created = cluster.ours(
        f"updateTopic -b {{broker}} -t {TOPIC} -r {len(COUNTS)} -w {len(COUNTS)}"
    )
    assert created.exit_code == 0, created.output
    producer = stack.enter_context(
        Producer.sync(cluster.namesrv, group="makers", **keys)  # type: ignore[arg-type]
    )
    wait_until(lambda: len(_queues(producer)) == len(COUNTS))
    for queue, count in zip(_queues(producer), COUNTS, strict=True):
        for number in range(count):
            producer.send(Message(TOPIC, f"{number}".encode() * 10), queue)
    received: list[ReceivedMessage] = []
    consumer = PushConsumer.sync(
        cluster.namesrv,
        group=GROUP,
        handler=received.append,
        subscriptions=[TOPIC],
        commit_interval=0.2,
        start_from=StartFrom.FIRST,
        **keys,  # type: ignore[arg-type]
    )
    stack.enter_context(consumer)
    wait_until(lambda: len(received) == sum(COUNTS))
    with Admin.sync(cluster.namesrv, **keys) as admin:  # type: ignore[arg-type]
        wait_until(lambda: _consumed(admin, cluster.broker) == sum(COUNTS))
    # In its first second Java's broker has no figures and fails.
    wait_until(lambda: cluster.ours("brokerStatus -b {broker}").exit_code == 0)


def _queues(producer: Any) -> list[Any]:
    try:
        return list(producer.queues(TOPIC))
    except Exception:
        return []  # the NameServer does not know the topic yet


def _consumed(admin: Any, broker: str) -> int:
    lags = admin.statistics.broker_lags(broker)
    return sum(
        each.consumer_offset
        for each in lags.queues
        if each.queue.topic == TOPIC and each.group == GROUP
    )


class Command(NamedTuple):
    """One command line of both tools, and how to compare what they print."""

    line: str
    #: "exact", "counts" (numbers with decimals are rates), or "words" (no numbers).
    compare: str = "exact"

    @property
    def name(self) -> str:
        return self.line.split()[0]


LOOKS = (
    Command("clusterList", "words"),
    Command("clusterList -m"),
    Command("topicList"),
    Command("topicList -c"),
    Command(f"topicRoute -t {TOPIC} -l"),
    Command(f"topicStatus -t {TOPIC}"),
    Command(f"topicClusterList -t {TOPIC}"),
    Command("brokerConsumeStats -b {broker}"),
    Command("brokerConsumeStats -b {broker} -l 1 -t 30000 -o false"),
    Command("producer -b {broker}"),
    Command("getBrokerConfig -b {broker}"),
    Command("getBrokerConfig -c DefaultCluster"),
    Command("getNamesrvConfig"),
    Command("getAclConfig -b {broker}"),
    Command("getAclConfig -c DefaultCluster"),
    Command("clusterAclConfigVersion -b {broker}"),
    Command("clusterAclConfigVersion -c DefaultCluster"),
)
#: Idempotent: the second tool changes nothing more.
CHANGES = (
    Command(f"updateTopic -b {{broker}} -t {TOPIC} -r 2 -w 2 -p 6 -u false -s false"),
    Command("updateTopic -c DefaultCluster -t Ordered -r 3 -w 3 -o true"),
    Command("updateTopic -b {broker} -t Ordered -r 3 -w 3 -o true"),
    Command("updateOrderConf -t Ordered -m get"),
    Command("updateOrderConf -t Ordered -v {name}:2 -m put"),
    Command("updateOrderConf -t Ordered -m delete"),
    Command("updateBrokerConfig -b {broker} -k fileReservedTime -v 49"),
    Command("updateBrokerConfig -c DefaultCluster -k fileReservedTime -v 50"),
    Command("updateKvConfig -s space -k name -v value"),
    Command("deleteKvConfig -s space -k name"),
    Command("updateNamesrvConfig -n {namesrv} -k clusterTest -v false"),
    Command("wipeWritePerm -b {name}", "words"),
    Command("addWritePerm -b {name}", "words"),
    Command("cleanExpiredCQ -b {broker}"),
    Command("cleanExpiredCQ -c DefaultCluster"),
    Command("cleanUnusedTopic -b {broker}"),
    Command("cleanUnusedTopic"),
    Command("deleteExpiredCommitLog -b {broker}"),
    Command(
        "updateAclConfig -b {broker} -a third_key -s third_secret -w 10.0.0.* -i DENY -u SUB "
        "-t A=PUB,B=SUB -g c=SUB -m false"
    ),
    Command("updateAclConfig -c DefaultCluster -a fourth_key -s fourth_secret -m true"),
    Command("sendMsgStatus -b {name} -s 16 -c 2", "words"),
    Command("clusterRT -a 2 -s 16 -c DefaultCluster -i 60", "words"),
)
#: Covered by tests of their own.
OTHERS = (
    "allocateMQ",
    "brokerStatus",
    "deleteAclConfig",
    "deleteTopic",
    "exportConfigs",
    "exportMetadata",
    "exportMetrics",
    "statsAll",
    "topicRoute",
    "updateGlobalWhiteAddr",
    "updateTopicPerm",
)


def _lines(text: str, compare: str) -> list[str]:
    # Java's tool forgets some line ends, and prints an object as its address.
    text = re.sub(r"(?<=\])(?=create topic |TopicConfig )", "\n", text)
    text = re.sub(
        r"(?m)^(org\.apache\.rocketmq\.common\.PlainAccessConfig@|Account\().*$", "", text
    )
    if compare == "counts":
        text = _DECIMALS.sub("RATE", text)
    return comparable(text, numbers=compare == "words")


def _same(cluster: Cluster, admin: ClientDriver, command: Command) -> None:
    # Endless ones end by themselves here, and are interrupted there.
    rounds = " --rounds 1" if command.name == "clusterRT" else ""
    ours = cluster.ours(command.line + rounds)
    java = cluster.java(admin, command.line)
    assert java.error == "" or not java.over, java
    assert ours.exit_code == 0, ours.output
    assert _lines(ours.output, command.compare) == _lines(java.out, command.compare)


@pytest.mark.parametrize("command", LOOKS, ids=lambda command: command.line)
def test_shows_what_mqadmin_shows(cluster: Cluster, admin: ClientDriver, command: Command) -> None:
    _same(cluster, admin, command)


def test_route(cluster: Cluster, admin: ClientDriver) -> None:
    line = f"topicRoute -t {TOPIC}"
    assert json.loads(cluster.ours(line).output) == parse_json(cluster.java(admin, line).out)


def test_allocation(cluster: Cluster, admin: ClientDriver) -> None:
    line = f"allocateMQ -t {TOPIC} -i 10.0.0.1,10.0.0.2,10.0.0.3"
    ours = json.loads(cluster.ours(line).output)["result"]
    java = parse_json(cluster.java(admin, line).out)["result"]
    # Java's tool takes the queues in the order of a hash table; consumers sort them, as ours.
    assert {client: len(queues) for client, queues in ours.items()} == {
        client: len(queues) for client, queues in java.items()
    }
    assert [each["queueId"] for queues in ours.values() for each in queues] == [0, 1]


def test_runtime_figures(cluster: Cluster, admin: ClientDriver) -> None:
    line = "brokerStatus -b {broker}"
    ours, java = cluster.ours(line), cluster.java(admin, line)

    assert fields(ours.output) == fields(java.out)
    figures = [_pairs(ours.output), _pairs(java.out)]
    assert {key: figures[0][key] for key in _STABLE} == {key: figures[1][key] for key in _STABLE}
    assert fields(cluster.ours("brokerStatus -c DefaultCluster").output) == fields(
        cluster.java(admin, "brokerStatus -c DefaultCluster").out
    )


def _pairs(text: str) -> dict[str, str]:
    return {
        key.strip(): value.strip()
        for key, _, value in (line.partition(": ") for line in text.splitlines())
    }


def test_exports(cluster: Cluster, admin: ClientDriver) -> None:
    files = {
        "exportMetadata -c DefaultCluster": "metadata.json",
        "exportMetadata -c DefaultCluster -s -t": "topic.json",
        "exportMetadata -c DefaultCluster -g": "subscriptionGroup.json",
        "exportMetadata -b {broker} -t": "topic.json",
        "exportMetadata -b {broker} -g": "subscriptionGroup.json",
        "exportConfigs -c DefaultCluster": "configs.json",
        "exportMetrics -c DefaultCluster": "metrics.json",
    }
    for line, name in files.items():
        ours = cluster.ours(f"{line} -f {{folder}}/ours")
        java = cluster.java(admin, f"{line} -f {{folder}}/java")
        assert comparable(ours.output) == comparable(java.out), line
        contents = [
            parse_json((cluster.folder / tool / name).read_text()) for tool in ("ours", "java")
        ]
        for content in contents:
            content.pop("exportTime", None)
            for report in content.get("evaluateReport", {}).values():
                report["runtimeQuota"].pop("tps")
            content.get("totalData", {}).pop("totalTps", None)
        assert contents[0] == contents[1], line


@pytest.mark.parametrize("command", CHANGES, ids=lambda command: command.line)
def test_changes_what_mqadmin_changes(
    cluster: Cluster, admin: ClientDriver, command: Command
) -> None:
    _same(cluster, admin, command)


def test_permissions_of_a_topic(cluster: Cluster, admin: ClientDriver) -> None:
    for tools in (("java", "ours"), ("ours", "java")):
        outputs = [
            (cluster.java(admin, line).out if tool == "java" else cluster.ours(line).output)
            for tool, line in zip(
                tools,
                (
                    f"updateTopicPerm -b {{broker}} -t {TOPIC} -p 4",
                    f"updateTopicPerm -c DefaultCluster -t {TOPIC} -p 6",
                ),
                strict=True,
            )
        ]
        assert comparable(outputs[0]) == [
            (
                f"TopicConfig [topicName={TOPIC}, readQueueNums=2, writeQueueNums=2, perm=R--, "
                "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]."
            ),
            "update topic perm from 6 to 4 in ADDRESS success.",
        ]
        assert comparable(outputs[1]) == ["update topic perm from 4 to 6 in ADDRESS success."]


def test_deletes_a_topic(cluster: Cluster, admin: ClientDriver) -> None:
    outputs = []
    for topic in ("Gone", "Lost"):
        assert cluster.ours(f"updateTopic -b {{broker}} -t {topic}").exit_code == 0
        line = f"deleteTopic -t {topic} -c DefaultCluster"
        if topic == "Gone":
            assert cluster.ours(f"{line} --dry-run").exit_code == 0
            assert topic in cluster.ours("topicList").output.split()
            outputs.append(cluster.ours(line).output.replace(topic, "TOPIC"))
        else:
            outputs.append(cluster.java(admin, line).out.replace(topic, "TOPIC"))
        assert topic not in cluster.java(admin, "topicList").out.split()
        assert topic not in cluster.ours("topicList").output.split()
    assert comparable(outputs[0]) == comparable(outputs[1])


def test_deletes_an_account(cluster: Cluster, admin: ClientDriver) -> None:
    outputs = []
    for key, tool in (("gone_key", "ours"), ("lost_key", "java")):
        line = f"deleteAclConfig -b {{broker}} -a {key}"
        cluster.java(admin, f"updateAclConfig -b {{broker}} -a {key} -s some_secret")
        wait_until(lambda key=key: key in cluster.ours("getAclConfig -b {broker}").output)  # type: ignore[misc]
        output = cluster.ours(line).output if tool == "ours" else cluster.java(admin, line).out
        outputs.append(output.replace(key, "KEY"))
        assert key not in cluster.java(admin, "getAclConfig -b {broker}").out
    assert comparable(outputs[0]) == comparable(outputs[1])


def test_global_white_list(cluster: Cluster, admin: ClientDriver) -> None:
    line = "updateGlobalWhiteAddr -b {broker} -g 10.10.103.*,10.10.104.1"
    ours = cluster.ours(line)
    assert ours.exit_code == 0, ours.output
    assert comparable(ours.output) == ["update global white remote addresses to ADDRESS success."]
    shown = cluster.java(admin, "getAclConfig -b {broker}").out
    assert "[10.10.103.*, 10.10.104.1]" in shown


def test_an_account_without_permission_is_refused(cluster: Cluster) -> None:
    words = ["admin", *cluster.words("updateBrokerConfig -b {broker} -k fileReservedTime -v 9")]
    for key, secret in (("", ""), ("other_key", "other_secret"), (KEY, "wrong_secret")):
        environment = {"ROCKETMQ_ACCESS_KEY": key, "ROCKETMQ_SECRET_KEY": secret}
        result = CliRunner(env=environment).invoke(main, words)
        assert result.exit_code == 5, result.output
        assert "administrator" in result.output


def test_what_mqadmin_cannot_show(cluster: Cluster) -> None:
    config = json.loads(cluster.ours(f"getTopicConfig -t {TOPIC} --json").output)
    assert config[cluster.broker]["read_queues"] == len(COUNTS)
    cluster.ours("updateKvConfig -s space -k one -v 1")
    assert json.loads(cluster.ours("getKvConfig -s space --json").output) == {"one": "1"}
    stats = cluster.ours(f"brokerStats -b {{broker}} -s TOPIC_PUT_NUMS -k {TOPIC} --json")
    assert json.loads(stats.output).keys() == {"minute", "hour", "day"}
    (state,) = json.loads(cluster.ours("haStatus --json").output)
    assert state["broker_id"] == 0
    assert state["log_end"] > 0
    assert json.loads(cluster.ours("raftStatus --json").output) == []


def test_statistics(cluster: Cluster, admin: ClientDriver) -> None:
    """Last: brokers need up to twenty seconds to count."""

    def counts() -> list[int]:
        (row,) = json.loads(cluster.ours(f"statsAll -t {TOPIC} --json").output)
        return [row["lag"], row["in_last_day"], row["out_last_day"]]

    wait_until(lambda: counts() == [0, sum(COUNTS), sum(COUNTS)])
    _same(cluster, admin, Command(f"statsAll -t {TOPIC}", "counts"))
    _same(cluster, admin, Command("statsAll", "counts"))
    _same(cluster, admin, Command("statsAll -a", "counts"))


def test_encrypted_connections() -> None:
    with OtherCluster("pyromq-tls") as other:
        tls = other.options["tls"]
        assert isinstance(tls, Tls)
        with Admin.sync(other.namesrv_address, tls=tls, timeout=DEADLINE) as admin:
            assert [each.broker_name for each in admin.cluster.brokers()] == ["broker-a"]
            assert admin.cluster.runtime(other.broker_address()).version
        words = ["admin", "clusterList", "-n", other.namesrv_address, "--timeout", str(DEADLINE)]
        options = {"--tls-ca": tls.ca, "--tls-cert": tls.cert, "--tls-key": tls.key}
        words += [word for pair in options.items() if pair[1] for word in map(str, pair)]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        assert "broker-a" in result.output
        # No authority of the system has signed the certificate.
        result = CliRunner().invoke(main, [*words[:6], "--tls"])
        assert result.exit_code == 4, result.output
        assert "certificate" in result.output


@pytest.mark.soak
def test_brokers_of_5_x(tmp_path: Path) -> None:
    """Everything but access control, which 5.3 has replaced."""
    with OtherCluster("apache-5.3.3") as other:
        other.create_topic(TOPIC, len(COUNTS))
        namesrv, broker = other.namesrv_address, other.broker_address()
        cluster = Cluster("apache-5.3.3", namesrv, broker, "broker-a", tmp_path)
        wait_until(lambda: cluster.ours("brokerStatus -b {broker}").exit_code == 0)
        lines = [
            *(command.line for command in (*LOOKS, *CHANGES) if "Acl" not in command.name),
            *(f"{name} -c DefaultCluster -f {{folder}}" for name in OTHERS if "export" in name),
            f"statsAll -t {TOPIC}",
            f"topicRoute -t {TOPIC}",
            f"allocateMQ -t {TOPIC} -i a,b",
            f"updateTopicPerm -b {{broker}} -t {TOPIC} -p 4",
            f"deleteTopic -t {TOPIC} -c DefaultCluster",
            "haStatus",
        ]
        for line in lines:
            rounds = " --rounds 1" if line.startswith("clusterRT") else ""
            result = cluster.ours(line + rounds)
            assert result.exit_code == 0, (line, result.output)
        assert cluster.ours("getAclConfig -b {broker}").exit_code == 1


def test_every_command_of_these_areas_is_tried() -> None:
    from tests.unit.cli.admin.mqadmin_commands import COMMANDS

    areas = {"acl", "broker", "cluster", "export", "namesrv", "producer", "stats", "topic"}
    expected = {command.name for command in COMMANDS if command.area in areas}
    assert {command.name for command in (*LOOKS, *CHANGES)} | set(OTHERS) == expected
