"""What every client can be told beside its own options: who it is, and how it connects.

    Producer("127.0.0.1:9876", group="shop", namespace="tenant-1", tls=True)

`ClientOptions` are the keyword arguments that producers and consumers share; `Settings`
are the same with all defaults, checked. A client reads them when it is made.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TypedDict

from pyromq.client.arguments import check_seconds, check_text, refusal
from pyromq.client.errors import OptionError
from pyromq.client.hooks import AnyHook
from pyromq.client.message import check_topic, local_address
from pyromq.protocol.names import TRACE_TOPIC
from pyromq.remoting.address import AddressError, parse_addresses

_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]*")


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of every client. Times are in seconds."""

    #: Name of a tenant: put before the names of topics and groups, taken off again.
    namespace: str
    #: The part of the client's id behind its address; by default another for each client. In
    #: broadcasting, offsets are kept under it: by default DEFAULT, and DEFAULT-2, DEFAULT-3, … for
    #: further consumers of the group on this machine. Name those that must get their own offsets
    #: again after all of them were restarted; a name that another consumer has is refused.
    instance_name: str
    #: The client's address in its id; by default that of the machine.
    client_ip: str
    #: Stands in the client's id and in requests, for clusters over several units.
    unit_name: str
    #: Who signs the requests, where brokers want that (HMAC-SHA1, as RocketMQ 4.9).
    access_key: str
    secret_key: str
    security_token: str
    #: True encrypts without checking the server's certificate; a context says it all.
    tls: bool | ssl.SSLContext
    #: Message trace: True for the topic RMQ_SYS_TRACE_TOPIC, or another topic's name.
    trace: bool | str
    #: Called around every send and every consumption, and at the end of transactions.
    hooks: Sequence[AnyHook]
    #: For questions to servers other than sends and pulls.
    request_timeout: float
    #: Between heartbeats, and between looks for new routes.
    heartbeat_interval: float
    route_interval: float


@dataclass(frozen=True, slots=True)
class Settings:
    """All of `ClientOptions`, checked, and the addresses of the NameServers."""

    name_servers: tuple[str, ...]
    namespace: str = ""
    instance_name: str = ""
    client_ip: str = ""
    unit_name: str = ""
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tls: bool | ssl.SSLContext = False
    trace: bool | str = False
    hooks: Sequence[AnyHook] = ()
    request_timeout: float = 3.0
    heartbeat_interval: float = 30.0
    route_interval: float = 30.0

    @classmethod
    def of(
        cls, namesrv: str | Sequence[str], options: ClientOptions, possible: type = ClientOptions
    ) -> Settings:
        """Check what a client was told; raises OptionError that names the option.

        `possible` is the TypedDict of all its options, for the answer to an unknown one.
        """
        if not isinstance(namesrv, str):
            if not isinstance(namesrv, Iterable):
                raise refusal("namesrv", namesrv, "host:port, or a list of them, is needed")
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
                raise OptionError(f"{name} is no option: {advice} {', '.join(names)}")
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
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise refusal("tls", self.tls, "True, False or an ssl.SSLContext is needed")
        if isinstance(self.trace, str):
            if self.trace:
                check_topic(self.trace)
        elif not isinstance(self.trace, bool):
            raise refusal("trace", self.trace, "True, False or a topic is needed")
        if isinstance(self.hooks, str) or not isinstance(self.hooks, Sequence):
            raise refusal("hooks", self.hooks, "a list of hooks is needed")
        if not _NAMESPACE.fullmatch(self.namespace):
            raise OptionError(
                f"namespace={self.namespace!r}: only letters, digits, - and _ are possible"
            )
        if bool(self.access_key) != bool(self.secret_key):
            raise OptionError("access_key and secret_key are only possible together")
        if self.security_token and not self.access_key:
            raise OptionError("security_token is only possible with access_key and secret_key")
        for name in ("request_timeout", "heartbeat_interval", "route_interval"):
            check_seconds(name, getattr(self, name))

    @property
    def trace_topic(self) -> str | None:
        """Where message traces go; None without."""
        if isinstance(self.trace, str):
            return self.trace or None
        return TRACE_TOPIC if self.trace else None

    def client_id(self, instance: str = "") -> str:
        """An id for a new client: `address@instance`, and the unit behind another `@`."""
        instance = instance or self.instance_name or f"{os.getpid()}#{time.time_ns()}"
        unit = f"@{self.unit_name}" if self.unit_name else ""
        return f"{self.client_ip or local_address()}@{instance}{unit}"
