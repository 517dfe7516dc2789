from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from pyromq.acl.files import AclFileError
from pyromq.client import (
    BrokerError,
    ClientOptions,
    Message,
    Producer,
    PushConsumer,
    RocketMQError,
    StartFrom,
)
from pyromq.testing import Cluster
from pyromq.testing.security import BROKERS, OPERATOR, Security
from tests.support.patience import DEADLINE, PATIENT_PROPERTIES, wait_until

READER = {"accessKey": "reader-key", "secretKey": "reader-secret", "topicPerms": ["orders=SUB"]}


def secure(**options: Any) -> Cluster:
    return Cluster(**{"tls": True, "acl": True, "settings": PATIENT_PROPERTIES, **options})


def test_clients_and_the_cluster_itself_work() -> None:
    got: list[bytes] = []
    with secure(settings={**PATIENT_PROPERTIES, "messageDelayLevel": "10ms 10ms"}) as cluster:
        options = cluster.client_options
        cluster.create_topic("orders", queues=2)
        with (
            Producer.sync(cluster.namesrv, **options) as producer,
            PushConsumer.sync(
                cluster.namesrv,
                group="billing",
                handler=lambda message: got.append(message.body),
                subscriptions=["orders"],
                start_from=StartFrom.FIRST,
                **options,
            ),
        ):
            producer.send(Message("orders", b"one book"))
            wait_until(lambda: got == [b"one book"])
        assert [each.body for each in cluster.drain("orders", 1, timeout=DEADLINE)] == got
        cluster.brokers[0].restart()
        assert cluster.message_count("orders") == 1
        cluster.reset()
        assert cluster.message_count("orders") == 0


@pytest.mark.parametrize("missing", ["tls", "keys"])
def test_nobody_else_gets_in(missing: str) -> None:
    with secure() as cluster:
        cluster.create_topic("orders")
        options: ClientOptions = {**cluster.client_options}
        if missing == "tls":
            options["tls"] = False
        else:
            del options["access_key"], options["secret_key"]
        problem = "may want TLS" if missing == "tls" else "No accessKey"
        with (
            Producer.sync(cluster.namesrv, send_timeout=3.0, **options) as one,
            pytest.raises(RocketMQError, match=problem),
        ):
            one.send(Message("orders", b"x"))
        assert cluster.message_count("orders") == 0


def test_accounts_of_a_test() -> None:
    with secure(acl=[READER]) as cluster:
        cluster.create_topic("orders")
        keys = {"access_key": "reader-key", "secret_key": "reader-secret"}
        options: Any = {**cluster.client_options, **keys}
        with (
            Producer.sync(cluster.namesrv, **options) as producer,
            pytest.raises(BrokerError, match="No default permission for topic:orders"),
        ):
            producer.send(Message("orders", b"x"))


def test_replicas() -> None:
    with (
        secure(replicas=1) as cluster,
        Producer.sync(cluster.namesrv, **cluster.client_options) as producer,
    ):
        (master,) = cluster.brokers
        (replica,) = master.replicas
        producer.send(Message("orders", b"one book"))
        master.await_replicas(timeout=DEADLINE)
        master.kill()
        replica.promote()
        producer.send(Message("orders", b"another one"))
        master.rejoin()
        assert len(cluster.drain("orders", count=2, timeout=DEADLINE)) == 2


def test_a_raft_group() -> None:
    with (
        secure(raft=3) as cluster,
        Producer.sync(cluster.namesrv, **cluster.client_options) as producer,
    ):

        def is_sent(body: bytes) -> bool:
            try:
                producer.send(Message("orders", body))
            except RocketMQError:
                return False
            return True

        wait_until(lambda: is_sent(b"one book"))
        killed = cluster.await_leader(timeout=DEADLINE)
        killed.kill()
        cluster.await_leader(timeout=DEADLINE)
        wait_until(lambda: is_sent(b"another one"))
        killed.start()
        cluster.await_committed(timeout=DEADLINE)
        assert len(cluster.drain("orders", count=2, timeout=DEADLINE)) >= 2


def test_an_open_cluster_has_no_options() -> None:
    with Cluster() as cluster:
        assert cluster.client_options == {}


def test_a_bad_account_is_refused_at_the_start() -> None:
    cluster = Cluster(acl=[{**READER, "topicPerms": ["orders=READ"]}])
    with pytest.raises(AclFileError, match="READ"):
        cluster.start()


def test_files_and_settings(tmp_path: Path) -> None:
    security = Security(tls=True, acl=True)
    security.prepare(tmp_path)
    accounts = tmp_path / "home/conf/plain_acl.yml"
    assert stat.S_IMODE(accounts.stat().st_mode) == 0o600
    assert security.server_settings.keys() == {"tls.config.file", "aclEnable", "rocketmqHome"}
    assert security.broker_settings["replicationAccessKey"] == BROKERS
    assert security.operator_options["access_key"] == OPERATOR
    assert security.client_options["secret_key"] != security.operator_options["secret_key"]
