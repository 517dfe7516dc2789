"""`pyromq standalone --replicas`: masters and replicas in processes of one command."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.main import main
from pyromq.cli.standalone import standalone
from pyromq.client import PushConsumer, StartFrom
from tests.support.apache_rocketmq import free_port
from tests.support.patience import PATIENT_PROPERTIES, wait_until
from tests.unit.cli.processes import Pyromq, running
from tests.unit.cli.test_standalone_brokers import ANY_PORTS, namesrv_of, read, send

SETTINGS = {
    "brokerName": "shop",
    "brokerRole": "SYNC_MASTER",
    "slaveTimeout": str(10 * 60 * 1000),
    **PATIENT_PROPERTIES,
}


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Run a SYNC_MASTER with one replica: what is acknowledged is on both."""
    file = tmp_path / "broker.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))
    # No port that the system gives to others while the broker is away.
    port = str(free_port(-2, 1, 2, 4, 5))
    ports = ["--namesrv-port", "0", "--broker-port", port]
    return ["standalone", *ports, "-c", str(file), "--replicas", "1"]


def guide(command: Pyromq) -> tuple[str, str, int]:
    """The name and address of the replica, and the process of the master."""
    namesrv_of(command)
    name, address = re.findall(r"^(\S+) at (\S+) is a replica\.", command.printed, re.MULTILINE)[0]
    pid = re.findall(r"^    kill -9 (\d+)$", command.printed, re.MULTILINE)[0]
    assert f"    pyromq broker promote {address}\n" in command.printed
    return name, address, int(pid)


def test_a_failover_and_the_next_start(tmp_path: Path, arguments: list[str]) -> None:
    before = (tmp_path / "broker.conf").read_text()
    with running(*arguments, directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        assert f"stored in {tmp_path}/data, {tmp_path}/data/broker-0-replica-1." in command.printed
        name, address, master = guide(command)
        assert name == "shop-replica-1"
        assert send(namesrv, "orders", 10) == {"shop": 10}
        topics = tmp_path / "data" / "broker-0-replica-1" / "config" / "topics.json"
        wait_until(lambda: topics.exists() and '"orders"' in topics.read_text())
        os.kill(master, signal.SIGKILL)
        command.wait_for("shop died (killed by SIGKILL): restart 1 of 5 in 60 s")
        command.wait_for("shop was the master: promote a replica now")

        seen: list[bytes] = []
        with PushConsumer.sync(
            namesrv,
            group="billing",
            handler=lambda message: seen.append(message.body),
            subscriptions=["orders"],
            start_from=StartFrom.FIRST,
        ):
            wait_until(lambda: len(set(seen)) == 10)
        promotion = CliRunner().invoke(main, ["broker", "promote", address])
        assert promotion.exit_code == 0, promotion.output
        command.wait_for("shop was replaced and returns as replica 1")
        command.wait_for("shop serves again, as process ")
        assert send(namesrv, "orders", 10) == {"shop": 10}
        assert command.end() == 0, command.printed
    assert "Traceback" not in command.printed
    assert (tmp_path / "broker.conf").read_text() == before, "all brokers share this file"
    stores = [tmp_path / "data", tmp_path / "data" / "broker-0-replica-1"]
    assert not any((store / "abort").exists() for store in stores)

    with running(*arguments, directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        assert guide(command)[0] == "shop", "the promoted broker is not the master any more"
        assert len(read(namesrv, "orders", 20, "shop")) == 10
        send(namesrv, "orders", 1)
        assert command.end(signal.SIGTERM) == 0, command.printed


def test_a_diverged_replica_is_left_out_and_named(tmp_path: Path, arguments: list[str]) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    with running(*arguments, directory=tmp_path) as command:
        send(namesrv_of(command), "orders", 5)
        assert command.end() == 0, command.printed
    with running(*arguments[:-2], directory=tmp_path) as command:
        assert command.exit_code() == 1
        assert command.printed.splitlines()[-1] == (
            f"Error: 1 broker without replicas would not serve the messages in {data}/"
            "broker-0-replica-1: start with --replicas 1, or move what you do not need elsewhere"
        )
    # The broker runs alone and is replaced afterwards: it has messages that nobody else has.
    (data / "broker-0-replica-1").rename(aside)
    with running("standalone", *ANY_PORTS, directory=tmp_path) as command:
        send(namesrv_of(command), "orders", 5)
        assert command.end() == 0, command.printed
    aside.rename(data / "broker-0-replica-1")
    file = data / "broker-0-replica-1" / "config" / "broker.properties"
    file.write_text("brokerRole=ASYNC_MASTER\nbrokerId=0\n")
    with running(*arguments, directory=tmp_path) as command:
        namesrv = namesrv_of(command)
        repair = f"run: pyromq store truncate {data} --to "
        command.wait_for("shop is not restarted: broker stopped: this log is longer than the")
        command.wait_for(repair)
        assert len(read(namesrv, "orders", 5, "shop")) == 5, "the others do not run any more"
        assert command.end() == 1
    assert re.search(rf"^Error: shop: .*{re.escape(repair)}", command.printed, re.MULTILINE)
    assert "serves again" not in command.printed

    shutil.copy(file, data / "config")
    result = CliRunner().invoke(standalone, ["--replicas", "1", "--data", str(data)])
    assert result.exit_code == 1
    assert "two brokers of one name would be masters" in result.output


@pytest.mark.parametrize("value", ["-1", "9", "one", ""])
def test_a_senseless_number_of_replicas_is_refused(value: str) -> None:
    result = CliRunner().invoke(standalone, ["--replicas", value])
    assert result.exit_code == 2
    assert "--replicas" in result.output


@pytest.mark.parametrize(
    "setting", ["brokerRole=SLAVE\nbrokerId=1", "haMasterAddress=10.0.0.1:10912"]
)
def test_settings_that_contradict_replicas_are_refused(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(setting)
    result = CliRunner().invoke(
        standalone, ["--replicas", "1", "-c", str(file), "--data", str(tmp_path / "data")]
    )
    assert result.exit_code == 1
    assert "cannot be combined with --replicas" in result.output
