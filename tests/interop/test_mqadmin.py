"""Each command of mqadmin prints the same against pyromq as against the Java broker.

Two clusters get the same topics, groups, messages and live clients, and the same commands in
the same order; what they print is compared line by line (`mqadmin.comparable`). Left out are
the commands of access control, which pyromq does not have.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pyromq.base import unsupported_settings
from pyromq.protocol.message.message_id import encode_host, encode_message_id
from pyromq.protocol.names import retry_topic
from pyromq.protocol.wire.bodies import (
    ConsumerOffsetSerializeWrapper,
    GetConsumerListByGroupResponseBody,
)
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.header_codec import Header
from pyromq.protocol.wire.headers import (
    GetConsumerListByGroupRequestHeader,
)
from pyromq.remoting.client import RemotingClient
from tests.interop import mqadmin
from tests.interop.client_driver import ClientDriver
from tests.interop.client_programs import java_driver
from tests.interop.cluster import Cluster, Kind
from tests.interop.mqadmin import Outcome, comparable, fields
from tests.support.patience import DEADLINE

#: Two clusters and two Java clients for all the cases together.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

KINDS: tuple[Kind, ...] = ("apache", "pyromq")

TOPIC, GROUP, PRODUCERS = "Orders", "readers", "makers"
#: Settings whose values are those of the place, or in Java computed from others at its start.
SET_BY_PLACE = {
    "bitMapLengthConsumeQueueExt",
    "brokerIP1",
    "brokerIP2",
    "haListenPort",
    "listenPort",
    "namesrvAddr",
    "storePathRootDir",
}
#: Messages in each queue of the topic.
COUNTS = (6, 4)
_SECONDS = 30.0

#: Keys of the runtime info that RocketMQ does not have.
_OUR_RUNTIME_KEYS = (
    "brokerId",
    "brokerRole",
    "halfMessagesWithoutProducer",
    "replicaCount",
    "replicatedOffset",
)


class Command(NamedTuple):
    """One run of mqadmin. Words in braces are known when it runs."""

    words: str
    #: Whether its numbers (rates, times, sizes) say nothing.
    numbers: bool = False

    @property
    def name(self) -> str:
        return self.words.split()[0]


FIRST = (
    Command("updateTopic -b {broker} -t Orders -r 2 -w 2"),
    Command("updateTopic -c DefaultCluster -t Unused -r 1 -w 1 -p 6 -o false -u false -s false"),
    Command("updateSubGroup -b {broker} -g readers -s true -m false -d true -q 1 -r 5"),
    Command("updateSubGroup -c DefaultCluster -g others"),
)
#: With clients at work; nothing is changed.
LOOKS = (
    # First: what is active are the topics of the last minute.
    Command("statsAll -t Orders", numbers=True),
    Command("statsAll -a", numbers=True),
    Command("clusterList", numbers=True),
    Command("clusterList -m", numbers=True),
    Command("topicList"),
    Command("topicList -c"),
    Command("topicRoute -t Orders"),
    Command("topicRoute -t Orders -l"),
    Command("topicRoute -t Nowhere"),
    Command("topicStatus -t Orders"),
    Command("topicClusterList -t Orders"),
    Command("allocateMQ -t Orders -i 10.0.0.1,10.0.0.2"),
    Command("brokerConsumeStats -b {broker}"),
    Command("getConsumerConfig -g readers"),
    Command("consumerConnection -g readers"),
    Command("consumerConnection -g nobody"),
    Command("producerConnection -g makers -t Orders"),
    Command("producer -b {broker}"),
    Command("consumerProgress", numbers=True),
    Command("consumerProgress -g readers"),
    Command("consumerProgress -g readers -s true"),
    Command("consumerStatus -g readers -b {broker}"),
    Command("consumerStatus -g readers -i {client}", numbers=True),
    Command("queryMsgByKey -t Orders -k key-0-1"),
    Command("queryMsgByUniqueKey -t Orders -i {unique}"),
    Command("queryMsgByOffset -t Orders -b broker-a -i 0 -o 1"),
    Command("queryMsgById -i {id}"),
    Command("queryMsgTraceById -i {unique}", numbers=True),
    Command("queryCq -t Orders -q 0 -i 1 -c 3 -b {broker} -g readers"),
    Command("printMsg -t Orders"),
    Command("printMsgByQueue -t Orders -a broker-a -i 0 -p true -d true -f true"),
    Command("consumeMessage -t Orders -b broker-a -i 0 -o 1 -c 2"),
    Command("exportMetadata -c DefaultCluster -f {directory}"),
    Command("exportMetadata -b {broker} -t -f {directory}"),
    Command("exportConfigs -c DefaultCluster -f {directory}"),
    Command("exportMetrics -c DefaultCluster -f {directory}"),
)
CHANGES = (
    Command("queryMsgById -i {id} -g readers -d {client}", numbers=True),
    Command("queryMsgByUniqueKey -t Orders -i {unique} -g readers -d {client}", numbers=True),
    Command("updateBrokerConfig -b {broker} -k fileReservedTime -v 49"),
    Command("updateBrokerConfig -c DefaultCluster -k brokerPermission -v 6"),
    Command("updateTopicPerm -b {broker} -t Orders -p 4"),
    Command("topicRoute -t Orders"),
    Command("updateTopicPerm -c DefaultCluster -t Orders -p 6"),
    Command("updateOrderConf -t Orders -v broker-a:2 -m put"),
    Command("updateOrderConf -t Orders -m get"),
    Command("updateOrderConf -t Orders -m delete"),
    Command("updateKvConfig -s space -k name -v value"),
    Command("deleteKvConfig -s space -k name"),
    Command("wipeWritePerm -b broker-a"),
    Command("addWritePerm -b broker-a"),
    Command("updateNamesrvConfig -k clusterTest -v false"),
    Command("cleanExpiredCQ -b {broker}"),
    Command("cleanExpiredCQ -c DefaultCluster"),
    Command("deleteExpiredCommitLog -b {broker}"),
    Command("cleanUnusedTopic -b {broker}"),
    Command("sendMessage -t Orders -p body -k key -c tag -b broker-a -i 0"),
    Command("sendMsgStatus -b broker-a -s 16 -c 2", numbers=True),
    Command("checkMsgSendRT -t Orders -a 3 -s 16", numbers=True),
    Command("clusterRT -a 3 -s 16 -c DefaultCluster -i 1", numbers=True),
    Command("cloneGroupOffset -s readers -d others -t Orders -o true"),
    Command("skipAccumulatedMessage -g readers -t Orders"),
    Command("resetOffsetByTime -g readers -t Orders -s {begin}"),
    Command("deleteSubGroup -b {broker} -g others -r true"),
    Command("deleteTopic -t Unused -c DefaultCluster"),
    Command("topicList"),
    Command("startMonitoring", numbers=True),
)
COMMANDS = FIRST + LOOKS + CHANGES


class Run(NamedTuple):
    """What one cluster said, command by command, and the files that commands wrote."""

    outcomes: list[Outcome]
    config: dict[str, str]
    changed_config: dict[str, str]
    namesrv_config: dict[str, str]
    status: str
    files: Path


@pytest.fixture(scope="module")
def driver() -> Iterator[ClientDriver]:
    with java_driver() as driver:
        yield driver


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, driver: ClientDriver) -> dict[Kind, Run]:
    with mqadmin.mqadmin() as admin:
        return {kind: _run(kind, driver, admin, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def _run(kind: Kind, driver: ClientDriver, admin: ClientDriver, directory: Path) -> Run:
    with Cluster(kind) as cluster:
        namesrv, broker = cluster.namesrv_address, cluster.broker_address()
        known = {"broker": broker, "directory": str(directory)}
        known["begin"] = str(int(time.time() * 1000) - 3_600_000)

        def run(*commands: Command) -> list[Outcome]:
            return [
                mqadmin.run(
                    admin, namesrv, [word.format(**known) for word in command.words.split()]
                )
                for command in commands
            ]

        outcomes = run(*FIRST)
        ids = _put_clients_to_work(driver, kind, namesrv)
        known["client"] = asyncio.run(_wait_for_offsets(broker))
        known["unique"] = ids[1]
        config, namesrv_config, status, message = run(
            Command("getBrokerConfig -b {broker}"),
            Command("getNamesrvConfig"),
            Command("brokerStatus -b {broker}"),
            Command("queryMsgByUniqueKey -t Orders -i {unique}"),
        )
        host, _, port = broker.rpartition(":")
        offset = int(_find(r"CommitLog Offset:\s+(\d+)", message))
        known["id"] = encode_message_id(encode_host(host, int(port)), offset)
        outcomes += run(*LOOKS, *CHANGES)
        (changed,) = run(Command("getBrokerConfig -b {broker}"))
        driver.close_all()
        return Run(
            outcomes,
            _settings(config.out),
            _settings(changed.out),
            _settings(namesrv_config.out),
            status.out,
            directory,
        )


def _put_clients_to_work(driver: ClientDriver, kind: Kind, namesrv: str) -> list[str]:
    """One producer and one consumer; returns the ids of the messages, the topic's first ones."""
    driver.producer(f"{kind}-producer", namesrv, PRODUCERS, trace=True)
    messages = [
        {
            "body": f"{queue_id}-{number}",
            "tags": f"tag-{number % 2}",
            "keys": f"key-{queue_id}-{number}",
            "properties": {"shard": str(queue_id)},
        }
        for queue_id, count in enumerate(COUNTS)
        for number in range(count)
    ]
    sent = driver.send(f"{kind}-producer", TOPIC, messages, mode="ordered")
    driver.consumer(f"{kind}-consumer", namesrv, GROUP, TOPIC, trace=True)
    driver.wait_bodies(f"{kind}-consumer", [str(message["body"]) for message in messages])
    return [str(result["msgIds"][0]) for result in sent]


