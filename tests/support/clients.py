"""Clients that have as much time as everything else that waits in a test."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from pyromq.admin.admin import Admin
from pyromq.client.options import ClientOptions, Settings
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
def clients_with(options: ClientOptions) -> Iterator[None]:
    """Let clients that were told nothing else have these options, as TLS and keys."""
    with contextlib.ExitStack() as stack:
        for name, value in options.items():
            stack.enter_context(_default(Settings.__init__, name, value))
        yield


def spark_options(options: ClientOptions) -> dict[str, str]:
    """TLS and keys of clients, as options of Spark's source and sink."""
    from pyromq.spark.origins.settings import tls_options_of

    tls = options.get("tls", False)
    assert isinstance(tls, bool | Tls)
    found = tls_options_of(tls)
    for name, option in (("access_key", "accessKey"), ("secret_key", "secretKey")):
        if name in options:
            found[option] = options[name]  # type: ignore[literal-required]
    return found


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
