"""The files of `packaging`: systemd's units, kernel settings, the container and its cluster.

No image is built here: that needs a container engine and a registry. The container's command and
health check run in a mount namespace with a read-only root and without capabilities instead.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from pyromq.base.settings import with_environment
from pyromq.broker.config import BrokerProperties, load_broker_properties
from pyromq.cli.doctor.finding import Level
from pyromq.cli.doctor.machine import examine_machine
from pyromq.cli.main import main
from pyromq.protocol.java.properties import parse_properties
from tests.support.apache_rocketmq import free_port
from tests.support.patience import DEADLINE, wait_until

ROOT: Final = Path(__file__).parents[1]
PACKAGING: Final = ROOT / "packaging"
UNITS: Final = sorted((PACKAGING / "systemd").iterdir())
SERVICES: Final = [path for path in UNITS if path.suffix == ".service"]
INSTALLED: Final = "/opt/pyromq/bin/pyromq"


def unavailable(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


# systemd


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Copies of the units with a command that exists here."""
    if shutil.which("systemd-analyze") is None:
        unavailable("systemd-analyze is not installed: apt-get install systemd")
    command = tmp_path / "pyromq"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace(INSTALLED, str(command)))
    return tmp_path


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", [path.name for path in UNITS])
def test_units_are_verified(units: Path, name: str) -> None:
    done = analyze("verify", units / name)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_verification_finds_mistakes(units: Path) -> None:
    path = units / "pyromq-broker.service"
    path.write_text(path.read_text().replace("ProtectHome=yes", "ProtectHme=yes"))
    assert "ProtectHme" in analyze("verify", path).stderr


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_services_are_hardened(units: Path, path: Path) -> None:
    done = analyze("security", "--offline=true", "--threshold=20", units / path.name)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_commands_of_services_exist(path: Path) -> None:
    """Options of the command lines are those of the commands."""
    (line,) = re.findall(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE)
    program, *arguments = line.split()
    assert program == INSTALLED
    # The command is parsed up to its help, which ends it before it does anything.
    result = CliRunner().invoke(main, [*arguments, "--help"])
    assert result.exit_code == 0, result.output


def test_servers_notify_and_have_a_watchdog() -> None:
    for name in ("broker", "namesrv"):
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string((PACKAGING / f"systemd/pyromq-{name}.service").read_text())
        service = parser["Service"]
        assert (service["Type"], service["User"]) == ("notify", "pyromq")
        assert int(service["WatchdogSec"]) > 0
        assert int(service["LimitNOFILE"]) == 1048576


def test_a_broker_runs_as_its_unit_describes(tmp_path: Path) -> None:
    """Type=notify: systemd-notify's protocol over a real socket, from a real broker."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(DEADLINE)
        settings = tmp_path / "broker.properties"
        settings.write_text(
            f"listenPort=0\nstorePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "pyromq", "broker", "-c", str(settings)],
            env={**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            heard: list[str] = []
            while "READY=1" not in heard or heard.count("WATCHDOG=1") < 3:
                heard += receiver.recv(1000).decode().splitlines()
            process.terminate()
            while "STOPPING=1" not in heard:
                heard += receiver.recv(1000).decode().splitlines()
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()
            process.wait()


def test_users_and_directories_are_those_of_the_units() -> None:
    users = (PACKAGING / "sysusers.d/pyromq.conf").read_text()
    directories = (PACKAGING / "tmpfiles.d/pyromq.conf").read_text()
    assert re.search(r"^u pyromq ", users, re.MULTILINE)
    for path in ("/etc/pyromq", "/var/lib/pyromq", "/var/log/pyromq", "/var/backups/pyromq"):
        assert re.search(rf"^d {path} 0750 pyromq pyromq", directories, re.MULTILINE)


def test_kernel_settings_exist_and_satisfy_the_doctor(tmp_path: Path) -> None:
    text = (PACKAGING / "sysctl.d/90-pyromq.conf").read_text()
    values = dict(re.findall(r"^([a-z0-9._-]+) = (\d+)$", text, re.MULTILINE))
    assert len(values) == sum(bool(re.match("[a-z]", line)) for line in text.splitlines())
    for name, value in values.items():
        if not (Path("/proc/sys") / name.replace(".", "/")).exists():
            assert not name.startswith("vm."), f"the kernel does not know {name}"
        path = tmp_path / "proc/sys" / name.replace(".", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    (tmp_path / "proc/sys/vm/dirty_background_ratio").write_text("0")
    (tmp_path / "proc/swaps").write_text("Filename\n/dev/sda2\n")
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {1 << 30} kB\nMemAvailable: {1 << 29} kB\n")
    found = [each for each in examine_machine(tmp_path) if each.check != "open files"]
    assert len(found) == 5
    assert {each.level for each in found} == {Level.OK}


# Containers


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, with their arguments."""
    text = (PACKAGING / "container/Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2]) for line in lines]


def argument(name: str) -> str:
    return [text for each, text in instructions() if each == name][-1]


def health_check() -> list[str]:
    command: list[str] = json.loads(argument("HEALTHCHECK").partition("CMD ")[2])
    return command


def test_the_containerfile_is_complete() -> None:
    known = {
        *("ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE"),
        *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
    }
    assert {name for name, _ in instructions()} <= known
    for name, text in instructions():
        if name == "COPY" and "--from" not in text:
            for source in text.split()[:-1]:
                assert (ROOT / source).exists(), source
    assert argument("USER") == "10911:10911"
    assert argument("STOPSIGNAL") == "SIGTERM"
    extras = re.search(r'"\.\[(.*)\]"', (PACKAGING / "container/Containerfile").read_text())
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text()
    for extra in extras[1].split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)
    assert json.loads(argument("ENTRYPOINT")) == ["pyromq"]
    assert health_check()[:3] == ["pyromq", "doctor", "--probe"]


