from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from pyromq.cli.brokers.child import Created, Order
from pyromq.cli.brokers.processes import BrokerProcesses, Comeback, Restarts, describe_exit
from tests.support.patience import until

QUICK = Restarts(first_pause=0.01, most=2)

#: A child in a few lines: it obeys the key of its settings that is called `does`.
PROGRAM = r"""
import json, os, sys, time
name, order = sys.argv[1], json.loads(sys.stdin.readline())
does, port = order["properties"].get("does"), int(order["properties"].get("listenPort", 0))
def say(kind, **fields): print(json.dumps([kind, fields]), flush=True)
if does == "fail": say("Failure", reason="no room"); sys.exit(1)
if does == "vanish": sys.exit(7)
if does == "hang": sys.stdin.read(); sys.exit(5)
if does == "log": sys.stderr.write("first\n" + "x" * 100_000 + "\nlast"); sys.stderr.flush()
say("Boot", line=f"{name} at {port or 4711}", port=port or 4711)
if does == "crash": os.kill(os.getpid(), 6)
if does == "crash once" and not port: os.kill(os.getpid(), 9)
if does == "diverge": say("Failure", reason="this log differs"); sys.exit(1)
if does == "create": print("noise"); say("Created", topic="t", queues=4, perm=6, sys_flag=0)
said = sys.stdin.readline()
sys.exit(3 if does == "stop badly" or said != "stop\n" else 0)
"""


def brokers(
    *does: str,
    stop_requested: asyncio.Event | None = None,
    give_up: Callable[[Exception], None] = lambda _: None,
    on_created: Callable[[str, Created], None] = lambda _name, _topic: None,
    comeback: Comeback | None = None,
) -> BrokerProcesses:
    return BrokerProcesses(
        {f"broker-{number}": Order({"does": each}) for number, each in enumerate(does)},
        stop_requested or asyncio.Event(),
        give_up,
        on_created,
        command=[sys.executable, "-I", "-S", "-c", PROGRAM],
        comeback=comeback,
        restarts=QUICK,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_all_start_and_all_stop() -> None:
    processes = brokers("serve", "serve")
    await processes.start()
    assert processes.boot_lines == ["broker-0 at 4711", "broker-1 at 4711"]
    running = processes.running()
    assert [(each.name, each.port, each.restarts) for each in running] == [
        ("broker-0", 4711, 0),
        ("broker-1", 4711, 0),
    ]
    assert all(os.getpgid(each.pid) == each.pid for each in running), "Ctrl-C would reach them"
    await processes.stop()
    assert processes.unclean() == []
    assert not any(is_alive(each.pid) for each in running)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("fail", "no room"),
        ("vanish", "ended while it started (exit status 7): see its log"),
    ],
)
async def test_a_broker_that_cannot_start_ends_the_start(does: str, reason: str) -> None:
    processes = brokers("serve", does, "hang")
    with pytest.raises(click.ClickException) as caught:
        await processes.start()
    assert caught.value.message == f"broker-1: {reason}"
    await processes.stop()  # also the one that hangs
    assert processes.unclean() == []


async def test_a_stop_request_ends_a_start() -> None:
    requested = asyncio.Event()
    processes = brokers("hang", "serve", stop_requested=requested)
    start = asyncio.create_task(processes.start())
    await until(lambda: processes.boot_lines)
    requested.set()
    await start
    await processes.stop()


