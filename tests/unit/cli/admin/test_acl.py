from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.testing import Cluster
from tests.unit.cli.admin.admin_runs import invoke, output

ACCOUNTS = "accounts:\n- {accessKey: admin_key, secretKey: admin_secret, admin: true}\n"
KEYS = "--access-key admin_key --secret-key admin_secret"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with access control."""
    file = tmp_path / "home/conf/plain_acl.yml"
    file.parent.mkdir(parents=True)
    file.write_text(ACCOUNTS)
    settings = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    with Cluster(settings=settings) as cluster:
        yield cluster


def test_accounts(guarded: Cluster) -> None:
    namesrv, (broker,) = guarded.namesrv, guarded.brokers
    target = f"-b {broker.address} {KEYS}"
    updated = output(
        namesrv,
        f"updateAclConfig {target} -a third_key -s third_secret -t 'a=PUB|SUB,b=SUB' -m false",
    )
    assert updated.startswith(f"create or update plain access config to {broker.address} success.")
    assert "third_secret" not in updated
    shown = output(namesrv, f"getAclConfig {target}").splitlines()
    assert "  topicPerms        : [a=PUB|SUB, b=SUB]" in shown
    assert "  whiteRemoteAddress:" in shown
    versions = output(namesrv, f"clusterAclConfigVersion -c DefaultCluster {KEYS}").splitlines()
    assert versions[0].split()[-1] == "#AclLastUpdateTime"
    assert versions[-1] == "get cluster's plain access config version success."
    versions = output(namesrv, f"clusterAclConfigVersion {target}").splitlines()
    assert len(versions) == 2
    assert "third_key" in output(namesrv, f"deleteAclConfig {target} -a third_key --dry-run")
    assert output(namesrv, f"deleteAclConfig {target} -a third_key").splitlines() == [
        f"delete plain access config account from {broker.address} success.",
        "account's accesskey is:third_key",
    ]
    assert "third_key" not in output(namesrv, f"getAclConfig {target}")


def test_white_list(guarded: Cluster) -> None:
    namesrv, (broker,) = guarded.namesrv, guarded.brokers
    done = output(namesrv, f"updateGlobalWhiteAddr -b {broker.address} -g 10.0.0.1,10.0.0.2 {KEYS}")
    assert done == f"update global white remote addresses to {broker.address} success.\n"
    shown = output(namesrv, f"getAclConfig -c DefaultCluster {KEYS}")
    assert "globalWhiteRemoteAddresses: [10.0.0.1, 10.0.0.2]" in shown


def test_a_broker_without_access_control(rocketmq: Cluster) -> None:
    result = invoke(rocketmq.namesrv, f"getAclConfig -b {rocketmq.brokers[0].address}")
    assert result.exit_code == 1
    assert "no access control" in result.output