def test_the_container_s_command_with_a_read_only_root(tmp_path: Path) -> None:
    if os.geteuid() or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        unavailable("needs the superuser, unshare and setpriv (util-linux)")
    volume = tmp_path / "volume"
    volume.mkdir()
    ports = {"9876": str(free_port()), "10911": str(free_port())}
    command = [part.replace("/var/lib/pyromq", str(volume)) for part in json.loads(argument("CMD"))]
    command += ["--namesrv-port", ports["9876"], "--broker-port", ports["10911"]]
    script = (
        f"mount --make-rprivate / && mount --bind {volume} {volume} && "
        "mount -o remount,bind,ro / && cd / && ! touch /written 2>/dev/null && "
        'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
    )
    environment = {**os.environ, "HOME": str(volume), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [
            *("unshare", "--mount", "sh", "-c", script, "sh"),
            *(sys.executable, "-m", "pyromq", *command),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    check = [re.sub(r":10911$", f":{ports['10911']}", part) for part in health_check()[1:]]

    def is_healthy() -> bool:
        assert process.poll() is None, process.stdout and process.stdout.read()
        return CliRunner().invoke(main, check).exit_code == 0

    try:
        wait_until(is_healthy)
        process.terminate()
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.communicate()
    assert (volume / "data/lock").is_file()
    assert CliRunner().invoke(main, check).exit_code == 1, "nobody is there any more"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((PACKAGING / "container/compose.yaml").read_text())
    return value


def brokers(compose: dict[str, Any]) -> dict[str, BrokerProperties]:
    content = (PACKAGING / "container/broker.properties").read_bytes()
    return {
        name: load_broker_properties(
            with_environment(parse_properties(content), service["environment"])
        )
        for name, service in compose["services"].items()
        if name.startswith("broker-")
    }


def test_every_container_is_confined(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert len(services) == 5
    volumes = set()
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        (volume,) = (each for each in service["volumes"] if each.endswith(":/var/lib/pyromq"))
        volumes.add(volume.partition(":")[0])
        for each in service["volumes"]:
            source = each.partition(":")[0]
            if source.startswith("."):
                assert (PACKAGING / "container" / source).exists()
                assert each.endswith(":ro")
        command = service["healthcheck"]["test"]
        assert command[:4] == ["CMD", "pyromq", "doctor", "--probe"]
        port = "9876" if name.startswith("namesrv") else "10911"
        assert f"127.0.0.1:{port}" in command
        help_text = CliRunner().invoke(main, [*service["command"], "--help"])
        assert help_text.exit_code == 0, help_text.output
    assert volumes == set(compose["volumes"])


def test_the_brokers_are_one_group(compose: dict[str, Any]) -> None:
    loaded = brokers(compose)
    assert set(loaded) == {"broker-n0", "broker-n1", "broker-n2"}
    peers = {each.store.dleger_peers for each in loaded.values()}
    assert peers == {";".join(f"n{number}-broker-n{number}:40911" for number in range(3))}
    for name, each in loaded.items():
        assert each.warnings == []
        assert each.broker.broker_ip1 == name == compose["services"][name]["hostname"]
        assert each.store.dleger_self_id == name.removeprefix("broker-")
        assert each.broker.listen_port == 10911
        assert each.store.root == Path("/var/lib/pyromq/store")
        named = {part.partition(":")[0] for part in (each.broker.namesrv_addr or "").split(";")}
        assert named == {each for each in compose["services"] if each.startswith("namesrv-")}
