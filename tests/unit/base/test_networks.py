"""Lists of networks, and who is in them."""

from __future__ import annotations

import pytest

from pyromq.base.networks import is_allowed, parse_networks
from pyromq.base.settings import ConfigError

NETWORKS = parse_networks("key", " 10.0.0.7, 10.1.0.0/16,, 2001:db8::/32 ")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.7", True),
        ("10.0.0.8", False),
        ("10.1.255.1", True),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::1%eth0", True),
        ("2001:db9::1", False),
        ("not an address", False),
    ],
)
def test_who_is_in_a_list(host: str, expected: bool) -> None:
    assert is_allowed(host, NETWORKS) is expected


def test_an_empty_list_allows_all() -> None:
    assert parse_networks("key", None) == parse_networks("key", " ,") == ()
    assert is_allowed("anything", ())


@pytest.mark.parametrize("text", ["10.0.0.256", "host", "10.0.0.1;10.0.0.2", "10.0.0.0/33"])
def test_a_bad_list_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^key=.*is neither"):
        parse_networks("key", f"10.0.0.1,{text}")
