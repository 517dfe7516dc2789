"""Commands with strict access control and mutual TLS: `standalone`, and those for its servers.

The accounts are those of `pyromq acl init`: brokers sign as a peer, tools as the administrator.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from pyromq.acl.files import read_data
from pyromq.cli.main import main
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.tls.client import client_tls
from tests.support.access import write_accounts
from tests.support.apache_rocketmq import free_port
from tests.support.certificates import Certificates
from tests.support.patience import PATIENT_PROPERTIES, wait_until
from tests.unit.cli.processes import running
from tests.unit.cli.test_standalone_brokers import ANY_PORTS, namesrv_of

SECRET = "PYROMQ_BROKER_SECRET"

Run = Callable[..., Result]


@pytest.fixture
def certs(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certs")


@pytest.fixture
def config(tmp_path: Path, certs: Certificates, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A broker's file, as `acl init` and `tls make-test-certs` tell."""
    home = tmp_path / "home"
    printed = CliRunner().invoke(main, ["acl", "init", str(home)]).output
    lines = re.findall(r"^  (\S+=\S+)$", printed, re.MULTILINE)
    settings = dict(line.split("=", 1) for line in lines)
    assert settings["replicationSecretKey"] == f"${{{SECRET}}}"
    accounts = read_data(home / "conf/plain_acl.yml")["accounts"]
    (secret,) = (each["secretKey"] for each in accounts if each["accessKey"] == "pyromq-broker")
    monkeypatch.setenv(SECRET, secret)
    file = tmp_path / "broker.conf"
    settings |= {**PATIENT_PROPERTIES, "tls.config.file": certs["tls.properties"]}
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


@pytest.fixture
def run(certs: Certificates, config: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with the administrator's keys in the environment, as `acl init` tells."""
    tools = read_data(config.with_name("home") / "conf/tools.yml")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", tools["accessKey"])
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", tools["secretKey"])

    def run_command(*words: str, code: int | None = 0) -> Result:
        tls = [f"--tls-{name}={certs[file]}" for name, file in _TLS_FILES.items()]
        result = CliRunner().invoke(main, [*words, *tls])
        assert code in (None, result.exit_code), result.output
        assert tools["secretKey"] not in result.output
        return result

    return run_command


_TLS_FILES = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}


