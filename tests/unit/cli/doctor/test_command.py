from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.cli.main import main
from tests.support.apache_rocketmq import free_port
from tests.support.stores import open_store, put
from tests.unit.cli.processes import running


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def test_the_machine_alone() -> None:
    result = doctor("--json")
    value = json.loads(result.stdout)
    assert result.exit_code == (0 if value["ok"] else 1)
    checks = {each["check"] for each in value["findings"]}
    assert {"python", "open files", "clock"} <= checks
    for finding in value["findings"]:
        assert set(finding) == {"check", "level", "what", "why", "advice"}
        assert (finding["level"] == "ok") == (not finding["advice"])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = open_store(tmp_path / "store")
    put(made, b"x" * 100)
    made.seal()
    made.stop()
    return tmp_path / "store"


def test_a_store_and_its_damage(store: Path) -> None:
    result = doctor("--store", store)
    assert "log: ends at" in result.output
    with (store / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(120)
        file.write(b"?")
    result = doctor("--store", store, "--quiet")
    assert result.exit_code == 1
    assert "fail  log: 1 violations" in result.output
    assert f"-> run pyromq store check {store}" in result.output
    assert "ok    " not in result.output


def test_a_bad_file_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "b.properties").write_text("listenPort=many\n")
    result = doctor("-c", tmp_path / "b.properties", "--quiet")
    assert result.exit_code == 1
    assert "fail  settings: " in result.output
    assert "listenPort=many" in result.output


def test_wrong_command_lines(tmp_path: Path) -> None:
    assert "--probe needs --broker or --namesrv" in doctor("--probe").output
    assert "is not a directory" in doctor("--store", tmp_path / "missing").output


def test_a_running_broker_by_its_file(tmp_path: Path) -> None:
    port = free_port()
    with running(
        *("standalone", "--data", str(tmp_path / "data"), "--namesrv-port", str(free_port())),
        *("--broker-port", str(port)),
        directory=tmp_path,
    ) as server:
        server.wait_for(f"127.0.0.1:{port}] boot success")
        address = f"127.0.0.1:{port}"
        assert doctor("--probe", "--broker", address, "--timeout", 60).exit_code == 0
        result = doctor("--broker", address, "--store", tmp_path / "data", "--timeout", 60)
        assert f"process {server.process.pid} runs on" in result.output
        assert f"broker: {address} answers" in result.output
        assert f"open files: the limit of process {server.process.pid}" in result.output
        server.end()
    result = doctor("--probe", "--broker", address, "--timeout", 5)
    assert result.exit_code == 1
    assert "fail  answer: " in result.output
