"""Ports of a broker and of NameServers, whether they answer, and the broker's registration.

Each server is asked with requests that change nothing. Called by `command`, on the main thread.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pyromq.base.sizes import MIB
from pyromq.cli.doctor.clocks import compare_clock
from pyromq.cli.doctor.finding import Finding, fail, ok, warn
from pyromq.protocol.java.fastjson import BodyError, parse_json
from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.address import AddressError, parse_address
from pyromq.remoting.blocking import BlockingConnection
from pyromq.remoting.errors import RemotingError
from pyromq.tls.client import ClientTls

_TIMEOUT_SECONDS: Final = 5.0
#: No server knows this request.
_UNKNOWN_REQUEST: Final = 99_999
#: Bytes of the log without queue entries.
_FAR_BEHIND: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class Access:
    """How to talk to servers."""

    tls: ClientTls | None = None
    sign: Callable[[RemotingCommand], None] | None = None
    timeout: float = _TIMEOUT_SECONDS


def examine_broker(address: str, access: Access, *, has_replica_port: bool) -> Iterator[Finding]:
    """Examine a running broker."""
    try:
        host, port = parse_address(address)
    except AddressError as error:
        yield fail("broker", str(error), "it cannot be reached", "give host:port")
        return
    asked = time.time()
    finding, body = _ask(
        "broker", address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), access
    )
    answered = time.time()
    yield finding
    if body is None:
        return
    try:
        table = KVTable.decode(body).table
    except BodyError as error:
        yield fail("broker", f"{address} answered nonsense: {error}", "", "")
        return
    yield compare_clock(address, table, asked, answered)
    yield _port(host, port - 2, access, "Java's clients with vipChannelEnabled use it")
    if has_replica_port:
        yield _port(host, port + 1, access, "replicas cannot follow")
    yield from _figures(address, table)


def examine_name_server(address: str, access: Access, broker_name: str | None) -> Iterator[Finding]:
    """Examine a running NameServer, and whether a broker is registered there."""
    finding, body = _ask(
        "NameServer", address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), access
    )
    yield finding
    if body is None or broker_name is None:
        return
    try:
        brokers = parse_json(body)["brokerAddrTable"]
    except (BodyError, KeyError, TypeError) as error:
        yield fail("registration", f"{address} answered nonsense: {error}", "", "")
        return
    if broker_name in brokers:
        addresses = brokers[broker_name].get("brokerAddrs", {})
        shown = ", ".join(f"{key}: {value}" for key, value in sorted(addresses.items()))
        yield ok("registration", f"{broker_name} is registered at {address} ({shown})")
    else:
        yield fail(
            "registration",
            f"{broker_name} is not registered at {address}",
            "clients that ask this NameServer do not find the broker",
            "check namesrvAddr of the broker, its log, and whether it reaches the NameServer",
        )


def probe(addresses: list[str], access: Access) -> Iterator[Finding]:
    """Ask each server for anything: whether it answers at all. For health checks."""
    for address in addresses:
        # Both kinds of servers answer an unknown request, without a look at accounts.
        yield _ask("answer", address, RemotingCommand(_UNKNOWN_REQUEST), access)[0]


def _ask(
    check: str, address: str, request: RemotingCommand, access: Access
) -> tuple[Finding, bytes | None]:
    begun = time.monotonic()
    try:
        with BlockingConnection(
            address, timeout=access.timeout, tls=access.tls, sign=access.sign
        ) as connection:
            reply = connection.request(request)
    except (RemotingError, AddressError) as error:
        return (
            fail(
                check,
                str(error),
                "clients cannot use it either",
                "check that it runs, its address, firewalls, and --tls if it serves TLS only",
            ),
            None,
        )
    seconds = time.monotonic() - begun
    code = reply.code
    if request.code == _UNKNOWN_REQUEST or code == ResponseCode.SUCCESS:
        return ok(check, f"{address} answers in {seconds * 1000:.1f} ms"), bytes(reply.body)
    return (
        warn(
            check,
            f"{address} refuses the request: {reply.remark or f'code {code}'}",
            "its state cannot be examined",
            "pass --access-key and --secret-key of an administrator",
        ),
        None,
    )


def _port(host: str, port: int, access: Access, why: str) -> Finding:
    try:
        with socket.create_connection((host, port), access.timeout):
            return ok("port", f"{host}:{port} accepts connections")
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return warn("port", f"{host}:{port}: {reason}", why, "check the broker's log and firewalls")


def _figures(address: str, table: dict[str, str]) -> Iterator[Finding]:
    behind = int(table.get("dispatchBehindBytes", "0"))
    if behind > _FAR_BEHIND:
        yield warn(
            "dispatch",
            f"{address}: queues are {behind:,} bytes behind the log",
            "consumers do not see the newest messages",
            "look at the load and the disk",
        )
