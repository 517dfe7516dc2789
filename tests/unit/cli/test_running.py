from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.cli.running import (
    ServerOptions,
    Servers,
    mode_warnings,
    read_properties,
    run_client,
    run_servers,
)
from pyromq.client.errors import ClientError, NameServerError
from pyromq.nameserver.config import NamesrvConfig


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


def test_a_server_may_stop_all_and_say_why(capfd: pytest.CaptureFixture[str]) -> None:
    events: list[str] = []

    async def start(servers: Servers) -> None:
        await servers.start("first", FakeServer(events, "first"), "", ())
        servers.stop(click.ClickException("it broke"))
        servers.stop(click.ClickException("and so did this"))
        assert servers.stop_requested.is_set()

    with pytest.raises(click.ClickException, match="it broke"):
        run_servers(start)
    assert events == ["start first", "stop first"]

    async def stop_at_once(servers: Servers) -> None:
        servers.stop()

    run_servers(stop_at_once)
    assert "a second signal" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            OSError(errno.EADDRINUSE, "taken"),
            "second cannot start: taken; stop the program that uses it, or use --second-port",
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


def test_errors_of_a_client_are_one_line() -> None:
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


def serve_once(options: ServerOptions, at_work: Callable[[], None]) -> None:
    async def start(_: Servers) -> None:
        at_work()
        os.kill(os.getpid(), signal.SIGTERM)

    run_servers(start, options)


def test_the_pid_file_is_there_while_the_servers_are(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    file.write_text("99999 of a process that was killed")
    seen: list[str] = []

    serve_once(ServerOptions(pid_file=str(file)), lambda: seen.append(file.read_text()))

    assert seen == [f"{os.getpid()}\n"]
    assert not file.exists()


def test_a_pid_file_of_a_running_process_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with file.open("w") as held:
        held.write("4711\n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(click.ClickException, match="belongs to running process 4711"):
            serve_once(ServerOptions(pid_file=str(file)), lambda: None)
    assert file.read_text() == "4711\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"pid_file": "{}/file/pid"}, "--pid-file"), ({"log_dir": "{}/file/logs"}, "--log-dir")],
)
def test_files_that_cannot_be_written_fail_before_anything_starts(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    (tmp_path / "file").touch()
    started: list[bool] = []
    filled: dict[str, Any] = {key: value.format(tmp_path) for key, value in options.items()}

    with pytest.raises(click.ClickException, match=r"cannot write .* Not a directory") as caught:
        serve_once(ServerOptions(**filled), lambda: started.append(True))

    assert words in caught.value.message
    assert not started


def test_a_second_signal_ends_the_process_at_once_with_a_line() -> None:
    program = """
import asyncio, os, signal
from pyromq.cli.running import Servers, run_servers

class Stuck:
    async def start(self): os.kill(os.getpid(), signal.SIGTERM)
    async def stop(self):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

run_servers(lambda servers: servers.start("stuck", Stuck(), "", ()))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert "a second signal ends the process at once" in ended.stderr
    assert ended.stderr.endswith("Ended at once; a broker's store recovers at its next start.\n")


def test_secrets_in_a_file_that_others_can_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("replicationAccessKey=a\nreplicationSecretKey=hidden_secret\n")
    file.chmod(0o640)
    (warning,) = mode_warnings(str(file), [BrokerConfig])
    assert "replicationSecretKey" in warning
    assert "chmod 600" in warning
    assert "hidden_secret" not in warning
    file.chmod(0o600)
    assert mode_warnings(str(file), [BrokerConfig]) == []
    file.write_text("replicationSecretKey=${SECRET}\n")
    file.chmod(0o644)
    assert mode_warnings(str(file), [BrokerConfig]) == []
    assert mode_warnings(None, [BrokerConfig]) == []


def test_secrets_in_a_tls_file_that_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLS_FILE", str(tmp_path / "tls.properties"))
    file, tls_file = tmp_path / "namesrv.properties", tmp_path / "tls.properties"
    file.write_text("tls.config.file=${TLS_FILE}\n")
    tls_file.write_text("tls.server.keyPassword=hidden_secret\n")
    tls_file.chmod(0o644)
    (warning,) = mode_warnings(str(file), [NamesrvConfig])
    assert warning.startswith(f"{tls_file} holds tls.server.keyPassword and has mode 0644")
    assert "hidden_secret" not in warning
    tls_file.write_text("tls.server.keyPassword=${KEY_PASSWORD}\n")
    assert mode_warnings(str(file), [NamesrvConfig]) == []


def test_settings_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("replicationSecretKey=${SECRET}\n")
    monkeypatch.setenv("SECRET", "from_outside")
    assert read_properties(str(file)) == {"replicationSecretKey": "from_outside"}
    monkeypatch.delenv("SECRET")
    with pytest.raises(click.ClickException, match="SECRET"):
        read_properties(str(file))


def test_a_service_manager_hears_of_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    events: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.setblocking(False)
        serve(events)
        heard = []
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.append(receiver.recv(1000).decode().splitlines()[0])
    assert [each for each in heard if each != "WATCHDOG=1"] == ["READY=1", "STOPPING=1"]
    assert "NOTIFY_SOCKET" not in os.environ


def test_a_failed_start_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.setblocking(False)
        with pytest.raises(click.ClickException):
            serve([], LookupError("bad"))
        with pytest.raises(BlockingIOError):
            receiver.recv(1000)
