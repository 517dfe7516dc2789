from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.brokers.child import (
    STOP,
    Boot,
    Created,
    Failure,
    Order,
    Parent,
    Report,
    decode_report,
    encode_report,
)
from pyromq.cli.main import main
from tests.support.patience import DEADLINE, wait_until


def order(directory: Path, port: int = 0, config_file: str | None = None) -> Order:
    return Order(
        {
            "storePathRootDir": str(directory),
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "child",
        },
        config_file,
        log_level="WARNING",
    )


@contextlib.contextmanager
def child(order: bytes) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-m", "pyromq.cli.brokers.child", "child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(order)
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def report_of(process: subprocess.Popen[bytes]) -> Report | None:
    assert process.stdout is not None
    return decode_report(process.stdout.readline())


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    assert process.stderr is not None
    return process.wait(DEADLINE), process.stderr.read().decode()


def test_the_parent_stops_it_once_and_a_signal_beside_that_does_no_harm(tmp_path: Path) -> None:
    """systemd signals every process of a service, and the parent stops its children as well."""
    with child(order(tmp_path).encode()) as process:
        boot = report_of(process)
        assert isinstance(boot, Boot)
        assert boot.line.startswith(f"The broker[child, 127.0.0.1:{boot.port}] boot success.")
        socket.create_connection(("127.0.0.1", boot.port), DEADLINE).close()
        process.send_signal(signal.SIGTERM)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may have ended
            process.stdin.write(STOP)
            process.stdin.flush()
        assert process.wait(DEADLINE) == 0
    assert not (tmp_path / "abort").exists()


def test_it_stops_cleanly_when_the_parent_is_gone(tmp_path: Path) -> None:
    with child(order(tmp_path).encode()) as process:
        assert isinstance(report_of(process), Boot)
        assert (tmp_path / "abort").exists()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        assert process.wait(DEADLINE) == 0
    assert not (tmp_path / "abort").exists()


async def test_a_parent_that_goes_while_the_broker_stops_or_starts_ends_it_at_once() -> None:
    for serves, said, expected in (
        (True, b"", ["silence", "stop"]),
        (True, STOP, ["stop", "silence", "end"]),
        (True, STOP + STOP, ["stop", "silence", "end"]),
        (False, b"", ["silence", "end"]),
        (False, STOP, ["silence", "end"]),
    ):
        events: list[str] = []
        note = events.append
        reading, writing = os.pipe()
        parent = Parent(reading, silence=partial(note, "silence"), end=partial(note, "end"))
        if serves:
            parent.serving(partial(note, "stop"))
        os.write(writing, said)
        os.close(writing)
        await asyncio.to_thread(parent.follow)
        os.close(reading)
        assert events == expected, (serves, said)


def test_a_stop_before_the_broker_serves_counts_when_it_does() -> None:
    events: list[str] = []
    reading, writing = os.pipe()
    parent = Parent(reading, silence=lambda: None, end=lambda: events.append("end"))
    thread = threading.Thread(target=parent.follow)
    thread.start()
    os.write(writing, STOP)
    wait_until(lambda: parent.told_to_stop)
    parent.serving(lambda: events.append("stop"))
    assert events == ["stop"]
    os.close(writing)
    thread.join(DEADLINE)
    os.close(reading)


def test_it_reports_why_it_cannot_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with child(order(tmp_path, port).encode()) as process:
            failure = report_of(process)
            code, log = ended(process)
    assert isinstance(failure, Failure)
    assert failure.reason == (
        f"broker cannot start: 127.0.0.1:{port}: Address already in use; stop the program that "
        "uses it, or choose others with --broker-port"
    )
    assert (code, log) == (1, "")


def test_the_file_of_settings_is_read_at_every_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("flushDiskType=NEVER\nlistenPort=1\n")
    with child(order(tmp_path / "data", config_file=str(file)).encode()) as process:
        failure = report_of(process)
        assert ended(process)[0] == 1
    assert isinstance(failure, Failure)
    assert failure.reason.startswith(f"{file}: flushDiskType=NEVER: ")


def test_a_replica_says_what_it_is_and_keeps_its_role_in_its_store(tmp_path: Path) -> None:
    file = tmp_path / "shared"
    file.write_text("fileReservedTime=7\n")
    replica = order(tmp_path / "store", config_file=str(file))
    replica = replace(
        replica,
        properties={**replica.properties, "brokerRole": "SLAVE", "brokerId": "1"},
        keeps_role=True,
    )
    assert replica.is_replica
    assert not order(tmp_path).is_replica
    with child(replica.encode()) as process:
        boot = report_of(process)
        assert isinstance(boot, Boot)
        done = CliRunner().invoke(main, ["broker", "promote", f"127.0.0.1:{boot.port}"])
        assert done.exit_code == 0, done.output
    saved = (tmp_path / "store" / "config" / "broker.properties").read_text()
    assert saved == "brokerRole=ASYNC_MASTER\nbrokerId=0\n"
    assert file.read_text() == "fileReservedTime=7\n"


def test_without_an_order_it_says_who_starts_it() -> None:
    with child(b'{"no": 1}\n') as process:
        code, log = ended(process)
    assert code == 2
    assert "pyromq standalone --brokers" in log


def test_orders_are_lines() -> None:
    order = Order({"a": "b\n"}, "file", log_files=3)
    assert order.encode().count(b"\n") == 1
    assert Order.decode(order.encode()) == order
    for line in (b"", b"\n", b"[1]\n", b'{"no": 1}\n', b"{", b"\xff\n", b"7"):
        with pytest.raises(ValueError, match=r"\w"):
            Order.decode(line)


def test_reports_are_lines() -> None:
    for report in (Boot("a\nb", 7), Failure("ü\n"), Created("t", 4, 6, 0)):
        line = encode_report(report)
        assert line.count(b"\n") == 1
        assert decode_report(line) == report
    for line in (b"", b"hello\n", b"5\n", b"[]\n", b'["Boot", {}]\n', b'["x", {}]\n', b"\xff\n"):
        assert decode_report(line) is None
