from __future__ import annotations

import pytest

from pyromq.acl import signature
from pyromq.acl.rules import Account
from pyromq.acl.signature import is_signed_by
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.acl import UNIQUE_KEY_QUERY

ALICE = Account("alice_key", "alice_secret")


def signed(body: bytes = b"", secret: str = "alice_secret", **fields: str) -> dict[str, str]:
    acl.sign(fields, body, "alice_key", secret)
    return fields


def test_the_vector_of_rocketmq() -> None:
    fields = {"topic": "t1", "group": "g", "AccessKey": "alice_key"}
    good = {**fields, "Signature": "sCXSMvp1C2bsCNqlM1Xtbdcdosk="}
    assert is_signed_by(ALICE, good, b"hello")
    assert not is_signed_by(ALICE, good, b"hello!")


def test_every_field_is_signed() -> None:
    fields = signed(b"body", topic="t", group="g", OnsChannel="ALIYUN", ReqT="0", SecurityToken="s")
    assert is_signed_by(ALICE, fields, b"body")
    for name in set(fields) - {"Signature"}:
        assert not is_signed_by(ALICE, {**fields, name: fields[name] + "x"}, b"body"), name
    assert not is_signed_by(ALICE, {**fields, "more": "x"}, b"body")
    assert not is_signed_by(ALICE, fields, b"other")


def test_another_secret() -> None:
    assert not is_signed_by(ALICE, signed(b"", "bob_secret", topic="t"), b"")


@pytest.mark.parametrize("given", ["", "x", "é", "\ud800", "sCXSMvp1C2bsCNqlM1Xtbdcdosk"])
def test_a_bad_signature(given: str) -> None:
    fields = {"topic": "t1", "group": "g", "AccessKey": "alice_key", "Signature": given}
    assert not is_signed_by(ALICE, fields, b"hello")


def test_a_missing_signature() -> None:
    assert not is_signed_by(ALICE, {"AccessKey": "alice_key"}, b"")


def test_a_lone_surrogate_is_refused_and_not_an_error() -> None:
    fields = {"topic": "\ud800", "AccessKey": "alice_key", "Signature": "x"}
    assert not is_signed_by(ALICE, fields, b"")


def test_both_ways_of_signing_a_query() -> None:
    with_mark = signed(topic="t", key="k", _UNIQUE_KEY_QUERY="true")
    without_mark = {**signed(topic="t", key="k"), UNIQUE_KEY_QUERY: "true"}
    assert is_signed_by(ALICE, with_mark, b"")
    assert is_signed_by(ALICE, without_mark, b"")
    assert not is_signed_by(ALICE, {**without_mark, "key": "other"}, b"")


def test_the_cache_of_orders_is_bounded() -> None:
    signature._orders.clear()
    for number in range(3000):
        is_signed_by(ALICE, {f"field{number}": "", "Signature": ""}, b"")
    is_signed_by(ALICE, {"x" * 5000: "", "Signature": ""}, b"")
    assert len(signature._orders) <= 1024
    assert sum(len(name) for names in signature._orders for name in names) < 100_000
