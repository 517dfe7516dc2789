from __future__ import annotations

from pyromq.testing import Cluster
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


def test_settings(rocketmq: Cluster) -> None:
    namesrv = rocketmq.namesrv
    assert output(namesrv, "updateNamesrvConfig -k clusterTest -v true").splitlines() == [
        f"update name server config success![{namesrv}]",
        "clusterTest : true",
    ]
    shown = output(namesrv, "getNamesrvConfig").splitlines()
    assert shown[0] == f"============{namesrv}============"
    assert f"{'clusterTest':<50}=  true" in shown
    assert as_json(namesrv, "getNamesrvConfig")[0]["settings"]["clusterTest"] == "true"


def test_keys_and_values(rocketmq: Cluster) -> None:
    namesrv = rocketmq.namesrv
    assert output(namesrv, "updateKvConfig -s space -k name -v 'a value'") == (
        "create or update kv config to namespace success.\n"
    )
    assert as_json(namesrv, "getKvConfig -s space") == {"name": "a value"}
    assert output(namesrv, "getKvConfig -s space -k name") == f"{'name':<50}=  a value\n"
    assert "name" in output(namesrv, "deleteKvConfig -s space -k name --dry-run")
    assert output(namesrv, "deleteKvConfig -s space -k name") == (
        "delete kv config from namespace success.\n"
    )
    assert invoke(namesrv, "getKvConfig -s space -k name").exit_code == 3


def test_write_permission(rocketmq: Cluster) -> None:
    namesrv = rocketmq.namesrv
    wiped = output(namesrv, "wipeWritePerm -b broker-0")
    assert wiped.startswith(f"wipe write perm of broker[broker-0] in name server[{namesrv}] OK, ")
    assert int(wiped.split()[-1]) > 0
    assert as_json(namesrv, "addWritePerm -b broker-0")[0]["topics"] == int(wiped.split()[-1])
    assert invoke(namesrv, "wipeWritePerm -b broker-9").exit_code == 3
