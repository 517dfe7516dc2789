"""`pyromq standalone --raft`: the nodes of a raft group in processes of one command."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import orjson
from click.testing import CliRunner

from pyromq.cli.main import main
from pyromq.cli.standalone import standalone
from pyromq.client import ClientError
from tests.support.apache_rocketmq import free_port
from tests.support.patience import PATIENT_PROPERTIES, wait_until
from tests.unit.cli.processes import Pyromq, running
from tests.unit.cli.test_standalone_brokers import ANY_PORTS, namesrv_of, read, send


def send_again(namesrv: str, count: int) -> None:
    """Send messages, again while the group elects a leader."""

    def is_sent() -> bool:
        try:
            send(namesrv, "orders", count)
        except ClientError:
            return False
        return True

    wait_until(is_sent)


def leader_of(command: Pyromq) -> tuple[str, int]:
    """The name and process of the leader at the start."""
    name = re.findall(r"^(\S+) at \S+ leads\.", command.printed, re.MULTILINE)[0]
    pid = re.findall(r"^    kill -9 (\d+)$", command.printed, re.MULTILINE)[0]
    return name, int(pid)


def status(namesrv: str) -> dict[str, object]:
    result = CliRunner().invoke(main, ["raft", "status", "--namesrv", namesrv, "--json"])
    value: dict[str, object] = orjson.loads(result.output) if result.output[:1] == "{" else {}
    return value


def test_an_election_and_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    table = {"brokerName": "shop", "mappedFileSizeCommitLog": "1048576", **PATIENT_PROPERTIES}
    file.write_text("".join(f"{key}={value}\n" for key, value in table.items()))
    port = str(free_port(-2, 1, 2, 4, 5, 6, 8, 9))
    ports = ["--namesrv-port", "0", "--broker-port", port]
    arguments = ["standalone", *ports, "-c", str(file), "--raft", "3"]
    stores = [tmp_path / "data" / f"raft-n{number}" for number in range(3)]
    with running(*arguments, directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        assert f"stored in {', '.join(map(str, stores))}." in command.printed
        assert f"    pyromq raft status --namesrv {namesrv} --watch 1\n" in command.printed
        name, pid = leader_of(command)
        send_again(namesrv, 10)
        os.kill(pid, signal.SIGKILL)
        command.wait_for(f"{name} died (killed by SIGKILL): restart 1 of 5 in 1 s")
        command.wait_for(f"{name} serves again, as process ")
        send_again(namesrv, 10)
        wait_until(lambda: status(namesrv).get("agreeing") == 3)
        assert command.end() == 0, command.printed
    assert "Traceback" not in command.printed
    assert "did not take over" not in command.printed, "the leader stops last"
    assert not any((store / "abort").exists() for store in stores)

    with running(*arguments[:-2], directory=tmp_path) as command:
        assert command.exit_code() == 1
        assert "are of a raft group: start with --raft 3" in command.printed
    with running(*arguments[:-1], "5", directory=tmp_path) as command:
        assert command.exit_code() == 1
        assert "has 3 nodes, and another number could lose messages" in command.printed

    with running(*arguments, directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        assert len(set(read(namesrv, "orders", 20, "shop"))) == 10
        assert command.end(signal.SIGTERM) == 0, command.printed


def test_options_that_do_not_fit() -> None:
    for option in (["--brokers", "2"], ["--replicas", "1"]):
        result = CliRunner().invoke(standalone, ["--raft", "3", *option])
        assert result.exit_code == 2
        assert "--raft cannot be combined with --brokers or --replicas" in result.output
    result = CliRunner().invoke(standalone, ["--raft", "3", "--host", "::1"])
    assert result.exit_code == 2
    assert "--raft needs an IPv4 address" in result.output


def test_a_group_of_one_node_runs_in_this_process(tmp_path: Path) -> None:
    with running("standalone", *ANY_PORTS, "--raft", "1", directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        send_again(namesrv, 3)
        assert command.end() == 0, command.printed
    assert (tmp_path / "data" / "raft-n0" / "dledger-n0" / "data").is_dir()
