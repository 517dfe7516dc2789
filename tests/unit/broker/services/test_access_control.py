"""Access control of a running broker, over its socket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.acl.files import AclFileError
from pyromq.acl.settings import AclMode
from pyromq.broker.broker import Broker
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.wire.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    SubscriptionData,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, Encoding, RemotingCommand
from tests.support.access import (
    ADMIN,
    ALICE,
    BOB,
    PEER,
    Guarded,
    guarded_broker,
    write_accounts,
)
from tests.support.brokers import local_broker, small_store
from tests.support.patience import until
from tests.support.requests import pull_request, send_request

COMPATIBLE, STRICT = AclMode.compatible, AclMode.strict
BOTH = (COMPATIBLE, STRICT)
OK = ResponseCode.SUCCESS


def send(topic: str = "T", **options: object) -> RemotingCommand:
    # Of any time: the window of strict mode has its own test.
    return send_request(topic=topic, queueId="0", **options)  # type: ignore[arg-type]


@pytest.fixture(params=BOTH, ids=lambda mode: mode.name)
async def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_broker(tmp_path, request.param, acl_replay_window_millis=0) as running:
        yield running


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_broker(tmp_path, STRICT, acl_replay_window_millis=0) as running:
        yield running


def is_refused(answer: RemotingCommand, text: str = "AclException") -> bool:
    return answer.code == ResponseCode.SYSTEM_ERROR and text in (answer.remark or "")


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_sends_need_a_signature_and_a_permission(
    guarded: Guarded, code: RequestCode, encoding: Encoding
) -> None:
    for number in range(3):  # the first one creates the topic, the others may be plain
        request = send(code=code, encoding=encoding, body=b"%d" % number)
        assert (await guarded.ask(request)).code == OK
    assert is_refused(await guarded.ask(send(code=code, encoding=encoding), None), "No accessKey")
    assert is_refused(await guarded.ask(send(code=code, encoding=encoding), BOB), "topic:T")
    assert is_refused(await guarded.ask(send("Q", code=code, encoding=encoding)), "topic:Q")
    forged = send(code=code, encoding=encoding)
    forged.ext_fields |= {"AccessKey": ALICE, "Signature": "x"}
    assert is_refused(await guarded.ask(forged, None), "Check signature failed")
    assert (await guarded.ask(pull(0), ALICE)).code == OK
    # Nothing that was refused is stored.
    assert guarded.broker.store is not None
    assert guarded.broker.store.max_offset("T", 0) == 3


def pull(offset: int, topic: str = "T", group: str = "g") -> RemotingCommand:
    return pull_request(topic=topic, consumerGroup=group, queueOffset=str(offset))


async def test_pulls_need_topic_and_group(guarded: Guarded) -> None:
    for _ in range(2):
        await guarded.ask(send())
    for _ in range(3):
        assert (await guarded.ask(pull(0))).code == OK
        assert is_refused(await guarded.ask(pull(0), BOB), "AclException")
        assert is_refused(await guarded.ask(pull(0), None), "No accessKey")
    assert is_refused(await guarded.ask(pull(0, group="h")), "group:h")
    assert is_refused(await guarded.ask(pull(0, topic="P")), "topic:P")


async def test_a_mixed_chunk(guarded: Guarded) -> None:
    """Refused frames between good ones are not served, and the good ones are."""
    answers = await guarded_gather(guarded)
    assert [answer.code == OK for answer in answers] == [number % 3 == 0 for number in range(30)]
    assert guarded.broker.store is not None
    assert guarded.broker.store.max_offset("T", 0) == 10


async def guarded_gather(guarded: Guarded) -> list[RemotingCommand]:
    accounts = (ALICE, BOB, None)
    await guarded.ask(send())
    assert guarded.broker.store is not None
    answers = await asyncio.gather(
        *(guarded.ask(send(body=b"x" * 50), accounts[number % 3]) for number in range(1, 30))
    )
    return [RemotingCommand(OK), *answers]


async def test_a_refused_one_way_request_gets_no_answer(guarded: Guarded) -> None:
    request = send()
    request.flag |= FLAG_ONEWAY
    await guarded.client.send_oneway(guarded.broker.address, request)
    await until(lambda: guarded.audit)
    assert guarded.audit[0]["result"] == "denied"


async def test_admin_codes(guarded: Guarded) -> None:
    request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
    assert is_refused(await guarded.ask(request), "Need admin permission")
    request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
    assert (await guarded.ask(request, ADMIN)).code == OK
    denied, done = guarded.audit
    assert (denied["account"], denied["result"], denied["resource"]) == (ALICE, "denied", "T")
    assert (done["account"], done["result"], done["request"]) == (
        ADMIN,
        "done",
        "DELETE_TOPIC_IN_BROKER",
    )
    assert "secret" not in (guarded.home / "store/audit/audit.log").read_text()


async def test_a_failed_admin_request_is_logged(guarded: Guarded) -> None:
    await guarded.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=b"nonsense=1"), ADMIN)
    (line,) = guarded.audit
    assert (line["result"], line["code"]) == ("failed", 25)
    assert "unknown setting" in line["reason"]


async def test_access_control_cannot_be_turned_off_over_the_wire(guarded: Guarded) -> None:
    for change in (b"aclEnable=false", b"aclReplayWindowMillis=1", b"rocketmqHome=/tmp"):
        request = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=change)
        answer = await guarded.ask(request, ADMIN)
        assert "cannot be changed" in (answer.remark or ""), answer


async def test_rules_are_reloaded(guarded: Guarded) -> None:
    assert is_refused(await guarded.ask(send(), BOB))
    write_accounts(
        guarded.home,
        "accounts:\n- {accessKey: bobby_key, secretKey: bobby_secret, defaultTopicPerm: PUB}\n",
    )
    control = guarded.broker._access_control
    assert control is not None
    await control.rules.poll()
    assert (await guarded.ask(send(), BOB)).code == OK
    assert is_refused(await guarded.ask(send()), "No acl config for alice_key")


async def test_one_forbidden_topic_in_a_heartbeat(guarded: Guarded) -> None:
    member = ConsumerData(
        "g", subscription_data_set=[SubscriptionData("T"), SubscriptionData("secret")]
    )
    body = HeartbeatData("client", [], [member]).encode()
    answer = await guarded.ask(RemotingCommand(RequestCode.HEART_BEAT, body=body))
    group = guarded.broker.consumers.find("g")
    control = guarded.broker._access_control
    assert control is not None
    if control.is_strict:
        assert answer.code == OK
        assert group is not None
        assert set(group.subscriptions) == {"T"}
        assert guarded.audit[0]["reason"] == "left out: topic:secret"
    else:
        assert is_refused(answer, "topic:secret")
        assert group is None


async def test_a_large_heartbeat_is_checked_too(guarded: Guarded) -> None:
    topics = [SubscriptionData("T", sub_string="x" * 100_000)]
    body = HeartbeatData("client", [], [ConsumerData("g", subscription_data_set=topics)]).encode()
    assert is_refused(await guarded.ask(RemotingCommand(RequestCode.HEART_BEAT, body=body), BOB))
    answer = await guarded.ask(RemotingCommand(RequestCode.HEART_BEAT, body=body))
    assert answer.code == OK, answer


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (RequestCode.SEND_BATCH_MESSAGE, None, b""),
        (RequestCode.SEND_REPLY_MESSAGE_V2, None, b""),
        (
            RequestCode.QUERY_CONSUMER_OFFSET,
            {"topic": "Q", "consumerGroup": "h", "queueId": "0"},
            b"",
        ),
        (
            RequestCode.LOCK_BATCH_MQ,
            {},
            LockBatchRequestBody("h", "c", {MessageQueue("Q", "b", 0)}).encode(),
        ),
        (RequestCode.GET_MAX_OFFSET, {"topic": "Q", "queueId": "0"}, b""),
        (RequestCode.GET_BROKER_CONFIG, {}, b""),
        (RequestCode.GET_ALL_TOPIC_CONFIG, {}, b""),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "Q", "group": "h"}, b""),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "h", "clientId": "c"}, b""),
        (RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, {}, b""),
        (RequestCode.DELETE_ACL_CONFIG, {"accessKey": ADMIN}, b""),
    ],
)
async def test_what_rocketmq_leaves_open_is_closed_in_strict_mode(
    guarded: Guarded, code: RequestCode, fields: dict[str, str] | None, body: bytes
) -> None:
    if fields is None:
        request = send("Q", code=RequestCode.SEND_MESSAGE_V2)
        request = RemotingCommand(code, ext_fields=request.ext_fields, body=b"body")
    else:
        request = RemotingCommand(code, ext_fields=dict(fields), body=body)
    control = guarded.broker._access_control
    assert control is not None
    answer = await guarded.ask(request)
    assert is_refused(answer) is control.is_strict, answer


#: Fields and bodies that name resources which nobody of the accounts below may use.
FOREIGN = {
    "topic": "Q",
    "b": "Q",
    "a": "h",
    "group": "h",
    "consumerGroup": "h",
    "queueId": "0",
    "offset": "0",
    "commitLogOffset": "0",
}
FOREIGN_BODIES = {
    RequestCode.HEART_BEAT: HeartbeatData(
        "c", [], [ConsumerData("h", subscription_data_set=[SubscriptionData("Q")])]
    ).encode(),
    RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody("h", "c", {MessageQueue("Q", "b", 0)}).encode(),
    RequestCode.UNLOCK_BATCH_MQ: LockBatchRequestBody(
        "h", "c", {MessageQueue("Q", "b", 0)}
    ).encode(),
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientRequestBody(
        "c", "h", SubscriptionData("Q")
    ).encode(),
}
#: All that servers ask each other; none of it changes anything.
PEER_CODES = {
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_CONSUMER_FILTER,
    RequestCode.GET_ALL_TOPIC_DELETION,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_REPLICATION_STATUS,
}


@pytest.mark.parametrize(("account", "served"), [(BOB, set()), (PEER, PEER_CODES)])
async def test_every_code_is_closed_in_strict_mode(
    strict: Guarded, account: str, served: set[RequestCode]
) -> None:
    """A new code must be refused to an account that may do nothing, or be added here."""
    await strict.ask(send("P"), ADMIN)  # the message at offset 0
    assembly = strict.broker._assembly
    assert assembly is not None
    found = set()
    for route in assembly.routes:
        body = FOREIGN_BODIES.get(route.code, b"")
        answer = await strict.ask(
            RemotingCommand(route.code, ext_fields=dict(FOREIGN), body=body), account
        )
        if not is_refused(answer):
            found.add(route.code)
    assert found == served
    audited = {(line["account"], line["result"]) for line in strict.audit}
    assert (account, "done") not in audited  # what peers repeat all the time is not logged


async def test_look_ups_by_offset_check_the_message(strict: Guarded) -> None:
    answer = await strict.ask(send("P"))
    offset = str(decode_message_id(answer.ext_fields["msgId"])[2])
    view = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": offset})
    assert is_refused(await strict.ask(view), "topic:P")
    view.ext_fields = {"offset": offset}
    assert (await strict.ask(view, ADMIN)).code == OK
    answer = await strict.ask(send("T"))
    own = str(decode_message_id(answer.ext_fields["msgId"])[2])
    view.ext_fields = {"offset": own}
    assert (await strict.ask(view)).code == OK
    # A consumer must not copy messages of others into its retry topic.
    back = RemotingCommand(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        ext_fields={"offset": offset, "group": "g", "delayLevel": "0"},
    )
    assert is_refused(await strict.ask(back), "topic:P")


async def test_bytes_in_a_body_are_not_a_message(strict: Guarded) -> None:
    """A forged record in a body could claim any topic, and reach into later messages."""
    real = await strict.ask(send("T"))
    offset = decode_message_id(real.ext_fields["msgId"])[2]
    assert strict.broker.store is not None
    record = strict.broker.store.read_record(offset)
    assert record is not None
    forged = struct.pack(">I", len(record) + 200) + record[4:]
    outer = await strict.ask(send("T", body=forged + bytes(300)))
    start = decode_message_id(outer.ext_fields["msgId"])[2]
    whole = strict.broker.store.read_record(start)
    assert whole is not None
    inner = str(start + whole.index(forged))
    view = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": inner})
    answer = await strict.ask(view)
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert "can not find message" in (answer.remark or "")


async def test_ends_of_transactions_check_the_topic(strict: Guarded) -> None:
    half = send("P", properties="TRAN_MSG\x01true\x02PGROUP\x01producers", sysFlag="4")
    answer = await strict.ask(half)
    assert answer.code == OK, answer
    fields = {
        "producerGroup": "producers",
        "tranStateTableOffset": answer.ext_fields["queueOffset"],
        "commitLogOffset": str(decode_message_id(answer.ext_fields["msgId"])[2]),
        "commitOrRollback": "8",
        "msgId": answer.ext_fields["msgId"],
    }
    end = RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=dict(fields))
    assert is_refused(await strict.ask(end, BOB), "topic:P")
    end.ext_fields = dict(fields)
    assert (await strict.ask(end)).code == OK
    assert strict.broker.store is not None
    assert strict.broker.store.max_offset("P", 0) == 1


async def test_replays_are_refused_in_strict_mode(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path, STRICT) as running:
        assert is_refused(await running.ask(send()), "aclReplayWindowMillis")


async def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    write_accounts(tmp_path, "accounts: [")
    config = local_broker(acl_enable=True, rocketmq_home=str(tmp_path))
    broker = Broker(config, small_store(tmp_path / "store"))
    with pytest.raises(AclFileError, match=r"plain_acl\.yml:\d"):
        await broker.start()
    await broker.stop()
    assert not (tmp_path / "store").exists()


async def test_the_kernel_serves_what_was_allowed(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python decides about the first request of a kind; the kernel verifies those that follow."""
    control = guarded.broker._access_control
    assert control is not None
    if control._compiled is None:
        pytest.skip("no compiled kernel, or no OpenSSL library")
    for _ in range(2):
        assert (await guarded.ask(send())).code == OK
        assert (await guarded.ask(pull(0))).code == OK

    def check(*_: object) -> None:
        raise AssertionError("Python was asked")

    monkeypatch.setattr(control.validator, "check", check)
    assert (await guarded.ask(send())).code == OK
    assert (await guarded.ask(pull(0))).code == OK
    monkeypatch.undo()
    assert is_refused(await guarded.ask(send(), BOB))
    # New rules: nothing is known to be allowed.
    write_accounts(guarded.home, "accounts:\n- {accessKey: admin_key, secretKey: admin_secret}\n")
    await control.rules.poll()
    assert is_refused(await guarded.ask(send()), "No acl config")
