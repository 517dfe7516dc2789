"""The files of docs/security.md as they are: a NameServer and a broker start, and let nobody in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyromq.acl.files import read_data
from pyromq.cli.main import main
from pyromq.client import BrokerError, Message, Producer, RocketMQError
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.tls.client import Tls, client_tls
from tests.support.patience import DEADLINE, PATIENT_PROPERTIES
from tests.unit.cli.processes import Pyromq, running

GUIDE = Path(__file__).parents[2] / "docs" / "security.md"
SECRET = "PYROMQ_BROKER_SECRET"
FILES = ("broker.properties", "namesrv.properties", "tls.properties")


class Installation:
    """A machine as the guide sets it up; /etc/pyromq is a directory of the test."""

    def __init__(self, directory: Path) -> None:
        self.home = directory
        for words in (
            ["acl", "init", str(directory)],
            ["acl", "check", str(directory), "--strict"],
            ["tls", "make-test-certs", str(directory)],
        ):
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
        self.files = documented_files()
        assert set(FILES) == self.files.keys()
        for name, text in self.files.items():
            self.write(name, text.replace("/etc/pyromq", str(directory)))

    def write(self, name: str, text: str) -> None:
        path = self.home / name
        path.write_text(text)
        path.chmod(0o600)

    def add(self, name: str, settings: dict[str, str]) -> None:
        """Add what every machine has of its own: ports, addresses, directories."""
        text = (self.home / name).read_text()
        self.write(name, text + "".join(f"{key}={value}\n" for key, value in settings.items()))

    def secret_of(self, access_key: str) -> str:
        accounts = read_data(self.home / "conf/plain_acl.yml")["accounts"]
        (secret,) = (each["secretKey"] for each in accounts if each["accessKey"] == access_key)
        return str(secret)

    @property
    def tls(self) -> Tls:
        ca, cert, key = (str(self.home / each) for each in ("ca.pem", "client.pem", "client.key"))
        return Tls(ca=ca, cert=cert, key=key)


def documented_files() -> dict[str, str]:
    """Return the files in the code blocks of the guide: each begins with a comment, its name."""
    blocks = re.findall(r"^```\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(
        re.findall(r"^# (\S+\.properties)\n((?:[^#\n].*\n)+)", "\n".join(blocks), re.MULTILINE)
    )


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "etc")


@pytest.fixture
def servers(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str, list[Pyromq]]]:
    """The addresses of the NameServer and of the broker, and their processes."""
    etc = installation.home
    monkeypatch.setenv(SECRET, installation.secret_of("pyromq-broker"))
    installation.add("namesrv.properties", {"kvConfigPath": str(tmp_path / "kvConfig.json")})
    with running(
        "namesrv", "--port", "0", "-c", str(etc / "namesrv.properties"), directory=tmp_path
    ) as namesrv:
        namesrv.wait_for("boot success")
        port = re.findall(r"listening on \S+:(\d+)", namesrv.printed)[0]
        own = {"listenPort": "0", "brokerIP1": "127.0.0.1"}
        own |= {"storePathRootDir": str(tmp_path / "store"), **PATIENT_PROPERTIES}
        installation.add("broker.properties", own)
        address = f"127.0.0.1:{port}"
        with running(
            "broker", "-n", address, "-c", str(etc / "broker.properties"), directory=tmp_path
        ) as broker:
            broker.wait_for("boot success")
            found = re.findall(r"The broker\[\S+, (\S+)\] boot success", broker.printed)[0]
            yield address, found, [namesrv, broker]
            assert [broker.end(), namesrv.end()] == [0, 0]


async def test_the_example_starts_and_lets_nobody_in(
    installation: Installation, servers: tuple[str, str, list[Pyromq]]
) -> None:
    namesrv, broker, processes = servers
    tls, topic = installation.tls, "example-topic"
    header = CreateTopicRequestHeader(topic, "TBW102", 1, 1, 6, "SINGLE_TAG").encode()
    create = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header)
    tools = read_data(installation.home / "conf/tools.yml")
    sign = acl.signer(tools["accessKey"], tools["secretKey"])
    for signer, code in ((None, ResponseCode.SYSTEM_ERROR), (sign, ResponseCode.SUCCESS)):
        client = RemotingClient(tls=client_tls(tls), before_request=signer)
        try:
            assert (await client.request(broker, create, DEADLINE)).code == code
        finally:
            await client.close()
    app: Any = {
        "access_key": "example-app",
        "secret_key": installation.secret_of("example-app"),
    }
    async with Producer(namesrv, group="example-group", tls=tls, **app) as producer:
        await producer.send(Message(topic, b"hello"))
        with pytest.raises(RocketMQError):  # it is not made by a send
            await producer.send(Message("another-topic", b"hello"))
    async with Producer(namesrv, tls=tls) as producer:
        with pytest.raises(BrokerError, match="No accessKey is configured"):
            await producer.send(Message(topic, b"hello"))
    for stranger in (False, Tls(ca=tls.ca)):
        async with Producer(namesrv, tls=stranger, send_timeout=3.0, **app) as producer:
            with pytest.raises(RocketMQError):
                await producer.send(Message(topic, b"hello"))
    printed = "".join(each.printed for each in processes)
    for complaint in ("has mode", "no effect", "unknown setting", "Traceback"):
        assert complaint not in printed
    for key in ("pyromq-admin", "pyromq-broker", "example-app"):
        assert installation.secret_of(key) not in printed


@pytest.mark.parametrize("name", ["broker.properties", "tls.properties"])
def test_a_missing_variable_stops_the_start(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    key, variable = "replicationSecretKey", SECRET
    if name == "tls.properties":
        monkeypatch.setenv(SECRET, "secret-of-a-broker")
        key, variable = "tls.server.keyPassword", "KEY_PASSWORD"
        installation.add(name, {key: "${KEY_PASSWORD}"})
    config = installation.home / "broker.properties"
    with running("broker", "-c", str(config), directory=tmp_path) as broker:
        assert broker.exit_code() == 1
    for word in (str(installation.home / name), key, variable, "not set"):
        assert word in broker.printed
    assert "Traceback" not in broker.printed
