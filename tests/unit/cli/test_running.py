from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path

import click
import pytest

from pyromq.cli.running import Servers, read_properties, run_client, run_servers
from pyromq.client.errors import ClientError, NameServerError


class FakeServer:
    def __init__(self, events: list[str], name: str, failure: Exception | None = None) -> None:
        self.events, self.name, self.failure = events, name, failure

    async def start(self) -> None:
        self.events.append(f"start {self.name}")
        if self.failure:
            raise self.failure

    async def stop(self) -> None:
        self.events.append(f"stop {self.name}")


def serve(events: list[str], failure: Exception | None = None) -> None:
    async def start(servers: Servers) -> None:
        await servers.start("first", FakeServer(events, "first"), "use --first-port", ())
        second = FakeServer(events, "second", failure)
        await servers.start("second", second, "use --second-port", (LookupError,))
        os.kill(os.getpid(), signal.SIGTERM)

    run_servers(start)


def test_servers_stop_in_reverse_order_at_a_signal() -> None:
    events: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    serve(events)
    assert events == ["start first", "start second", "stop second", "stop first"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            OSError(errno.EADDRINUSE, "taken"),
            "second cannot start: taken; stop the program that has it, or use --second-port",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/data"),
            "second cannot start: /data: Permission denied",
        ),
        (OSError("strange"), "second cannot start: strange"),
        (LookupError("it is locked"), "second cannot start: it is locked"),
    ],
)
def test_a_server_that_cannot_start_ends_the_others_with_one_line(
    failure: Exception, message: str
) -> None:
    events: list[str] = []
    with pytest.raises(click.ClickException) as caught:
        serve(events, failure)
    assert caught.value.message == message
    assert caught.value.exit_code == 1
    assert events == ["start first", "start second", "stop second", "stop first"]


def test_a_client_s_errors_are_one_line() -> None:
    async def fail(error: Exception) -> None:
        raise error

    with pytest.raises(click.ClickException, match="no such thing"):
        run_client(fail(ClientError("no such thing")))
    with pytest.raises(click.ClickException, match="pyromq standalone"):
        run_client(fail(NameServerError("help", {"a:1": OSError("refused")})))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_a_client_and_lets_it_clean_up(number: signal.Signals) -> None:
    cleaned_up = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(30)
        finally:
            cleaned_up.append(True)

    with pytest.raises(click.exceptions.Exit) as caught:
        run_client(work())
    assert caught.value.exit_code == 128 + number
    assert cleaned_up


def test_properties_files(tmp_path: Path) -> None:
    assert read_properties(None) == {}
    file = tmp_path / "a.properties"
    file.write_text("a = b\n")
    assert read_properties(str(file)) == {"a": "b"}
    file.write_text("a = \\u12")
    with pytest.raises(click.ClickException, match=r"a\.properties"):
        read_properties(str(file))
    with pytest.raises(click.ClickException, match="No such file"):
        read_properties(str(tmp_path / "missing"))
