"""mqadmin sees a pyromq replica, and the master that it becomes by `pyromq broker promote`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import mqadmin
from tests.interop.client_driver import ClientDriver
from tests.interop.servers import PyromqServer
from tests.support.patience import wait_until
from tests.unit.cli.processes import running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def broker_ids(admin: ClientDriver, namesrv: str) -> list[str]:
    """The ids in the output of clusterList."""
    lines = mqadmin.run(admin, namesrv, ["clusterList"]).out.splitlines()
    return [line.split()[2] for line in lines if "broker-a" in line]


def test_mqadmin_sees_the_promotion(tmp_path: Path) -> None:
    role = {"brokerName": "broker-a", "brokerRole": "SLAVE", "brokerId": "1"}
    send = ["sendMessage", "-t", "Orders", "-p", "body", "-b", "broker-a", "-i", "0"]
    with (
        mqadmin.mqadmin() as admin,
        PyromqServer(namesrv_only=True) as name_server,
        PyromqServer(
            namesrv_address=name_server.namesrv_address, broker_properties=role
        ) as replica,
    ):
        namesrv = name_server.namesrv_address
        update = ["updateTopic", "-t", "Orders", "-r", "2", "-w", "2", "-b", replica.broker_address]
        wait_until(lambda: broker_ids(admin, namesrv) == ["1"])
        refused = mqadmin.run(admin, namesrv, update)
        assert "Can't modify topic or subscription group from slave broker" in refused.error

        with running("broker", "promote", replica.broker_address, directory=tmp_path) as command:
            assert command.exit_code() == 0, command.printed
        assert "promoted: " in command.printed

        assert broker_ids(admin, namesrv) == ["0"]
        assert "create topic to " in mqadmin.run(admin, namesrv, update).out
        assert "SEND_OK" in mqadmin.run(admin, namesrv, send).out
        with running("broker", "promote", replica.broker_address, directory=tmp_path) as command:
            assert command.exit_code() == 1
        assert "refused  the broker is a master, ASYNC_MASTER" in command.printed