async def _wait_for_offsets(broker: str) -> str:
    """Wait until the consumer has committed, which takes up to five seconds; return its id."""
    client = RemotingClient()

    async def ask(code: RequestCode, header: Header) -> RemotingCommand:
        request = RemotingCommand(code, ext_fields=header.encode())
        return await client.request(broker, request, timeout=DEADLINE)

    async def committed() -> dict[str, dict[int, int]]:
        request = RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET)
        answer = await client.request(broker, request, timeout=DEADLINE)
        table = ConsumerOffsetSerializeWrapper.decode(answer.body).offset_table
        return {key: queues for key, queues in table.items() if key in expected}

    expected = {
        f"{TOPIC}@{GROUP}": dict(enumerate(COUNTS)),
        f"{retry_topic(GROUP)}@{GROUP}": {0: 0},
    }
    deadline = time.monotonic() + _SECONDS
    try:
        while await committed() != expected:
            assert time.monotonic() < deadline, "the consumer did not commit"
            await asyncio.sleep(0.1)
        members = await ask(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader(GROUP)
        )
        (found,) = GetConsumerListByGroupResponseBody.decode(members.body).consumer_id_list
        return found
    finally:
        await client.close()


def _find(pattern: str, outcome: Outcome) -> str:
    found = re.search(pattern, outcome.out)
    assert found, outcome
    return found[1]


