from __future__ import annotations

import pytest

from pyromq.acl.addresses import BLANK, ExpressionError, parse_address, parse_expression


def matches(text: str, host: str, *, strict: bool = False) -> bool:
    return parse_expression(text, strict=strict).matches(parse_address(host))


@pytest.mark.parametrize(
    ("text", "host", "expected"),
    [
        ("", "1.2.3.4", False),
        ("  ", "1.2.3.4", False),
        ("*", "1.2.3.4", True),
        ("*.*.*.*", "fe80::1", True),
        ("*:*:*:*:*:*:*:*", "1.2.3.4", True),
        ("1.2.3.4", "1.2.3.4", True),
        ("1.2.3.4", "1.2.3.5", False),
        ("1.2.3.4", "::ffff:1.2.3.4", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("FE80::AB", "fe80::ab", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("1.1.1.1,1.1.1.2", "1.1.1.2", True),
        ("1.1.1.1,1.1.1.2", "1.1.1.3", False),
        ("192.168.0.{1,2}", "192.168.0.2", True),
        ("192.168.0.{1,2}", "192.168.0.3", False),
        ("fe80::{1,2}", "fe80::2", True),
        ("fe80::{1,2}", "fe80::3", False),
        ("192.168.0.*", "192.168.0.77", True),
        ("192.168.0.*", "192.168.1.77", False),
        ("192.168.*.*", "192.168.9.9", True),
        ("1.1.1.10-20", "1.1.1.10", True),
        ("1.1.1.10-20", "1.1.1.20", True),
        ("1.1.1.10-20", "1.1.1.21", False),
        ("1.1.1.10-20", "1.1.1.9", False),
        ("fe80::1:*", "fe80::1:abcd", True),
        ("fe80::1:*", "fe80::2:abcd", False),
        ("5::7:6:1-200:*", "5::7:6:200:9", True),
        ("5::7:6:1-200:*", "5::7:6:201:9", False),
        ("fe80::1-ff", "fe80::80", True),
        ("fe80::1-ff", "fe80::100", False),
        ("192.168.0.*", "fe80::1", False),
        ("192.168.0.*", "not an address", False),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_forms_of_an_expression(text: str, host: str, expected: bool, strict: bool) -> None:
    assert matches(text, host, strict=strict) is expected


def test_octets_after_the_first_range_do_not_count_unless_strict() -> None:
    assert matches("192.168.1-9.5", "192.168.3.77")
    assert not matches("192.168.1-9.5", "192.168.3.77", strict=True)
    assert matches("192.168.1-9.5", "192.168.3.5", strict=True)
    assert "do not count" in parse_expression("192.168.1-9.5").warning
    assert not parse_expression("192.168.1-9.*").warning


def test_a_short_ipv6_range_is_a_prefix_unless_strict() -> None:
    assert matches("1:2:3:*", "1:2:3:4:5:6:7:8")
    with pytest.raises(ExpressionError, match="eight groups"):
        parse_expression("1:2:3:*", strict=True)


def test_networks_need_strict_mode() -> None:
    assert matches("10.0.0.0/8", "10.200.3.4", strict=True)
    assert not matches("10.0.0.0/8", "11.0.0.1", strict=True)
    assert matches("fd00::/8", "fd12::1", strict=True)
    assert matches("1.1.1.1,10.0.0.0/8", "10.1.1.1", strict=True)
    with pytest.raises(ExpressionError, match="aclMode=strict"):
        parse_expression("10.0.0.0/8")
    with pytest.raises(ExpressionError, match="not a network"):
        parse_expression("10.1.0.0/8", strict=True)


@pytest.mark.parametrize("text", ["*.168.1.1", "1.1.1.0-0", "fe80::0-0"])
def test_expressions_that_rocketmq_cannot_match(text: str) -> None:
    with pytest.raises(ExpressionError, match="RocketMQ cannot match"):
        parse_expression(text)
    assert not parse_expression(text, strict=True).is_blank


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        "1.1.1",
        "1.1.1.256",
        "1.1.1.1, 1.1.1.2",
        "1.1.{1,2}.1",
        "1.1.1.{1,2",
        "1.1.{1}.{2}",
        "192.168.1{1,2}",
        "1.1.*",
        "1.1.1.5-",
        "1.1.1.-5",
        "1.1.1.9-5",
        "1.1.1.1-256",
        "1.1.1.1-2-3",
        "1.1.x.*",
        "fe80::*:1",
        "fe80:1-2::1",
        "fe80::1-10000",
        "fe80::g:*",
        "::1::*",
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_bad_expressions(text: str, strict: bool) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text, strict=strict)


def test_everybody_is_warned_about() -> None:
    assert "everybody" in parse_expression("*").warning
    assert BLANK.is_blank
    assert not parse_expression("*").is_blank
