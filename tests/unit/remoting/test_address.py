from __future__ import annotations

import pytest

from pyromq.remoting.address import AddressError, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" broker-a:10911 ", ("broker-a", 10911)),
        ("[::1]:10911", ("::1", 10911)),
        ("::1:10911", ("::1", 10911)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_parse_address(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "host", ":9876", "host:", "host:port", "host:0", "host:65536", "host:-1", "[]:1", "a b:1"],
)
def test_what_is_no_address_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)
    assert "127.0.0.1:9876" in str(caught.value)


def test_lists_take_both_separators_and_drop_repeated_addresses() -> None:
    assert parse_addresses("a:1; b:2,[::1]:3;;a:1") == ["a:1", "b:2", "[::1]:3"]


@pytest.mark.parametrize("text", ["", " ; ,", "a:1;b"])
def test_lists_without_an_address_or_with_a_bad_one_are_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_addresses(text)
