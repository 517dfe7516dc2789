"""Options as given by a user: every kind of value, and the text of every mistake."""

from __future__ import annotations

import pytest

from pyromq.spark.option_values import TLS_OPTIONS, GivenOptions, OptionError, unknown_name
from pyromq.tls.client import Tls

KNOWN = ("nameserver", "accessKey", "secretKey", "count", "delay", "size", "tls", "topics")


def given(**options: str) -> GivenOptions:
    return GivenOptions(options, KNOWN, ("path",))


def test_names_are_case_insensitive() -> None:
    options = given(TLS="true", Path="/ignored")
    assert list(options) == ["tls"]
    assert "tls" in options
    assert options.text("tls") == "true"
    assert options.text("count") is None


def test_values() -> None:
    options = given(
        count="7",
        delay="1500",
        size="64k",
        tls="TRUE",
        topics="a, b,a",
        nameserver="a:1; b:2",
        accessKey="me",
        secretKey="hush",
    )
    assert options.number("count") == 7
    assert options.seconds("delay", "ms", "30s") == 1.5
    assert options.seconds("delay", "s", "30s") == 1500.0
    assert options.size("size", "1m") == 65_536
    assert options.flag("tls", default=False)
    assert options.names("topics", "topics") == ("a", "b")
    assert options.addresses("nameserver") == ("a:1", "b:2")
    assert options.credentials() == ("me", "hush")


def test_defaults() -> None:
    options = given()
    assert options.number("count") is None
    assert options.seconds("delay", "s", "1s") is None
    assert options.size("size", "1m") is None
    assert options.flag("tls", default=True)
    assert options.addresses("nameserver") is None
    assert options.credentials() == ("", "")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"count": "0"}, "option count='0': expected a whole number, 1 or more"),
        ({"count": "1.5"}, "option count='1.5': expected a whole number, 1 or more"),
        ({"count": " "}, "option count is empty: give a value or leave it out"),
        ({"delay": "0s"}, "option delay='0s': expected a number above 0 with a unit"),
        ({"size": "3 weeks"}, "(b, k, m, g, t), for example 1m"),
        ({"tls": "1"}, "option tls='1': expected true or false"),
        ({"topics": "a,,b"}, "option topics='a,,b': expected topics"),
        ({"nameserver": "a"}, "option nameserver='a': "),
        ({"accessKey": "me"}, "options accessKey and secretKey must be given together"),
    ],
)
def test_mistakes(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_all(given(**options))
    assert problem in str(caught.value)


def read_all(options: GivenOptions) -> None:
    options.number("count")
    options.seconds("delay", "ms", "30s")
    options.size("size", "1m")
    options.flag("tls", default=False)
    options.names("topics", "topics")
    options.addresses("nameserver")
    options.credentials()


def test_options_together() -> None:
    options = given(count="1", size="1")
    options.exclude("count", "delay")
    options.need("count", "size", "delay")
    options.need("delay", "tls")
    with pytest.raises(OptionError, match="options count and size are mutually exclusive"):
        options.exclude("delay", "count", "size")
    with pytest.raises(OptionError, match="option count has no effect without delay or tls"):
        options.need("count", "delay", "tls")


def test_unknown_names() -> None:
    with pytest.raises(OptionError, match="unknown option 'counts': did you mean count"):
        given(counts="1")
    assert unknown_name("column", "zzz", ("a", "b")) == "unknown column 'zzz': choose from a, b"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"tls": "true"}, True),
        ({"tls": "true", "tlsCa": "ca.pem"}, Tls(ca="ca.pem")),
        ({"tls": "true", "tlsVerify": "false"}, Tls(verify=False)),
    ],
)
def test_tls(options: dict[str, str], expected: bool | Tls) -> None:
    assert GivenOptions(options, TLS_OPTIONS).tls() == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tlsCa": "ca.pem"}, "have no effect without tls=true"),
        ({"tls": "true", "tlsCert": "c"}, "options of tls: .* must be given together"),
        ({"tls": "true", "tlsVerify": "no"}, "option tlsVerify='no': expected true or false"),
    ],
)
def test_mistakes_with_tls(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        GivenOptions(options, TLS_OPTIONS).tls()