def test_commands_for_replicas(
    tmp_path: Path, config: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(free_port(-2, 1, 2, 4, 5))
    ports = ["--namesrv-port", "0", "--broker-port", port]
    with running(
        "standalone", *ports, "-c", str(config), "--replicas", "1", directory=tmp_path
    ) as command:
        namesrv = namesrv_of(command)
        assert "not all replicas follow" not in command.printed
        at = ["--namesrv", namesrv]
        run("send", "orders", "hello", *at)
        read = run("consume", "orders", "--from", "first", "--count", "1", "--json", *at)
        assert orjson.loads(read.output)["body"] == "hello"
        run("bench", "produce", "load", "--count", "20", "--json", *at)
        run("bench", "consume", "load", "--from", "first", "--count", "20", "--json", *at)
        replica = re.findall(r"^\S+ at (\S+) is a replica\.", command.printed, re.MULTILINE)[0]
        status = orjson.loads(run("broker", "replicas", replica, "--json").output)
        assert status["following"]["is_connected"]
        assert "alive" in run("broker", "promote", replica, code=1).output
        (pid,) = re.findall(r"^    kill -9 (\d+)$", command.printed, re.MULTILINE)
        os.kill(int(pid), signal.SIGKILL)
        command.wait_for("was the master: promote a replica now")
        # It may not have noticed yet.
        wait_until(lambda: run("broker", "promote", replica, code=None).exit_code == 0)
        command.wait_for("serves again, as process ")
        run("send", "orders", "again", *at)
        # Nobody without keys learns anything.
        monkeypatch.delenv("ROCKETMQ_ACCESS_KEY")
        monkeypatch.delenv("ROCKETMQ_SECRET_KEY")
        for words in (["broker", "replicas", replica], ["broker", "promote", replica]):
            assert "No accessKey is configured" in run(*words, code=1).output
        assert command.end() == 0, command.printed
    assert os.environ[SECRET] not in command.printed
    assert "Traceback" not in command.printed


def test_commands_for_raft_groups(
    tmp_path: Path, config: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(free_port(-2, 1, 2, 4, 5, 6, 8, 9))
    ports = ["--namesrv-port", "0", "--broker-port", port]
    with config.open("a") as file:
        file.write("brokerName=shop\nmappedFileSizeCommitLog=1048576\n")
    with running(
        "standalone", *ports, "-c", str(config), "--raft", "3", directory=tmp_path
    ) as command:
        at = ["--namesrv", namesrv_of(command)]

        def status() -> dict[str, object]:
            result = run("raft", "status", *at, "--json", code=None)
            is_known = result.output[:1] == "{"
            value: dict[str, object] = orjson.loads(result.output) if is_known else {}
            return value

        def is_transferred() -> bool:
            """Whether another node leads; a stalled machine may elect meanwhile."""
            leader = status().get("leader")
            other = next(f"n{number}" for number in range(3) if f"n{number}" != leader)
            result = run("raft", "transfer", other, *at, code=None)
            return f"{other} leads group shop" in result.output and result.exit_code == 0

        wait_until(lambda: status().get("agreeing") == 3)
        wait_until(is_transferred)
        wait_until(lambda: run("send", "orders", "hello", *at, code=None).exit_code == 0)
        monkeypatch.delenv("ROCKETMQ_ACCESS_KEY")
        monkeypatch.delenv("ROCKETMQ_SECRET_KEY")
        for words in (["status"], ["transfer", "n0"]):
            assert "No accessKey is configured" in run("raft", *words, *at, code=1).output
        assert command.end() == 0, command.printed


def test_the_name_server_checks_as_the_broker_does(
    tmp_path: Path, config: Path, certs: Certificates
) -> None:
    with running("standalone", *ANY_PORTS, "-c", str(config), directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        fields = {"namespace": "n", "key": "k", "value": "v"}
        request = RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=fields)

        async def ask() -> RemotingCommand:
            client = RemotingClient(tls=client_tls(certs.tls()))
            try:
                return await client.request(namesrv, request)
            finally:
                await client.close()

        answer = asyncio.run(ask())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "No accessKey is configured" in (answer.remark or "")
        assert command.end() == 0, command.printed
    assert "PUT_KV_CONFIG" in (tmp_path / "data/namesrv/audit.log").read_text()


@pytest.mark.parametrize(
    ("accounts", "settings", "problem"),
    [
        ("", {}, "expected replicationAccessKey and replicationSecretKey of an account"),
        ("", {"key": "nobody", "secret": "x" * 8}, "replicationAccessKey=nobody: expected"),
        ("", {"key": "example", "secret": "x" * 8}, "replicationAccessKey=example: expected"),
        (
            "- {accessKey: brokers, secretKey: right-secret, peer: true}",
            {"key": "brokers", "secret": "wrong-secret"},
            "replicationSecretKey=******: expected the secret key of brokers",
        ),
        ("- {accessKey: x, secretKey: y}", {}, "plain_acl.yml:3: accessKey needs at least"),
    ],
)
def test_a_broker_that_could_not_register_does_not_start(
    tmp_path: Path, accounts: str, settings: dict[str, str], problem: str
) -> None:
    write_accounts(
        tmp_path, f"accounts:\n- {{accessKey: example, secretKey: {'x' * 8}}}\n{accounts}\n"
    )
    file = tmp_path / "broker.conf"
    keys = {"key": "replicationAccessKey", "secret": "replicationSecretKey"}
    given = "".join(f"{keys[name]}={value}\n" for name, value in settings.items())
    file.write_text(f"aclEnable=true\naclMode=strict\nrocketmqHome={tmp_path}\n{given}")
    words = ["standalone", "--data", str(tmp_path / "data"), "-c", str(file)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert problem in result.output
    assert "wrong-secret" not in result.output


def test_a_white_list_needs_no_keys(tmp_path: Path) -> None:
    write_accounts(tmp_path, "globalWhiteRemoteAddresses: [127.0.0.1]\naccounts: []\n")
    file = tmp_path / "broker.conf"
    file.write_text(f"aclEnable=true\naclMode=strict\nrocketmqHome={tmp_path}\n")
    with running("standalone", *ANY_PORTS, "-c", str(file), directory=tmp_path) as command:
        namesrv_of(command)
        assert command.end() == 0


def test_compatible_mode_needs_no_keys(tmp_path: Path) -> None:
    """A file of RocketMQ works as it is: RocketMQ's NameServer has no access control."""
    write_accounts(tmp_path, f"accounts:\n- {{accessKey: example, secretKey: {'x' * 8}}}\n")
    file = tmp_path / "broker.conf"
    file.write_text(f"aclEnable=true\nrocketmqHome={tmp_path}\n")
    with running("standalone", *ANY_PORTS, "-c", str(file), directory=tmp_path) as command:
        namesrv_of(command)
        assert command.end() == 0
