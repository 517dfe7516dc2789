from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyromq.base.service_manager import ServiceManager
from tests.support.patience import DEADLINE


@contextmanager
def manager_at(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(DEADLINE)
        yield receiver


def test_messages_arrive(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager_at(address) as receiver:
        ServiceManager(address).notify("READY=1", "STATUS=serving")
        assert receiver.recv(1000) == b"READY=1\nSTATUS=serving"


def test_an_abstract_address() -> None:
    name = f"pyromq-test-{os.getpid()}"
    with manager_at("\0" + name) as receiver:
        ServiceManager("@" + name).notify("STOPPING=1")
        assert receiver.recv(1000) == b"STOPPING=1"


def test_variables_are_taken_out_of_the_environment() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/x",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    assert ServiceManager.from_environment(environment).watchdog_seconds == 30
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "30000000"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "what"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
    ],
)
def test_no_watchdog(environment: dict[str, str]) -> None:
    assert ServiceManager.from_environment(environment).watchdog_seconds is None


async def test_without_a_manager_nothing_happens() -> None:
    manager = ServiceManager.from_environment({})
    manager.notify("READY=1")
    async with manager.watched():
        pass


def test_a_manager_that_is_gone_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager(str(tmp_path / "gone")).notify("READY=1")
    assert "cannot notify the service manager" in caplog.text


async def test_the_watchdog_is_fed_from_the_loop(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager_at(address) as receiver:
        async with ServiceManager(address, watchdog_seconds=0.03).watched():
            for _ in range(3):
                message = await asyncio.to_thread(receiver.recv, 1000)
                assert message == b"WATCHDOG=1"
