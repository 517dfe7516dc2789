from __future__ import annotations

import pytest

from pyromq.acl import classification as access
from pyromq.acl.addresses import parse_expression
from pyromq.acl.rules import Account, Permission, Rules, group_resource
from pyromq.acl.validation import AccessDeniedError, Validator
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode

PUB, SUB, DENY = Permission.PUB, Permission.SUB, Permission.DENY
HOST = "10.0.0.7"
SECRETS = {
    "alice_key": "alice_secret",
    "admin_key": "admin_secret",
    "peers_key": "peers_secret",
    "white_key": "white_secret",
}
RULES = Rules(
    {
        each.access_key: each
        for each in (
            Account(
                "alice_key",
                "alice_secret",
                default_topic=PUB,
                default_group=SUB,
                resources={"closed": DENY, "both": PUB | SUB},
            ),
            Account("admin_key", "admin_secret", is_admin=True),
            Account("peers_key", "peers_secret", is_peer=True),
            Account("white_key", "white_secret", white=parse_expression("10.9.9.9")),
        )
    },
    (parse_expression("10.1.1.1"),),
)
TEXT = (
    "org.apache.rocketmq.acl.common.AclException: {}, "
    "org.apache.rocketmq.acl.plain.PlainPermissionManager.{}(PlainPermissionManager.java:{})"
)


def check(
    code: int,
    kind: access.Access,
    fields: dict[str, str],
    body: bytes = b"",
    *,
    key: str | None = "alice_key",
    host: str = HOST,
    strict: bool = False,
) -> Account | None:
    if key is not None:
        acl.sign(fields, body, key, SECRETS.get(key, "some_secret"))
    validator = Validator(RULES, strict=strict, replay_window=60_000, clock=lambda: 1_000_000)
    return validator.check(host, code, kind, fields, body)


def send(topic: str, key: str | None = "alice_key", **options: object) -> Account | None:
    return check(10, access.SEND, {"topic": topic, "group": "g"}, key=key, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("strict", [False, True])
def test_a_good_request_passes(strict: bool) -> None:
    account = send("any", strict=strict)
    assert account is not None
    assert account.access_key == "alice_key"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("topic", "key", "text"),
    [
        ("t", None, TEXT.format("No accessKey is configured", "validate", 663)),
        ("t", "eve_key", TEXT.format("No acl config for eve_key", "validate", 667)),
        (
            "closed",
            "alice_key",
            TEXT.format("No default permission for topic:closed", "checkPerm", 610),
        ),
    ],
)
def test_refusals_in_rocketmqs_words(topic: str, key: str | None, text: str, strict: bool) -> None:
    with pytest.raises(AccessDeniedError) as caught:
        send(topic, key, strict=strict)
    assert (caught.value.code, caught.value.remark) == (ResponseCode.SYSTEM_ERROR, text)
    assert caught.value.access_key == (None if key is None else key)


def test_a_missing_default_permission() -> None:
    with pytest.raises(AccessDeniedError) as caught:
        check(12, access.QUERY_TOPIC, {"topic": "t"})
    assert caught.value.remark == TEXT.format("No default permission for topic:t", "checkPerm", 605)


def test_a_bad_signature() -> None:
    fields = {"topic": "t", "AccessKey": "alice_key", "Signature": "x"}
    with pytest.raises(AccessDeniedError) as caught:
        Validator(RULES).check(HOST, 10, access.SEND, fields, b"")
    assert caught.value.remark == TEXT.format(
        "Check signature failed for accessKey=alice_key", "validate", 683
    )


def test_a_hostile_key_is_shortened_and_escaped() -> None:
    with pytest.raises(AccessDeniedError) as caught:
        send("t", "x\n" * 1000)
    assert "\n" not in caught.value.remark
    assert len(caught.value.remark) < 800


@pytest.mark.parametrize("strict", [False, True])
def test_white_lists_pass_without_a_signature(strict: bool) -> None:
    assert send("closed", None, host="10.1.1.1", strict=strict) is None
    fields = {"topic": "closed", "AccessKey": "white_key"}
    validator = Validator(RULES, strict=strict)
    assert validator.check("10.9.9.9", 10, access.SEND, fields, b"") is None
    with pytest.raises(AccessDeniedError, match="signature"):
        validator.check(HOST, 10, access.SEND, fields, b"")


@pytest.mark.parametrize("strict", [False, True])
def test_everybody_may_send_traces(strict: bool) -> None:
    assert send("RMQ_SYS_TRACE_TOPIC", "white_key", strict=strict) is not None


@pytest.mark.parametrize("strict", [False, True])
def test_admin_codes(strict: bool) -> None:
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert check(code, access.ADMIN, {}, key="admin_key", strict=strict) is not None
    with pytest.raises(AccessDeniedError) as caught:
        check(code, access.ADMIN, {}, strict=strict)
    reason = "Need admin permission for request code=17, but accessKey=alice_key is not"
    assert caught.value.remark == TEXT.format(reason, "checkPerm", 580)


