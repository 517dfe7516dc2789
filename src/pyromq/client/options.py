"""Options that every client takes: its identity, its security, and how it talks to servers.

    Producer("127.0.0.1:9876", group="shop", namespace="tenant-1", tls=True)

Constructors check every option and raise an OptionError that names a bad one.
"""

# The rule for options and settings, here and for each kind of client (`ProducerOptions`,
# `PushOptions`, ...):
#
# - `...Options` is a TypedDict: the keyword arguments a user gives. Every key may be missing, no
#   value is checked, and the comment above a key is its documentation.
# - `...Settings` is a frozen dataclass with the same fields: every value is present, as given or as
#   the default, and checked.
#
# Constructors turn options into settings before they do anything else. No other code sees options.

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypedDict, cast

from pyromq.client.arguments import check_seconds, check_text, refusal
from pyromq.client.errors import OptionError
from pyromq.client.hooks import AnyHook
from pyromq.client.message import check_topic, local_address
from pyromq.protocol.names import TRACE_TOPIC
from pyromq.remoting.address import AddressError, parse_addresses
from pyromq.tls.client import Tls

_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]*")


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of every client; `Settings` has the defaults. Times are in seconds."""

    #: Isolates a tenant: servers see topics and groups as `namespace%name`, the application sees
    #: `name`.
    namespace: str
    #: Sets the part of the client id after the address. By default it is unique for each client. A
    #: broadcasting consumer stores its offsets under this name: by default DEFAULT, then
    #: DEFAULT-2, DEFAULT-3, … for further consumers of the group on this machine. Name the
    #: consumers that must find their own offsets again after all of them restarted. A name that
    #: another consumer uses is refused.
    instance_name: str
    #: Sets the address in the client id. By default it is the machine's address.
    client_ip: str
    #: Adds a unit to the client id, for clusters that span several units.
    unit_name: str
    #: Signs requests with this key, for brokers with access control (HMAC-SHA1, as in RocketMQ
    #: 4.9). It needs `secret_key`.
    access_key: str
    #: The secret that belongs to `access_key`.
    secret_key: str
    #: Accompanies each signed request, for temporary credentials.
    security_token: str
    #: Encrypts connections. True verifies servers with the authorities of the system; `Tls` names
    #: other authorities and a client certificate. An SSLContext is used as it is.
    tls: bool | Tls | ssl.SSLContext
    #: True sends message traces to the topic RMQ_SYS_TRACE_TOPIC, a name sends them to that topic.
    trace: bool | str
    #: Objects called around every send and handler call, and at the end of transactions.
    hooks: Sequence[AnyHook]
    #: Limits requests other than sends and pulls.
    request_timeout: float
    #: Sets the time between heartbeats. Brokers drop clients after 120 s of silence.
    heartbeat_interval: float
    #: Sets the time between refreshes of the routes from the NameServers.
    route_interval: float


@dataclass(frozen=True, slots=True)
class Settings:
    """`ClientOptions`, checked, and the NameServers' addresses."""

    name_servers: tuple[str, ...]
    namespace: str = ""
    instance_name: str = ""
    client_ip: str = ""
    unit_name: str = ""
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tls: bool | Tls | ssl.SSLContext = False
    trace: bool | str = False
    hooks: Sequence[AnyHook] = ()
    request_timeout: float = 3.0
    heartbeat_interval: float = 30.0
    route_interval: float = 30.0

    @classmethod
    def of(
        cls, namesrv: str | Sequence[str], options: ClientOptions, possible: type = ClientOptions
    ) -> Settings:
        """Check the options of a client; raises OptionError.

        `possible` is the TypedDict of all its options, to name them if one is unknown.
        """
        if not isinstance(namesrv, str):
            if not isinstance(namesrv, Iterable):
                raise refusal("namesrv", namesrv, "expected host:port or a list of these")
            namesrv = list(namesrv)
            for address in namesrv:
                check_text("namesrv", address)
        text = namesrv if isinstance(namesrv, str) else ";".join(namesrv)
        try:
            addresses = tuple(parse_addresses(text))
        except AddressError as error:
            raise OptionError(
                f"namesrv={text!r}: expected host:port, separated by semicolons; {error}"
            ) from error
        known = {field.name for field in fields(cls)} - {"name_servers"}
        for name in options:
            if name not in known:
                names = sorted(possible.__annotations__)
                nearest = get_close_matches(name, names, 1)
                advice = f"did you mean {nearest[0]}? Options are" if nearest else "options are"
                raise OptionError(f"unknown option {name}: {advice} {', '.join(names)}")
        return cls(addresses, **options)

    def __post_init__(self) -> None:
        if not self.name_servers:
            raise OptionError("namesrv is empty: give at least one NameServer as host:port")
        for name in (
            "namespace",
            "instance_name",
            "client_ip",
            "unit_name",
            "access_key",
            "secret_key",
            "security_token",
        ):
            check_text(name, getattr(self, name))
        if not isinstance(self.tls, bool | Tls | ssl.SSLContext):
            raise refusal("tls", self.tls, "expected True, False, Tls or an ssl.SSLContext")
        if isinstance(self.trace, str):
            if self.trace:
                check_topic(self.trace)
        elif not isinstance(self.trace, bool):
            raise refusal("trace", self.trace, "expected True, False or a topic")
        if isinstance(self.hooks, str) or not isinstance(self.hooks, Sequence):
            raise refusal("hooks", self.hooks, "expected a list of hooks")
        if not _NAMESPACE.fullmatch(self.namespace):
            raise OptionError(
                f"namespace={self.namespace!r}: use only letters, digits, hyphens and underscores"
            )
        if bool(self.access_key) != bool(self.secret_key):
            raise OptionError("access_key and secret_key must be given together")
        if self.security_token and not self.access_key:
            raise OptionError("security_token needs access_key and secret_key")
        for name in ("request_timeout", "heartbeat_interval", "route_interval"):
            check_seconds(name, getattr(self, name))

    @property
    def trace_topic(self) -> str | None:
        """Return the topic of message traces, or None without traces."""
        if isinstance(self.trace, str):
            return self.trace or None
        return TRACE_TOPIC if self.trace else None

    def client_id(self, instance: str = "") -> str:
        """Return an id for a new client: `address@instance`, or `address@instance@unit`."""
        instance = instance or self.instance_name or f"{os.getpid()}#{time.time_ns()}"
        unit = f"@{self.unit_name}" if self.unit_name else ""
        return f"{self.client_ip or local_address()}@{instance}{unit}"


def own_options(
    settings_class: type, options: Mapping[str, Any]
) -> tuple[dict[str, Any], ClientOptions]:
    """Split options into those that `settings_class` has and those of every client."""
    own_names = {field.name for field in fields(settings_class)}
    own = {name: value for name, value in options.items() if name in own_names}
    common = {name: value for name, value in options.items() if name not in own_names}
    return own, cast(ClientOptions, common)
