from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.consume import consume
from pyromq.cli.send import send
from pyromq.cli.standalone import standalone
from pyromq.cli.store import store
from pyromq.client import Message, Producer, SendStatus
from tests.unit.cli.processes import Pyromq, running

ANY_PORTS = ("--namesrv-port", "0", "--broker-port", "0", "--log-level", "warning")


def namesrv_of(command: Pyromq) -> str:
    printed = command.wait_for("Ctrl-C stops.")
    address = re.search(r"boot success\. serializeType=JSON and name server is (\S+)", printed)
    assert address
    assert f"pyromq send --namesrv {address[1]} greetings 'hello'" in printed
    return address[1]


def test_what_the_readme_says(tmp_path: Path) -> None:
    runner = CliRunner()
    with running("standalone", *ANY_PORTS, directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        for number in range(10):
            sent = runner.invoke(
                send, ["greetings", f"hello {number}", "--tags", "a", "--namesrv", namesrv]
            )
            assert sent.exit_code == 0, sent.output
        arguments = ["greetings", "--from", "first", "--json", "--namesrv", namesrv]
        read = runner.invoke(consume, [*arguments, "--count", "10"])
        assert read.exit_code == 0, read.output
        messages = [json.loads(line) for line in read.output.splitlines()]
        assert {message["body"] for message in messages} == {f"hello {n}" for n in range(10)}
        some = runner.invoke(consume, [*arguments, "--group", "g", "--count", "4"])
        assert len(some.output.splitlines()) == 4, some.output
        assert command.end(signal.SIGINT) == 0
        assert "Traceback" not in command.printed
    assert not (tmp_path / "data" / "abort").exists()

    with running("standalone", *ANY_PORTS, directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        arguments[-1] = namesrv
        rest = runner.invoke(consume, [*arguments, "--group", "g", "--count", "6"])
        bodies = {
            json.loads(line)["body"] for text in (some, rest) for line in text.output.splitlines()
        }
        assert bodies == {f"hello {n}" for n in range(10)}
        (segment, *_) = sorted((tmp_path / "data" / "commitlog").iterdir())
        dumped = runner.invoke(store, ["dump", str(segment)])
        assert dumped.stdout.count("greetings:") == 10

        second = ["standalone", *ANY_PORTS, "--data", str(tmp_path / "data")]
        with running(*second, directory=tmp_path) as other:
            assert other.exit_code() == 1
            assert "Traceback" not in other.printed
            assert other.printed.splitlines()[-1].startswith("Error: ")
        assert command.end(signal.SIGTERM) == 0


def test_boot_success_means_that_clients_work(tmp_path: Path) -> None:
    """The first boot line, the NameServer's, waits for the broker as well."""
    with running("standalone", *ANY_PORTS, directory=tmp_path) as command:
        printed = command.wait_for("boot success")
        address = re.search(r"listening on (\S+)", printed)
        assert address
        with Producer.sync(address[1], retries=0) as producer:
            assert producer.send(Message("new", b"x")).status is SendStatus.SEND_OK


@pytest.mark.parametrize("option", ["--namesrv-port", "--broker-port"])
def test_ports_in_use_are_one_line_with_the_option_to_change(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with running("standalone", *ANY_PORTS, option, port, directory=tmp_path) as command:
            assert command.exit_code() == 1
            assert "boot success" not in command.printed
            assert "Traceback" not in command.printed
            last = command.printed.splitlines()[-1]
            assert last.startswith("Error: ")
            assert "in use" in last
            assert option in last


def test_a_data_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ["standalone", *ANY_PORTS, "--data", str(tmp_path / "file" / "data")]
    with running(*arguments, directory=tmp_path) as command:
        assert command.exit_code() == 1
        assert "Traceback" not in command.printed
        assert command.printed.splitlines()[-1].startswith("Error: ")


def test_wrong_options_are_reported(tmp_path: Path) -> None:
    result = CliRunner().invoke(standalone, ["--host", "localhost"])
    assert result.exit_code == 2
    assert "'localhost' is not an IP address" in result.output
    file = tmp_path / "c"
    file.write_text("flushDiskType=NEVER\n")
    result = CliRunner().invoke(standalone, ["-c", str(file)])
    assert result.exit_code == 1
    assert f"{file}: flushDiskType=NEVER: expected SYNC_FLUSH or ASYNC_FLUSH" in result.output
