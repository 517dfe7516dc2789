"""Access control: the same requests, signed by Java, against Apache's broker and ours.

One table of accounts, request codes and resources is sent by Java's own client and signer
(AclClientRPCHook). In compatible mode our verdicts, and the words of a refusal, are Java's. Strict
mode refuses what Java leaves open: each hole is a case that passes on Java and is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.interop.client_driver import ClientDriver, ClientError
from tests.interop.java_programs import (
    CLIENT,
    INTEROP_SOURCES,
    JVM_OPTIONS,
    compiled,
    javac_or_skip,
)
from tests.interop.mqadmin import comparable, mqadmin, run
from tests.interop.servers import PyromqServer
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.each import for_each
from tests.support.patience import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ACL = "org.apache.rocketmq:rocketmq-acl:4.9.7"

ACCOUNTS = """\
accounts:
- accessKey: admin_key
  secretKey: admin_secret
  admin: true
- accessKey: bound_admin
  secretKey: bound_secret
  admin: true
  topicPerms: [T=SUB]
- accessKey: pub_key
  secretKey: pub_secret
  defaultTopicPerm: PUB
- accessKey: sub_key
  secretKey: sub_secret
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
- accessKey: topics_key
  secretKey: 1234567890
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [T=PUB|SUB, P=PUB, D=DENY, "%RETRY%g=SUB"]
- accessKey: groups_key
  secretKey: groups_secret
  defaultTopicPerm: PUB|SUB
  groupPerms: [g=SUB, d=DENY, clients=SUB]
- accessKey: words_key
  secretKey: words_secret
  defaultTopicPerm: PUB | SUB
  topicPerms: [T=ANY, "P= PUB "]
- accessKey: nothing_key
  secretKey: nothing_secret
- accessKey: white_key
  secretKey: white_secret
  whiteRemoteAddress: 127.0.0.1
