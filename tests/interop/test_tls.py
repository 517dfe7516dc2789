"""Java's clients, mqadmin and the Go client against our servers with TLS on every port.

The Java programs get RocketMQ's own system properties, as an operator sets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pyromq.client import Message, Producer, SendStatus, Tls
from tests.interop.client_driver import ClientDriver, ClientError
from tests.interop.client_programs import go_driver, java_driver
from tests.interop.mqadmin import mqadmin, run
from tests.interop.servers import PyromqServer
from tests.support.apache_rocketmq import ApacheRocketMQ, java_or_skip
from tests.support.certificates import Certificates

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

#: RocketMQ 4.9 and 5, both as an application with its default settings would use them.
VERSIONS = ["4.9.7", "5.3.3"]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def enforcing(certs: Certificates) -> Iterator[PyromqServer]:
    """Mutual TLS, and nothing else."""
    properties = {"tls.config.file": certs["tls.properties"], "traceTopicEnable": "true"}
    with PyromqServer(broker_properties=properties) as server:
        yield server


@pytest.fixture(scope="module")
def test_mode() -> Iterator[PyromqServer]:
    """What a Java server does unless it is told otherwise: both kinds, a certificate of its own."""
    properties = {"tls.server.mode": "permissive", "tls.test.mode.enable": "true"}
    with PyromqServer(broker_properties=properties) as server:
        yield server


def mutual(certs: Certificates, **changes: str) -> list[str]:
    """The system properties of a Java client that verifies the server and has a certificate."""
    properties = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": certs["ca.pem"],
        "tls.client.certPath": certs["client.pem"],
        "tls.client.keyPath": certs["client.key"],
        **changes,
    }
    return [f"-D{key}={value}" for key, value in properties.items() if value]


def exchange(client: ClientDriver, namesrv: str, topic: str, **options: Any) -> None:
    """Send in every way, and consume everything."""
    client.producer("producer", namesrv, f"{topic}-producers", **options)
    bodies = ["x" * 1_000_000]
    client.send("producer", topic, [{"body": bodies[0]}])
    for mode in ("sync", "async", "oneway"):
        more = [f"{topic}-{mode}-{number}" for number in range(20)]
        client.send("producer", topic, [{"body": body} for body in more], mode)
        bodies += more
    client.consumer("consumer", namesrv, f"{topic}-consumers", topic, **options)
    client.wait_bodies("consumer", bodies)
    client.close_all()


@pytest.mark.parametrize("version", VERSIONS)
def test_java_over_mutual_tls(enforcing: PyromqServer, certs: Certificates, version: str) -> None:
    with java_driver(version, *mutual(certs)) as client:
        exchange(client, enforcing.namesrv_address, f"Mutual-{version.replace('.', '-')}")


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("4.9.7", "plain"),
        ("4.9.7", "no certificate"),
        ("4.9.7", "foreign"),
        ("4.9.7", "expired"),
        ("5.3.3", "no certificate"),
    ],
)
def test_java_without_a_good_certificate_gets_nothing(
    enforcing: PyromqServer, certs: Certificates, version: str, kind: str
) -> None:
    options = []
    if kind == "no certificate":
        options = mutual(certs, **{"tls.client.certPath": "", "tls.client.keyPath": ""})
    elif kind != "plain":
        files = certs.foreign() if kind == "foreign" else certs.expired()
        options = mutual(
            certs, **{"tls.client.certPath": files["cert"], "tls.client.keyPath": files["key"]}
        )
    with java_driver(version, *options) as client:
        client.producer("producer", enforcing.namesrv_address, "refused")
        with pytest.raises(ClientError):
            client.send("producer", "Refused", [{"body": "x"}])
    assert "Refused" not in enforcing.log()


@pytest.mark.parametrize("version", VERSIONS)
def test_java_with_its_defaults_over_a_certificate_of_test_mode(
    test_mode: PyromqServer, version: str
) -> None:
    topic = f"TestMode-{version.replace('.', '-')}"
    with java_driver(version, "-Dtls.enable=true") as client:
        exchange(client, test_mode.namesrv_address, topic)
    with java_driver(version) as client:
        exchange(client, test_mode.namesrv_address, f"{topic}-plain")


def test_mqadmin_over_mutual_tls(enforcing: PyromqServer, certs: Certificates) -> None:
    with mqadmin(*mutual(certs)) as admin:
        outcome = run(admin, enforcing.namesrv_address, ["clusterList"])
        assert enforcing.broker_address in outcome.out, outcome


def test_the_go_client_has_no_tls(enforcing: PyromqServer, test_mode: PyromqServer) -> None:
    """Version 2.1.2, the latest, speaks plain only: a permissive port serves it."""
    with go_driver() as client:
        exchange(client, test_mode.namesrv_address, "Go")
        client.producer("refused", enforcing.namesrv_address, "go-refused")
        with pytest.raises(ClientError):
            client.send("refused", "GoRefused", [{"body": "x"}])


async def test_our_broker_and_client_over_tls_at_java_s_nameserver() -> None:
    """Both accept its certificate of test mode, if they are told to."""
    java_or_skip()
    properties = {"tls.server.mode": "permissive", "tls.test.mode.enable": "true"}
    java = ApacheRocketMQ(namesrv_only=True)
    await asyncio.to_thread(java.start)
    broker = PyromqServer(
        namesrv_address=java.namesrv_address,
        broker_properties={**properties, "tls.enable": "true"},
    )
    try:
        await asyncio.to_thread(broker.start)
        async with Producer(java.namesrv_address, tls=Tls(verify=False)) as producer:
            result = await producer.send(Message("OverTls", b"x"))
            assert result.status is SendStatus.SEND_OK
        assert "TLS of own connections: any certificate is accepted" in broker.log()
    finally:
        await asyncio.to_thread(broker.kill)
        broker.clean_up()
        await asyncio.to_thread(java.kill)