def test_peers_in_strict_mode() -> None:
    code = RequestCode.GET_ALL_TOPIC_CONFIG
    for key in ("admin_key", "peers_key"):
        assert check(code, access.PEER, {}, key=key, strict=True) is not None
    with pytest.raises(AccessDeniedError, match="code=21, but accessKey=alice_key"):
        check(code, access.PEER, {}, strict=True)
    with pytest.raises(AccessDeniedError, match="accessKey=peers_key"):
        check(RequestCode.UPDATE_AND_CREATE_TOPIC, access.ADMIN, {}, key="peers_key", strict=True)
    with pytest.raises(AccessDeniedError, match="topic:t"):
        send("t", "peers_key", strict=True)


def test_a_peer_is_no_administrator_in_compatible_mode() -> None:
    with pytest.raises(AccessDeniedError, match="accessKey=peers_key"):
        check(RequestCode.UPDATE_AND_CREATE_TOPIC, access.PEER, {}, key="peers_key")


@pytest.mark.parametrize(
    ("code", "kind", "fields"),
    [
        (50, access.ADMIN, {}),
        (54, access.ADMIN, {}),
        (222, access.ADMIN, {}),
        (309, access.ADMIN, {}),
        (320, access.SEND_V2, {"b": "closed", "a": "g"}),
        (325, access.REPLY_V2, {"b": "closed", "a": "g"}),
        (14, access.CONSUMER_OFFSET, {"topic": "t", "consumerGroup": "g"}),
    ],
)
def test_holes_of_rocketmq_that_strict_mode_closes(
    code: int, kind: access.Access, fields: dict[str, str]
) -> None:
    assert check(code, kind, dict(fields)) is not None
    with pytest.raises(AccessDeniedError):
        check(code, kind, dict(fields), strict=True)


def test_a_retry_topic_belongs_to_its_group() -> None:
    fields = {"topic": "%RETRY%theirs", "group": "mine"}
    rules = Rules(
        {"alice_key": Account("alice_key", "alice_secret", resources={group_resource("mine"): SUB})}
    )
    acl.sign(fields, b"", "alice_key", "alice_secret")
    assert Validator(rules).check(HOST, 10, access.SEND, fields, b"") is not None
    with pytest.raises(AccessDeniedError, match="group:theirs"):
        Validator(rules, strict=True).check(HOST, 10, access.SEND, fields, b"")
    own = {"topic": "%RETRY%mine", "group": "theirs"}
    acl.sign(own, b"", "alice_key", "alice_secret")
    assert Validator(rules, strict=True).check(HOST, 10, access.SEND, own, b"") is not None


@pytest.mark.parametrize(
    ("born", "is_good"),
    [(1_000_000, True), (940_000, True), (939_999, False), (1_060_001, False)],
)
def test_old_and_early_sends_are_refused_in_strict_mode(born: int, is_good: bool) -> None:
    fields = {"topic": "t", "group": "g", "bornTimestamp": str(born)}
    assert check(10, access.SEND, dict(fields)) is not None
    if is_good:
        assert check(10, access.SEND, fields, strict=True) is not None
    else:
        with pytest.raises(AccessDeniedError, match="aclReplayWindowMillis"):
            check(10, access.SEND, fields, strict=True)


def test_a_heartbeat_is_refused_whole_or_trimmed() -> None:
    good = ConsumerData("g", subscription_data_set=[SubscriptionData("both")])
    mixed = ConsumerData(
        "g", subscription_data_set=[SubscriptionData("both"), SubscriptionData("closed")]
    )
    body = HeartbeatData("c", [], [mixed]).encode()
    with pytest.raises(AccessDeniedError, match="topic:closed"):
        check(34, access.HEARTBEAT, {}, body)
    account = check(34, access.HEARTBEAT, {}, body, strict=True)
    assert account is not None
    strict = Validator(RULES, strict=True)
    trimmed = strict.heartbeat(account, access.HEARTBEAT, body)
    assert trimmed is not None
    assert trimmed.body == HeartbeatData("c", [], [good]).encode()
    assert strict.heartbeat(account, access.PULL, body) is None
    assert Validator(RULES).heartbeat(account, access.HEARTBEAT, body) is None
    with pytest.raises(AccessDeniedError, match="group:g"):
        strict.heartbeat(Account("nobody_key", "nobody_secret"), access.HEARTBEAT, body)


def test_stored_messages() -> None:
    account = RULES.accounts["alice_key"]
    strict = Validator(RULES, strict=True)
    strict.check_stored(account, "both", SUB)
    strict.check_stored(account, "%RETRY%g", SUB)
    with pytest.raises(AccessDeniedError):
        strict.check_stored(account, "t", SUB)


def test_nobody_but_an_account_makes_the_server_parse_a_body() -> None:
    fields = {"AccessKey": "alice_key", "Signature": "x"}
    with pytest.raises(AccessDeniedError):
        Validator(RULES).check(HOST, 34, access.HEARTBEAT, fields, b"nonsense")
