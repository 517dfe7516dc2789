from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path

from click.testing import CliRunner, Result

from pyromq.cli.broker import broker
from pyromq.protocol import kernel
from tests.support.patience import wait_until
from tests.unit.cli.processes import running


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(broker, arguments)


def test_print_all_settings(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("brokerName=broker-x\nflushDiskType=SYNC_FLUSH\n")
    result = invoke("-c", str(file), "-n", "127.0.0.1:9876;127.0.0.2:9876", "-p")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert "brokerName=broker-x" in lines
    assert "flushDiskType=SYNC_FLUSH" in lines
    assert "namesrvAddr=127.0.0.1:9876;127.0.0.2:9876" in lines
    assert "longPollingEnable=true" in lines


def test_print_important_settings() -> None:
    lines = invoke("-m").output.splitlines()
    assert "autoCreateTopicEnable=true" in lines
    assert "longPollingEnable=true" not in lines


def test_bad_settings_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("maxMessageSize=lots\n")
    result = invoke("-c", str(file))
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {file}: maxMessageSize=lots: expected")
    assert invoke("-n", "nowhere").output.startswith(
        "Error: namesrvAddr=nowhere: expected host:port"
    )


def test_it_serves_until_a_signal_and_warns_of_unknown_settings(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(
        f"listenPort=0\nstorePathRootDir={tmp_path}/store\nbrokerName=broker-x\n"
        "brokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\nbrokerNam=y\n"
        "pullMessageThreadPoolNums=9\n"
    )
    with running("broker", "-c", "c", directory=tmp_path) as command:
        printed = command.wait_for("boot success. serializeType=JSON")
        assert "unknown setting brokerNam (did you mean brokerName?) is ignored" in printed
        assert "pullMessageThreadPoolNums=9 has no effect: requests run on" in printed
        assert f"boot success. serializeType=JSON [{kernel.describe()}]" in printed
        address = re.search(r"The broker\[broker-x, 127\.0\.0\.1:(\d+)\]", printed)
        assert address
        with socket.create_connection(("127.0.0.1", int(address[1])), timeout=10):
            pass
        assert command.end(signal.SIGTERM) == 0
        assert "Traceback" not in command.printed
    assert not (tmp_path / "store" / "abort").exists()


def test_a_store_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "c").write_text(f"listenPort=0\nstorePathRootDir={tmp_path}/file/store\n")
    with running("broker", "-c", "c", "--log-level", "error", directory=tmp_path) as command:
        assert command.exit_code() == 1
        (line,) = command.printed.splitlines()
        assert line.startswith("Error: ")
        assert f"{tmp_path}/file" in line


def test_options_of_mqbroker_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("brokerName=broker-x\n")
    result = invoke("--configFile", str(file), "--namesrvAddr", "127.0.0.1:9876", "-m")
    assert "brokerName=broker-x" in result.output.splitlines()
    assert "namesrvAddr=127.0.0.1:9876" in result.output.splitlines()
    assert "longPollingEnable=true" in invoke("--printConfigItem").output.splitlines()
    assert invoke("--printImportantConfig").output == invoke("-m").output


def test_logs_and_pid_go_to_files(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(
        f"listenPort=0\nstorePathRootDir={tmp_path}/store\nbrokerIP1=127.0.0.1\n"
        "mappedFileSizeCommitLog=1048576\nfilterServerNums=1\n"
    )
    options = ("-c", "c", "--log-dir", "logs", "--pid-file", "pid")
    with running("broker", *options, directory=tmp_path) as command:
        command.wait_for("boot success")
        assert (tmp_path / "pid").read_text() == f"{command.process.pid}\n"
        with running("broker", *options, directory=tmp_path) as second:
            assert second.exit_code() == 1
            assert f"belongs to running process {command.process.pid}" in second.printed
        assert command.end(signal.SIGTERM) == 0
        assert "INFO" not in command.printed
        assert command.printed.count("filterServerNums=1 has no effect") == 1
    assert "WARNING" in (log := (tmp_path / "logs" / "broker.log").read_text())
    assert "filterServerNums=1 has no effect" in log
    assert not (tmp_path / "pid").exists()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "broker.log",
        "store.log",
    ]


def test_a_port_in_use_is_one_line_and_leaves_nothing_locked(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = f"storePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\n"
        (tmp_path / "c").write_text(f"listenPort={port}\n{settings}")
        with running("broker", "-c", "c", "--log-level", "error", directory=tmp_path) as command:
            assert command.exit_code() == 1
            (line,) = command.printed.splitlines()
            assert line.startswith("Error: broker cannot start")
            assert "listenPort" in line
    (tmp_path / "c").write_text(f"listenPort=0\n{settings}")
    with running("broker", "-c", "c", directory=tmp_path) as command:
        command.wait_for("boot success")
        assert command.end(signal.SIGTERM) == 0


def test_a_signal_switches_to_debug_and_back(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(
        f"listenPort=0\nstorePathRootDir={tmp_path}/store\nbrokerIP1=127.0.0.1\n"
        "mappedFileSizeCommitLog=1048576\nlogLevel=WARNING,pyromq.store=INFO\n"
    )
    options = ("-c", "c", "--log-dir", "logs", "--log-format", "json")
    log = tmp_path / "logs" / "broker.log"
    with running("broker", *options, directory=tmp_path) as command:
        command.wait_for("boot success")
        os.kill(command.process.pid, signal.SIGUSR1)
        wait_until(lambda: "log level of pyromq is DEBUG now" in log.read_text())
        wait_until(lambda: '"level":"DEBUG"' in log.read_text())  # the water marks
        os.kill(command.process.pid, signal.SIGUSR1)
        wait_until(lambda: "is that of the settings now" in log.read_text())
        assert command.end(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["level"] for line in lines} == {"WARNING", "DEBUG"}


def test_hooks_that_cannot_be_loaded_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(
        f"listenPort=0\nstorePathRootDir={tmp_path}/store\nbrokerIP1=127.0.0.1\n"
        "mappedFileSizeCommitLog=1048576\nbrokerHooks=no_such_module:Guard\n"
    )
    with running("broker", "-c", "c", directory=tmp_path) as command:
        assert command.exit_code() == 1
        assert "cannot start: brokerHooks=no_such_module:Guard: loading failed" in command.printed
        assert "Traceback" not in command.printed
    assert not (tmp_path / "store" / "commitlog").exists()