def _settings(text: str) -> dict[str, str]:
    """The keys and values that getBrokerConfig and getNamesrvConfig print."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs if key}


@pytest.mark.parametrize(
    "number", range(len(COMMANDS)), ids=[command.words for command in COMMANDS]
)
def test_prints_what_it_prints_with_java(runs: dict[Kind, Run], number: int) -> None:
    command = COMMANDS[number]
    java, ours = (runs[kind].outcomes[number] for kind in KINDS)

    assert comparable(ours.error) == comparable(java.error), ours.error
    assert ours.over == java.over
    assert comparable(ours.out, numbers=command.numbers) == comparable(
        java.out, numbers=command.numbers
    )


def test_every_command_is_tried() -> None:
    tried = {command.name for command in COMMANDS}
    assert len(tried | {"getBrokerConfig", "getNamesrvConfig", "brokerStatus"}) == 52


def test_the_settings_are_java_s(runs: dict[Kind, Run]) -> None:
    java, ours = runs["apache"].config, runs["pyromq"].config

    unsupported = {**unsupported_settings.BROKER, **unsupported_settings.STORE}
    # Java's was started with a path for its log, and with a home; neither has a default. It also
    # prints an empty setting.
    missing = java.keys() - ours.keys() - unsupported.keys()
    assert missing == {"messageStorePlugIn", "rocketmqHome", "storePathCommitLog"}
    assert java["messageStorePlugIn"] == ""
    common = java.keys() & ours.keys() - SET_BY_PLACE
    assert {key: ours[key] for key in common} == {key: java[key] for key in common}
    assert runs["pyromq"].changed_config["fileReservedTime"] == "49"
    assert runs["apache"].changed_config["fileReservedTime"] == "49"


def test_the_nameserver_s_settings_are_java_s(runs: dict[Kind, Run]) -> None:
    java, ours = runs["apache"].namesrv_config, runs["pyromq"].namesrv_config

    # Java's was started with a home, which has no default.
    unsupported = unsupported_settings.NAMESERVER
    assert java.keys() - ours.keys() - unsupported.keys() == {"rocketmqHome"}


def test_the_status_has_java_s_fields(runs: dict[Kind, Run]) -> None:
    ours = fields(runs["pyromq"].status)
    for key in _OUR_RUNTIME_KEYS:
        ours.remove(key)
    assert ours == fields(runs["apache"].status)


def test_exported_files(runs: dict[Kind, Run]) -> None:
    java, ours = runs["apache"].files, runs["pyromq"].files

    names = {path.name for path in java.glob("*.json")}
    assert names
    assert {path.name for path in ours.glob("*.json")} == names
    for name in names:
        assert _shape(json.loads((ours / name).read_text())) == _shape(
            json.loads((java / name).read_text())
        ), name


def _shape(value: object) -> object:
    """A JSON value with its keys, but without numbers, which differ by nature."""
    if isinstance(value, dict):
        return {comparable(key)[0]: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return comparable(str(value), numbers=True)