"""
SECRETS = {
    "admin_key": "admin_secret",
    "bound_admin": "bound_secret",
    "pub_key": "pub_secret",
    "sub_key": "sub_secret",
    "topics_key": "1234567890",
    "groups_key": "groups_secret",
    "words_key": "words_secret",
    "nothing_key": "nothing_secret",
    # Wrong, unknown and absent.
    "white_key": "wrong_secret",
    "unknown_key": "unknown_secret",
    "": "",
}
#: An account whose secret is not the one in the file.
FORGED = "nothing_key", "wrong_secret"


class Request(NamedTuple):
    code: int
    fields: dict[str, str]
    body: str | None = None
    #: Whether several resources may be missing: Java names any of them.
    is_vague: bool = False


def send(topic: str, group: str = "g") -> dict[str, str]:
    return {
        "producerGroup": group,
        "group": group,
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "",
    }


def send_v2(topic: str, group: str = "g", **more: str) -> dict[str, str]:
    values = (group, topic, "TBW102", "1", "0", "0", "1700000000000", "0", "")
    return dict(zip("abcdefghi", values, strict=True)) | more


def pull(topic: str, group: str) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def heartbeat(*consumers: tuple[str, list[str]]) -> str:
    groups = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
                for topic in topics
            ],
            "unitMode": False,
        }
        for group, topics in consumers
    ]
    data = {"clientID": "probe", "producerDataSet": [], "consumerDataSet": groups}
    return json.dumps(data)


LOCK = json.dumps(
    {
        "consumerGroup": "x",
        "clientId": "c",
        "mqSet": [{"topic": "X", "brokerName": "b", "queueId": 0}],
    }
)
QUEUE = {"topic": "X", "queueId": "0"}
OFFSET = {"consumerGroup": "g", "topic": "T", "queueId": "0"}

REQUESTS = [
    *(Request(10, send(topic), "m") for topic in ("T", "P", "D", "X", "RMQ_SYS_TRACE_TOPIC")),
    Request(10, send("%RETRY%x", "g"), "m"),
    Request(10, send("%RETRY%g", "x"), "m"),
    *(Request(310, send_v2(topic), "m") for topic in ("T", "P", "D", "X", "RMQ_SYS_TRACE_TOPIC")),
    Request(310, send_v2("%RETRY%x", "g"), "m"),
    Request(310, send_v2("%RETRY%g", "x"), "m"),
    Request(310, {"a": "g"}, "m"),
    Request(320, send_v2("X", m="true"), "m"),
    Request(324, send("X"), "m"),
    Request(325, send_v2("X"), "m"),
    Request(11, pull("T", "g"), is_vague=True),
    Request(11, pull("T", "x"), is_vague=True),
    Request(11, pull("X", "g"), is_vague=True),
    Request(11, pull("%RETRY%g", "g")),
    *(
        Request(
            12, {"topic": t, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
        )
        for t in ("T", "D", "X")
    ),
    Request(34, {}, heartbeat()),
    Request(34, {}, heartbeat(("g", ["T"])), is_vague=True),
    Request(34, {}, heartbeat(("g", ["T", "X"])), is_vague=True),
    Request(34, {}, heartbeat(("g", ["T"]), ("x", [])), is_vague=True),
    Request(35, {"clientID": "probe", "consumerGroup": "g"}),
    Request(35, {"clientID": "probe", "consumerGroup": "d"}),
    Request(35, {"clientID": "probe", "producerGroup": "d"}),
    Request(38, {"consumerGroup": "g"}),
    Request(38, {"consumerGroup": "x"}),
    Request(36, {"offset": "0", "group": "g", "delayLevel": "0"}),
    Request(36, {"offset": "0", "group": "x", "delayLevel": "0"}),
    Request(15, {**OFFSET, "commitOffset": "0"}, is_vague=True),
    Request(15, {**OFFSET, "topic": "X", "commitOffset": "0"}, is_vague=True),
    # The five codes of administrators.
    Request(
        17,
        {
            "topic": "made",
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        },
    ),
    Request(25, {}, "fileReservedTime=49"),
    Request(200, {}, json.dumps({"groupName": "made"})),
    Request(207, {"groupName": "unmade"}),
    Request(215, {"topic": "unmade"}),
    # What a known key may do, whatever its permissions.
    Request(14, {**OFFSET, "topic": "X"}),
    *(Request(code, dict(QUEUE)) for code in (30, 31, 32)),
    Request(29, {**QUEUE, "timestamp": "0"}),
    Request(33, {"offset": "0"}),
    Request(
        37,
        {
            "producerGroup": "x",
            "tranStateTableOffset": "0",
            "commitLogOffset": "0",
            "commitOrRollback": "12",
            "msgId": "0",
        },
    ),
    Request(41, {}, LOCK),
    Request(42, {}, LOCK),
    *(Request(code, {}) for code in (21, 26, 28, 43, 45, 201, 305, 52)),
    Request(202, {"topic": "X"}),
    Request(203, {"consumerGroup": "x"}),
    Request(208, {"consumerGroup": "x"}),
    Request(300, {"topic": "X"}),
    Request(222, {"topic": "X", "group": "x", "timestamp": "0", "isForce": "true"}),
    Request(309, {"consumerGroup": "x", "clientId": "c", "msgId": "0" * 32, "brokerName": "b"}),
    Request(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "X"}),
]

#: Requests that Java lets pass with any good signature, and strict mode does not.
HOLES = {14, 21, 25, 26, 28, 29, 30, 31, 32, 41, 42, 43, 45, 52, 201, 202, 203, 208, 222, 300} | {
    305,
    309,
    315,
    320,
    324,
    325,
}


class Verdict(NamedTuple):
    is_refused: bool
    text: str


@pytest.fixture(scope="module")
def probe() -> Iterator[ClientDriver]:
    java_or_skip()
    javac_or_skip()
    path = compiled(INTEROP_SOURCES / "acl", CLIENT, ACL)
    with ClientDriver(
        ["nice", "-n", "10", "java", *JVM_OPTIONS, "-cp", path, "AclProbe"]
    ) as driver:
        yield driver


@pytest.fixture(scope="module")
def admin() -> Iterator[ClientDriver]:
    with mqadmin() as driver:
        yield driver


@pytest.fixture(scope="module")
def java() -> Iterator[ApacheRocketMQ]:
    java_or_skip()
    server = ApacheRocketMQ(
        broker_properties={"aclEnable": "true"},
        files={"conf/plain_acl.yml": ACCOUNTS},
        jvm_options=QUICK_JVM_OPTIONS,
    )
    server.start()
    try:
        yield server
    finally:
        server.kill()


def ours(home: Path, mode: str) -> PyromqServer:
    file = home / "conf/plain_acl.yml"
    file.parent.mkdir(parents=True)
    file.write_text(ACCOUNTS if mode == "compatible" else STRICT_ACCOUNTS)
    return PyromqServer(
        broker_properties={
            "aclEnable": "true",
            "aclMode": mode,
            "rocketmqHome": str(home),
            "aclReplayWindowMillis": "0",
            "replicationAccessKey": "admin_key",
            "replicationSecretKey": "admin_secret",
        }
    )


#: Strict mode refuses files with words that are not permissions.
STRICT_ACCOUNTS = ACCOUNTS.replace("PUB | SUB", "PUB|SUB").replace("T=ANY", "T=PUB")


@pytest.fixture(scope="module")
def compatible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PyromqServer, Path]]:
    home = tmp_path_factory.mktemp("compatible")
    with ours(home, "compatible") as server:
        yield server, home


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PyromqServer]:
    with ours(tmp_path_factory.mktemp("strict"), "strict") as server:
        yield server


def ask(
    probe: ClientDriver, address: str, request: Request, key: str, secret: str = ""
) -> dict[str, Any]:
    credentials: dict[str, Any] = (
        {"accessKey": key, "secretKey": secret or SECRETS[key]} if key else {}
    )
    answer: dict[str, Any] = probe.call(
        "request",
        address=address,
        code=request.code,
        fields=request.fields,
        body=request.body,
        **credentials,
    )
    return answer


def verdict(
    probe: ClientDriver, address: str, request: Request, key: str, secret: str = ""
) -> Verdict:
    answer = ask(probe, address, request, key, secret)
    text = answer["remark"] or ""
    is_refused = answer["code"] == 1 and "AclException" in text
    if not is_refused:
        text = ""
    elif request.is_vague and "No default permission" in text:
        text = "No default permission"
    return Verdict(is_refused, text)


ADMIN_CODES = {17, 25, 200, 207, 215}
CASES = [
    *((key, "", request) for request in REQUESTS for key in SECRETS),
    *((*FORGED, request) for request in REQUESTS),
]


@for_each("case", CASES)
def test_compatible_verdicts_are_javas(
    probe: ClientDriver,
    java: ApacheRocketMQ,
    compatible: tuple[PyromqServer, Path],
    case: tuple[str, str, Request],
) -> None:
    key, secret, request = case
    theirs = verdict(probe, java.broker_address, request, key, secret)
    assert verdict(probe, compatible[0].broker_address, request, key, secret) == theirs


def test_both_verdicts_occur(probe: ClientDriver, compatible: tuple[PyromqServer, Path]) -> None:
    """Each code that has permissions is refused to one account and allowed to another."""
    server, _ = compatible
    for code in (10, 310, 11, 12, 34, 35, 38, 36, 15, *ADMIN_CODES):
        found = {
            verdict(probe, server.broker_address, request, key).is_refused
            for request in REQUESTS
            if request.code == code
            for key in ("admin_key", "nothing_key")
        }
        assert found == {True, False}, code


@pytest.mark.parametrize("code", sorted(HOLES))
def test_strict_mode_closes_what_java_leaves_open(
    probe: ClientDriver, java: ApacheRocketMQ, strict: PyromqServer, code: int
) -> None:
    (request,) = (each for each in REQUESTS if each.code == code)
    key = "nothing_key"
    if code == 25:  # Java's administrator with permissions may do this; so may ours
        assert verdict(probe, strict.broker_address, request, key).is_refused
        return
    assert not verdict(probe, java.broker_address, request, key).is_refused
    assert verdict(probe, strict.broker_address, request, key).is_refused
    # An administrator may.
    assert not verdict(probe, strict.broker_address, request, "admin_key").is_refused


def test_a_retry_topic_of_another_group(
    probe: ClientDriver, java: ApacheRocketMQ, strict: PyromqServer
) -> None:
    request = Request(310, send_v2("%RETRY%x", "g"), "m")
    assert not verdict(probe, java.broker_address, request, "groups_key").is_refused
    assert verdict(probe, strict.broker_address, request, "groups_key").is_refused
    own = Request(310, send_v2("%RETRY%g", "x"), "m")
    assert not verdict(probe, strict.broker_address, own, "groups_key").is_refused


def test_secrets_are_not_readable_in_strict_mode(
    probe: ClientDriver, java: ApacheRocketMQ, strict: PyromqServer
) -> None:
    request = Request(54, {})
    assert "admin_secret" in ask(probe, java.broker_address, request, "nothing_key")["body"]
    assert verdict(probe, strict.broker_address, request, "nothing_key").is_refused
    answer = ask(probe, strict.broker_address, request, "admin_key")
    assert answer["code"] == 0
    assert "secret" not in answer["body"].replace("secretKey", "")


def test_one_forbidden_topic_does_not_cut_off_the_group(
    probe: ClientDriver, java: ApacheRocketMQ, strict: PyromqServer
) -> None:
    request = Request(34, {}, heartbeat(("g", ["T", "X"])))
    assert verdict(probe, java.broker_address, request, "topics_key").is_refused
    assert not verdict(probe, strict.broker_address, request, "topics_key").is_refused


def test_javas_clients(
    probe: ClientDriver,
    java: ApacheRocketMQ,
    compatible: tuple[PyromqServer, Path],
    strict: PyromqServer,
) -> None:
    allowed: dict[str, Any] = {"accessKey": "groups_key", "secretKey": "groups_secret"}
    forbidden: dict[str, Any] = {"accessKey": "nothing_key", "secretKey": "nothing_secret"}
    for server in (java, compatible[0], strict):
        place: dict[str, Any] = {"namesrv": server.namesrv_address, "topic": "clients"}
        assert probe.call("produce", body="m", **place, **allowed) == "SEND_OK"
        with pytest.raises(ClientError, match="topic:clients"):
            probe.call("produce", body="m", **place, **forbidden)
        with pytest.raises(ClientError, match="No accessKey is configured"):
            probe.call("produce", body="m", **place)
        assert probe.call("consume", group="clients", seconds=60, **place, **allowed)
        assert not probe.call("consume", group="clients", seconds=2, **place, **forbidden)


def test_mqadmin_changes_the_files(
    admin: ClientDriver, java: ApacheRocketMQ, compatible: tuple[PyromqServer, Path]
) -> None:
    server, home = compatible
    credentials = {"accessKey": "admin_key", "secretKey": "admin_secret"}
    results: dict[str, Any] = {}
    for name, each, file in (
        ("java", java, java.home / "conf/plain_acl.yml"),
        ("ours", server, home / "conf/plain_acl.yml"),
    ):
        broker = ["-b", each.broker_address]

        def change(*words: str, each: Any = each, broker: list[str] = broker) -> str:
            outcome = run(
                admin, each.namesrv_address, [words[0], *broker, *words[1:]], **credentials
            )
            return outcome.error.replace("\n", " ") + outcome.out.replace(each.broker_address, "B")

        seen = [
            change(
                "updateAclConfig", "-a", "carol_key", "-s", "carol_secret", "-i", "DENY",
                "-u", "SUB", "-t", "T=PUB|SUB,P=PUB", "-g", "g=SUB", "-m", "false",
                "-w", "10.0.0.1",
            ),
            change("updateAclConfig", "-a", "carol_key", "-s", "carol_secret2", "-t", "Q=SUB"),
            change("updateAclConfig", "-a", "dave_key", "-s", "dave_secret", "-m", "true"),
            change("deleteAclConfig", "-a", "words_key"),
            change("updateGlobalWhiteAddr", "-g", "10.9.9.9,10.8.8.*", "-p", str(file)),
        ]  # fmt: skip
        data = yaml.safe_load(file.read_text())
        (version,) = data.pop("dataVersion")
        assert version["counter"] == 5
        results[name] = [comparable(text) for text in seen], data
        # Both read what they wrote.
        listed = change("clusterAclConfigVersion")
        assert "DefaultCluster" in listed, listed
        assert str(file) in listed, listed
        wait_until(partial(_lists, change, "carol_secret2"))
        missing = change("deleteAclConfig", "-a", "missing_key")
        assert "CODE: 210" in missing, missing
        assert "accessConfig has been deleted failed." in missing
    assert results["ours"] == results["java"]


def _lists(change: Callable[..., str], text: str) -> bool:
    return text in change("getAclConfig")