async def test_a_broker_that_dies_is_restarted_at_its_port(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processes = brokers("crash once", "serve")
    await processes.start()
    await until(lambda: "broker-0 serves again" in caplog.text)
    assert "broker-0 died (killed by SIGKILL): restart 1 of 2 in 0.01 s" in caplog.text
    first, second = processes.running()
    assert (first.port, first.restarts, second.restarts) == (4711, 1, 0)
    await processes.stop()
    assert processes.unclean() == []


async def test_a_broker_that_dies_again_and_again_ends_everything() -> None:
    failures: list[Exception] = []
    processes = brokers("crash", "serve", give_up=failures.append)
    await processes.start()
    await until(lambda: failures)
    (failure,) = failures
    assert str(failure) == (
        "broker-0 died 3 times in a row (now: killed by SIGABRT); the other brokers were stopped "
        "as well"
    )
    await processes.stop()
    assert processes.unclean() == ["broker-0 (killed by SIGABRT)"]


async def test_a_restart_that_fails_counts_as_a_death(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    failures: list[Exception] = []
    program = f"import pathlib; first = not pathlib.Path({str(tmp_path / 'x')!r}).exists()\n"
    program += f"open({str(tmp_path / 'x')!r}, 'w').close()\n"
    program += PROGRAM.replace('if does == "fail"', "if not first")
    processes = BrokerProcesses(
        {"broker-0": Order()},
        asyncio.Event(),
        failures.append,
        command=[sys.executable, "-I", "-S", "-c", program],
        restarts=QUICK,
    )
    await processes.start()
    os.kill(processes.running()[0].pid, signal.SIGKILL)
    await until(lambda: failures)
    assert "restart of broker-0 failed: broker-0: no room" in caplog.text
    assert "died 3 times in a row (now: exit status 1)" in str(failures[0])
    await processes.stop()


async def test_a_stop_during_the_pause_before_a_restart() -> None:
    processes = brokers("serve", "serve")
    await processes.start()
    victim = processes.running()[0].pid
    os.kill(victim, signal.SIGKILL)
    await until(lambda: not is_alive(victim))
    await processes.stop()
    assert processes.unclean() in ([], ["broker-0 (killed by SIGKILL)"])


async def test_a_stop_tells_which_brokers_did_not_stop_cleanly() -> None:
    processes = brokers("serve", "stop badly")
    await processes.start()
    await processes.stop()
    assert processes.unclean() == ["broker-1 (exit status 3)"]


async def test_a_broker_that_stops_for_good_is_not_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures: list[Exception] = []
    processes = brokers("diverge", "serve", give_up=failures.append)
    await processes.start()
    await until(lambda: "broker-0 is not restarted: this log differs" in caplog.text)
    assert [each.restarts for each in processes.running()] == [0, 0]
    await processes.stop()
    assert failures == []
    assert processes.given_up() == ["broker-0: this log differs"]
    assert processes.unclean() == []


NOTING = r"""
import json, sys
name, order = sys.argv[1], json.loads(sys.stdin.readline())
def note(what):
    with open(order["properties"]["notes"], "a") as file: file.write(f"{name} {what}\n")
note("starts")
print(json.dumps(["Boot", {"line": name, "port": 4711}]), flush=True)
sys.stdin.readline()
note("stops")
"""


async def test_masters_start_before_replicas_and_stop_before_them(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    processes = BrokerProcesses(
        {
            name: Order({"brokerRole": role, "notes": str(notes)})
            for name, role in (("replica", "SLAVE"), ("master", "SYNC_MASTER"))
        },
        asyncio.Event(),
        lambda _: None,
        command=[sys.executable, "-I", "-S", "-c", NOTING],
    )
    await processes.start()
    await processes.stop()
    assert notes.read_text().splitlines() == [
        "master starts",
        "replica starts",
        "master stops",
        "replica stops",
    ]


class AsReplica:
    """Lets brokers return at once, as replicas."""

    def pause(self, name: str, pause: float) -> float:
        assert (name, pause) == ("broker-0", 0.01)
        return 0.02

    async def wait(self, name: str, port: int, order: Order, pause: float) -> Order:
        assert (name, port, pause) == ("broker-0", 4711, 0.02)
        return Order({**order.properties, "does": "log", "brokerRole": "SLAVE"})


async def test_a_broker_returns_in_the_role_that_it_is_given(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    processes = brokers("crash once", comeback=AsReplica())
    await processes.start()
    await until(lambda: "broker-0 serves again" in caplog.text)
    assert "restart 1 of 2 in 0.02 s" in caplog.text
    await processes.stop()
    assert "broker-0 | first" in capfd.readouterr().err, "it does not do what it was told"


async def test_log_lines_have_the_name_of_their_broker(capfd: pytest.CaptureFixture[str]) -> None:
    processes = brokers("log")
    await processes.start()
    await processes.stop()
    lines = capfd.readouterr().err.splitlines()
    assert all(line.startswith("broker-0 | ") for line in lines)
    assert lines[0] == "broker-0 | first"
    assert lines[-1] == "broker-0 | last"
    assert sum(len(line) - len("broker-0 | ") for line in lines) == 100_009


async def test_topics_that_sends_create_are_passed_on() -> None:
    created: list[tuple[str, Created]] = []
    processes = brokers("serve", "create", on_created=lambda *each: created.append(each))
    await processes.start()
    await until(lambda: created)
    await processes.stop()
    assert created == [("broker-1", Created("t", 4, 6, 0))]


def test_pauses_double_up_to_a_limit() -> None:
    restarts = Restarts()
    assert [restarts.pause(number) for number in (1, 2, 3, 5, 6, 1000)] == [1, 2, 4, 16, 30, 30]


def test_exit_statuses_as_text() -> None:
    assert describe_exit(0) == "exit status 0"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-64) in ("killed by SIGRTMAX", "killed by signal 64")
