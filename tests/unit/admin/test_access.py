from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.admin import Admin, NotPermittedError, UnsupportedRequestError
from pyromq.admin.access import Account
from pyromq.admin.topics import TopicConfiguration
from pyromq.testing import Cluster

ACCOUNTS = """\
globalWhiteRemoteAddresses: [10.0.0.1]
accounts:
- {accessKey: admin_key, secretKey: admin_secret, admin: true}
- {accessKey: plain_key, secretKey: plain_secret, topicPerms: [orders=PUB]}
"""


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster with access control."""
    file = tmp_path / "home/conf/plain_acl.yml"
    file.parent.mkdir(parents=True)
    file.write_text(ACCOUNTS)
    settings = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    async with Cluster(settings=settings) as cluster:
        yield cluster


async def test_accounts_come_and_go(guarded: Cluster) -> None:
    (broker,) = guarded.brokers
    async with Admin(guarded.namesrv, access_key="admin_key", secret_key="admin_secret") as admin:
        (before,) = await admin.access.versions(broker=broker.address)
        account = Account(
            "third_key",
            "third_secret",
            "10.0.0.*",
            default_topic_permission="DENY",
            default_group_permission="SUB",
            topic_permissions=("a=PUB", "b=SUB"),
            group_permissions=("c=SUB",),
        )
        assert await admin.access.update(account, cluster="DefaultCluster") == [broker.address]

        (found,) = await admin.access.configurations(cluster="DefaultCluster")
        assert found.global_white_addresses == ("10.0.0.1",)
        assert [each.access_key for each in found.accounts] == [
            "admin_key",
            "plain_key",
            "third_key",
        ]
        assert found.accounts[2] == account
        assert "third_secret" not in repr(found)
        (after,) = await admin.access.versions(cluster="DefaultCluster")
        assert after.counter == before.counter + 1
        assert after.path.endswith("plain_acl.yml")
        assert (after.cluster, after.broker_name) == ("DefaultCluster", "broker-0")

        assert await admin.access.delete("third_key", broker=broker.address) == [broker.address]
        await admin.access.update_global_white_list("10.0.0.2,10.0.0.3", broker=broker.address)
        (found,) = await admin.access.configurations(broker=broker.address)
        assert len(found.accounts) == 2
        assert found.global_white_addresses == ("10.0.0.2", "10.0.0.3")


async def test_others_may_not(guarded: Cluster) -> None:
    (broker,) = guarded.brokers
    async with Admin(guarded.namesrv, access_key="plain_key", secret_key="plain_secret") as admin:
        with pytest.raises(NotPermittedError, match="administrator"):
            await admin.topics.update(TopicConfiguration("orders"), broker=broker.address)


async def test_a_broker_without_access_control(rocketmq: Cluster, admin: Admin) -> None:
    with pytest.raises(UnsupportedRequestError, match="no access control"):
        await admin.access.configurations(broker=rocketmq.brokers[0].address)
