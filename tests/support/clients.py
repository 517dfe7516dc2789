"""Clients that have as much time as everything else that waits in a test."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from pyromq.admin.admin import Admin
from pyromq.client.options import Settings
from pyromq.client.producer.options import ProducerSettings
from pyromq.remoting.client import RemotingClient
from pyromq.tls.client import Tls
from tests.support.patience import DEADLINE


@contextlib.contextmanager
def patient_clients() -> Iterator[None]:
    """Let clients that were told no time-out wait for as long as conditions do.

    3 seconds, as applications have them, are over when a machine stalls twice.
    """
    with contextlib.ExitStack() as stack:
        for function, name in (
            (RemotingClient.__init__, "connect_timeout"),
            (RemotingClient.request, "timeout"),
            (Settings.__init__, "request_timeout"),
            (ProducerSettings.__init__, "send_timeout"),
            (Admin.__init__, "timeout"),
        ):
            stack.enter_context(_default(function, name, DEADLINE))
        yield


@contextlib.contextmanager
def encrypting_clients(tls: Tls | None) -> Iterator[None]:
    """Let clients that were told nothing else use TLS."""
    with _default(Settings.__init__, "tls", False if tls is None else tls):
        yield


@contextlib.contextmanager
def _default(function: Any, name: str, value: Any) -> Iterator[None]:
    """Another default of a parameter."""
    positional, by_name = function.__defaults__ or (), function.__kwdefaults__ or {}
    if name in by_name:
        function.__kwdefaults__ = by_name | {name: value}
    else:
        parameters = list(inspect.signature(function).parameters)
        last = [p for p in parameters if p not in by_name][-len(positional) :]
        at = last.index(name)
        function.__defaults__ = (*positional[:at], value, *positional[at + 1 :])
    try:
        yield
    finally:
        function.__defaults__, function.__kwdefaults__ = positional or None, by_name or None
