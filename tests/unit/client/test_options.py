from __future__ import annotations

import os
import ssl
from typing import Any

import pytest

from pyromq.client.errors import OptionError
from pyromq.client.options import Settings


def test_defaults() -> None:
    settings = Settings.of("a:1;b:2", {})
    assert settings.name_servers == ("a:1", "b:2")
    assert settings == Settings.of(["a:1", "b:2"], {})
    assert (settings.namespace, settings.trace_topic, settings.tls) == ("", None, False)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"colour": "blue"}, "unknown option colour"),
        ({"namespace": "a b"}, "namespace"),
        ({"access_key": "a"}, "together"),
        ({"secret_key": "a"}, "together"),
        ({"security_token": "a"}, "needs access_key"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"heartbeat_interval": -1}, "heartbeat_interval"),
        ({"route_interval": float("nan")}, "route_interval"),
    ],
)
def test_bad_options_are_refused_by_name(options: Any, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        Settings.of("a:1", options)


@pytest.mark.parametrize("namesrv", ["", ";", "nowhere", "a:b", "a:99999"])
def test_bad_addresses_are_refused(namesrv: str) -> None:
    with pytest.raises(OptionError, match="namesrv"):
        Settings.of(namesrv, {})


@pytest.mark.parametrize(
    ("trace", "topic"),
    [(False, None), (True, "RMQ_SYS_TRACE_TOPIC"), ("mine", "mine"), ("", None)],
)
def test_trace(trace: bool | str, topic: str | None) -> None:
    assert Settings.of("a:1", {"trace": trace}).trace_topic == topic


def test_client_ids() -> None:
    named = Settings.of("a:1", {"instance_name": "one", "client_ip": "10.0.0.1"})
    assert named.client_id() == named.client_id() == "10.0.0.1@one"
    assert Settings.of("a:1", {"unit_name": "u", "instance_name": "i"}).client_id().endswith("@i@u")
    other = Settings.of("a:1", {})
    assert other.client_id() != other.client_id()
    assert f"@{os.getpid()}#" in other.client_id()


def test_an_ssl_context_is_used_as_given() -> None:
    context = ssl.create_default_context()
    assert Settings.of("a:1", {"tls": context}).tls is context
