from __future__ import annotations

import hmac

import pytest

from pyromq.acl.addresses import parse_expression
from pyromq.acl.rules import (
    Account,
    Permission,
    Rules,
    allows,
    group_resource,
    parse_permission,
    shown_resource,
)

DENY, ANY, PUB, SUB = Permission.DENY, Permission.ANY, Permission.PUB, Permission.SUB


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("DENY", DENY),
        ("PUB", PUB),
        (" SUB ", SUB),
        ("PUB|SUB", PUB | SUB),
        ("SUB|PUB", PUB | SUB),
        ("PUB | SUB", None),
        ("ANY", None),
        ("pub", None),
        ("", None),
    ],
)
def test_permission_words(word: str, expected: Permission | None) -> None:
    assert parse_permission(word) == expected


@pytest.mark.parametrize(
    ("owned", "needed", "expected"),
    [
        (PUB, PUB, True),
        (PUB, SUB, False),
        (PUB | SUB, SUB, True),
        (DENY, PUB, False),
        (DENY | PUB, PUB, False),
        (PUB, ANY, True),
        (SUB, ANY, True),
        (DENY, ANY, False),
        (DENY | SUB, ANY, False),
    ],
)
def test_owned_and_needed(owned: Permission, needed: Permission, expected: bool) -> None:
    assert allows(owned, needed) is expected


def test_defaults_apply_to_resources_that_are_not_listed() -> None:
    account = Account(
        "alice_key",
        "alice_secret",
        default_topic=PUB,
        default_group=SUB,
        resources={"closed": DENY, group_resource("closed_group"): DENY, "open": PUB | SUB},
    )
    assert account.allows("other", PUB)
    assert not account.allows("other", SUB)
    assert account.allows("open", SUB)
    assert not account.allows("closed", PUB)
    assert account.allows(group_resource("g"), SUB)
    assert not account.allows(group_resource("closed_group"), SUB)


def test_an_administrator_is_unrestricted_only_without_permissions() -> None:
    free = Account("admin_key", "admin_secret", is_admin=True)
    bound = Account("admin_key", "admin_secret", is_admin=True, resources={"t": SUB})
    assert free.allows("anything", PUB)
    assert not bound.allows("anything", PUB)
    assert bound.allows("t", SUB)


def test_no_text_of_an_account_has_its_secret() -> None:
    account = Account("alice_key", "alice_secret")
    assert "alice_secret" not in f"{account} {account!r}"


@pytest.mark.parametrize("secret", ["short_key", "k" * 64, "k" * 65, "schlüssel"])
def test_the_prepared_hmac_is_an_hmac(secret: str) -> None:
    inner, outer = (each.copy() for each in Account("alice_key", secret).keyed)
    inner.update(b"content")
    outer.update(inner.digest())
    assert outer.digest() == hmac.digest(secret.encode(), b"content", "sha1")


def test_global_white_lists() -> None:
    rules = Rules(global_white=(parse_expression("10.0.0.1"), parse_expression("fe80::1:*")))
    assert rules.is_white("10.0.0.1")
    assert rules.is_white("[fe80::1:2]")
    assert not rules.is_white("10.0.0.2")
    assert not Rules().is_white("10.0.0.1")


def test_versions_tell_rules_apart() -> None:
    assert Rules().version != Rules().version


def test_resources_as_rocketmq_shows_them() -> None:
    assert shown_resource("t") == "topic:t"
    assert shown_resource(group_resource("g")) == "group:g"
