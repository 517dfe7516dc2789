"""`pyromq standalone --brokers`: several broker processes under one command."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.standalone import standalone
from pyromq.client import Message, Producer, SendStatus
from pyromq.testing.topics import TopicReader
from tests.support.apache_rocketmq import free_port
from tests.support.patience import DEADLINE, wait_until
from tests.unit.cli.processes import Pyromq, running

ANY_PORTS = ("--namesrv-port", "0", "--broker-port", "0")
TWO = ("standalone", "--brokers", "2")


def namesrv_of(command: Pyromq) -> str:
    printed = command.wait_for("Ctrl-C stops.")
    address = re.search(r"listening on (\S+)", printed)
    assert address
    return address[1]


def addresses_of(command: Pyromq) -> dict[str, str]:
    command.wait_for("Ctrl-C stops.")
    return dict(re.findall(r"The broker\[(\S+), (\S+)\] boot success", command.printed))


def children_of(command: Pyromq) -> list[int]:
    """The processes of its brokers, in the order of their start."""
    parent = f"PPid:\t{command.process.pid}\n"
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if parent in (path / "status").read_text():
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def send(namesrv: str, topic: str, count: int) -> Counter[str]:
    """Send messages; return how many went to each broker."""
    with Producer.sync(namesrv) as producer:
        results = [producer.send(Message(topic, b"%d" % number)) for number in range(count)]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    return Counter(result.queue.broker_name for result in results)


def read(namesrv: str, topic: str, count: int, *brokers: str) -> set[bytes]:
    reader = TopicReader(namesrv)
    messages = asyncio.run(reader.drain(topic, brokers, count, DEADLINE))
    return {message.body for message in messages}


def test_messages_spread_over_brokers_and_stay_there(tmp_path: Path) -> None:
    bodies = {b"%d" % number for number in range(24)}
    names = ("broker-0", "broker-1")
    with running(*TWO, *ANY_PORTS, "--figures", "1", directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        assert set(addresses_of(command)) == set(names)
        assert all(f"data/{name}" in command.printed for name in names)
        sent = send(namesrv, "spread", 24)
        assert sent == {"broker-0": 12, "broker-1": 12}
        assert read(namesrv, "spread", 24, *names) == bodies
        children = children_of(command)
        assert len(children) == 2
        command.wait_for("\nall: in ")
        assert command.end(signal.SIGINT) == 0, command.printed
        assert not any(map(is_alive, children))
    assert re.search(
        r"\nbroker-0: in [\d,]+ msg/s [\d.]+ MiB/s, out \d+ msg/s, CPU", command.printed
    )
    totals = re.findall(r"^(broker-\d) +(\d+) +[\d.]+ +(\d+)", command.printed, re.MULTILINE)
    assert totals == [("broker-0", "12", "12"), ("broker-1", "12", "12")]
    assert re.search(r"^broker-1 \| .* registered with NameServer", command.printed, re.MULTILINE)
    assert "Traceback" not in command.printed
    for name in names:
        assert not (tmp_path / "data" / name / "abort").exists()

    with running("standalone", *ANY_PORTS, directory=tmp_path) as command:
        assert command.exit_code() == 1
        assert command.printed.splitlines()[-1] == (
            f"Error: 1 broker would not serve the messages in {tmp_path}/data/broker-1: start "
            "with --brokers 2, or move what you do not need elsewhere"
        )
    with running(*TWO, *ANY_PORTS, "--log-dir", "logs", directory=tmp_path) as command:
        assert read(namesrv_of(command), "spread", 24, *names) == bodies
        with running(*TWO, *ANY_PORTS, directory=tmp_path) as other:
            assert other.exit_code() == 1
            last = other.printed.splitlines()[-1]
            assert re.match(r"Error: broker-\d: broker cannot start: .* is in use by another", last)
        assert command.end(signal.SIGTERM) == 0
    logs = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("logs/**/*.log"))
    assert logs == [
        "logs/broker-0/broker.log",
        "logs/broker-0/store.log",
        "logs/broker-1/broker.log",
        "logs/broker-1/store.log",
        "logs/namesrv.log",
        "logs/standalone.log",
    ]


def test_data_of_one_broker_are_served_by_the_first_of_two(tmp_path: Path) -> None:
    with running("standalone", *ANY_PORTS, directory=tmp_path) as command:
        (name,) = addresses_of(command)
        send(namesrv_of(command), "before", 5)
        assert command.end() == 0
    with running(*TWO, *ANY_PORTS, directory=tmp_path) as command:
        assert set(addresses_of(command)) == {name, "broker-1"}
        assert len(read(namesrv_of(command), "before", 5, name)) == 5
        assert command.end() == 0
    assert not (tmp_path / "data" / "broker-0").exists()


def test_a_topic_is_on_every_broker_and_a_killed_command_leaves_none_behind(
    tmp_path: Path,
) -> None:
    stores = [tmp_path / "data" / name for name in ("broker-0", "broker-1")]
    with running(*TWO, *ANY_PORTS, directory=tmp_path) as command:
        send(namesrv_of(command), "new", 1)
        tables = [store / "config" / "topics.json" for store in stores]
        wait_until(lambda: all(t.exists() and '"new"' in t.read_text() for t in tables))

        children = children_of(command)
        assert len(children) == 2
        assert all((store / "abort").exists() for store in stores)
        command.process.kill()
        wait_until(lambda: not any(map(is_alive, children)))
    assert not any((store / "abort").exists() for store in stores), "it did not stop cleanly"


def test_a_broker_that_dies_comes_back_and_a_second_signal_ends_all(tmp_path: Path) -> None:
    # No port that the system gives to others while the broker is away.
    ports = ("--namesrv-port", "0", "--broker-port", str(free_port(-2, 1, 2, 4, 5)))
    with running(*TWO, *ports, directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        send(namesrv, "survives", 10)
        first, second = children_of(command)
        os.kill(second, signal.SIGKILL)
        command.wait_for("broker-1 died (killed by SIGKILL): restart 1 of 5 in 1 s")
        command.wait_for("broker-1 serves again, as process ")
        address = addresses_of(command)["broker-1"]
        assert command.printed.count(f"registered at {address!r}") == 2, "its port has changed"
        assert len(read(namesrv, "survives", 10, "broker-0", "broker-1")) == 10

        os.kill(first, signal.SIGSTOP)  # a stop would wait for it
        children = children_of(command)
        command.process.send_signal(signal.SIGTERM)
        command.wait_for("Stopping; a second signal ends the process at once.")
        assert command.end(signal.SIGTERM) == 128 + signal.SIGTERM
        os.kill(first, signal.SIGCONT)
        wait_until(lambda: not any(map(is_alive, children)))


def test_the_exit_status_tells_that_a_broker_did_not_stop_cleanly(tmp_path: Path) -> None:
    with running(*TWO, *ANY_PORTS, directory=tmp_path) as command:
        namesrv_of(command)
        _, second = children_of(command)
        os.kill(second, signal.SIGSTOP)
        command.process.send_signal(signal.SIGTERM)
        command.wait_for("Stopping;")
        os.kill(second, signal.SIGKILL)
        assert command.exit_code() == 1
    assert command.printed.splitlines()[-1] == (
        "Error: not all brokers stopped cleanly: broker-1 (killed by SIGKILL); their stores "
        "recover at the next start"
    )


def test_a_port_in_use_fails_the_start_with_the_error_of_its_broker(tmp_path: Path) -> None:
    port = free_port(-2, 1, 2, 4, 5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 4))
        taken.listen()
        ports = ("--namesrv-port", "0", "--broker-port", str(port))
        with running(*TWO, *ports, directory=tmp_path) as command:
            assert command.exit_code() == 1
            assert children_of(command) == []
    assert "boot success" not in command.printed
    assert "Traceback" not in command.printed
    assert command.printed.splitlines()[-1] == (
        f"Error: broker-1: broker cannot start: 127.0.0.1:{port + 4}: Address already in use; "
        "stop the program that uses it, or choose others with --broker-port"
    )


@pytest.mark.parametrize("value", ["0", "-1", "65", "1000", "two", "1.5", ""])
def test_a_senseless_number_of_brokers_is_refused(value: str) -> None:
    result = CliRunner().invoke(standalone, ["--brokers", value])
    assert result.exit_code == 2
    assert "--brokers" in result.output


def test_brokers_of_the_same_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()  # of a single broker, which has the name of its host
    monkeypatch.setattr(socket, "gethostname", lambda: "broker-1")
    result = CliRunner().invoke(standalone, ["--brokers", "2", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "would be called broker-1, broker-1, two of them the same" in result.output


@pytest.mark.parametrize("value", ["0", "nan", "-1", "x"])
def test_a_senseless_interval_of_figures_is_refused(value: str) -> None:
    assert CliRunner().invoke(standalone, ["--figures", value]).exit_code == 2


def test_settings_that_several_brokers_cannot_share_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "c"
    file.write_text("storePathCommitLog=/disk\n")
    result = CliRunner().invoke(
        standalone, ["--brokers", "2", "-c", str(file), "--data", str(tmp_path / "data")]
    )
    assert result.exit_code == 1
    assert "storePathCommitLog cannot be combined with --brokers 2" in result.output
    file.write_text(f"brokerName={'x' * 126}\n")
    result = CliRunner().invoke(
        standalone, ["--brokers", "2", "-c", str(file), "--data", str(tmp_path / "data")]
    )
    assert result.exit_code == 1
    assert "brokerName=" in result.output
