from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.namesrv import namesrv
from tests.unit.cli.processes import running


def test_print_config(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("orderMessageEnable=true\n")
    result = CliRunner().invoke(namesrv, ["-c", str(file), "--port", "1234", "-p"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert "listenPort=1234" in lines
    assert "orderMessageEnable=true" in lines
    assert f"configStorePath={file}" in lines


def test_a_bad_setting_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("listenPort=many\n")
    result = CliRunner().invoke(namesrv, ["-c", str(file)])
    assert result.exit_code == 1
    assert (
        result.output
        == f"Error: {file}: listenPort=many: expected a whole number from 0 to 65535\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "c").write_text(f"kvConfigPath={tmp_path}/kv.json\nlistenPrt=1\n")
    with running("namesrv", "-c", "c", "--port", "0", directory=tmp_path) as command:
        printed = command.wait_for("boot success")
        assert "unknown setting listenPrt (did you mean listenPort?) is ignored" in printed
        port = re.search(r"listening on 0\.0\.0\.0:(\d+)", printed)
        assert port
        with socket.create_connection(("127.0.0.1", int(port[1])), timeout=10):
            pass
        assert command.end(number) == 0
        assert "Traceback" not in command.printed


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with running("namesrv", "--port", port, directory=tmp_path) as command:
            assert command.exit_code() == 1
            (line,) = command.printed.splitlines()
            assert line.startswith("Error: NameServer cannot start")
            assert "ddress already in use" in line
            assert "--port" in line


def test_options_of_mqnamesrv_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("listenPort=1234\n")
    for option in ("-c", "--configFile"):
        result = CliRunner().invoke(namesrv, [option, str(file), "-n", "127.0.0.1:9876", "-m"])
        assert result.exit_code == 0
        assert result.output.splitlines()[0] == "listenPort=1234"
        assert "orderMessageEnable" not in result.output


def test_logs_go_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(f"kvConfigPath={tmp_path}/kv.json\n")
    options = ("-c", "c", "--port", "0", "--log-dir", "logs")
    with running("namesrv", *options, directory=tmp_path) as command:
        command.wait_for("boot success")
        assert command.end(signal.SIGTERM) == 0
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["namesrv.log"]
