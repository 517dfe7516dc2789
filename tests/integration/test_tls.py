"""TLS on every port of a cluster, with our own clients on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.client import (
    LitePullConsumer,
    Message,
    NameServerError,
    OptionError,
    Producer,
    PushConsumer,
    RemotingError,
    RocketMQError,
    StartFrom,
    Tls,
)
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import BrokerRole
from pyromq.tls.client import client_tls
from pyromq.tls.errors import TlsError
from tests.support.brokers import local_broker, small_store
from tests.support.certificates import Certificates
from tests.support.patience import DEADLINE, until


class Cluster:
    """A NameServer and a broker with the same TLS settings."""

    def __init__(self, name_server: NameServer, broker: Broker, certs: Certificates) -> None:
        self.name_server, self.broker, self.certs = name_server, broker, certs
        self.namesrv = f"127.0.0.1:{name_server.port}"

    @property
    def ports(self) -> dict[str, int]:
        main = self.broker.port
        return {"namesrv": self.name_server.port, "main": main, "fast": main - 2, "ha": main + 1}


@contextlib.asynccontextmanager
async def cluster(root: Path, mode: str = "enforcing", **changes: Any) -> AsyncIterator[Cluster]:
    certs = Certificates(root / "certs")
    values = certs.values(mode, **changes)
    name_server = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(root / "kv.json"),
            **values,
        )
    )
    await name_server.start()
    address = f"127.0.0.1:{name_server.port}"
    broker = Broker(local_broker(namesrv_addr=address, **values), small_store(root / "store"))
    try:
        await broker.start()
        yield Cluster(name_server, broker, certs)
    finally:
        await broker.stop()
        await name_server.stop()


async def ask(port: int, tls: Tls | None) -> RemotingCommand:
    client = RemotingClient(tls=None if tls is None else client_tls(tls))
    try:
        command = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
        return await client.request(f"127.0.0.1:{port}", command, DEADLINE)
    finally:
        await client.close()


async def test_every_kind_of_client_over_mutual_tls(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        tls = running.certs.tls()
        seen: list[bytes] = []

        async def handle(message: Any) -> None:
            seen.append(message.body)

        async with (
            Producer(running.namesrv, group="p", tls=tls, trace=True) as producer,
            PushConsumer(
                running.namesrv,
                group="g",
                handler=handle,
                subscriptions={"t": "*"},
                start_from=StartFrom.FIRST,
                tls=tls,
            ),
            LitePullConsumer(
                running.namesrv, group="lite", start_from=StartFrom.FIRST, tls=tls
            ) as lite,
        ):
            large = bytes(range(256)) * 4096
            await producer.send(Message("t", b"one"))
            await producer.send_batch([Message("t", b"two"), Message("t", b"three")])
            await producer.send(Message("t", large))
            expected = sorted([b"one", b"two", b"three", large])
            await until(lambda: sorted(seen) == expected)
            await lite.subscribe("t")
            read = [await asyncio.wait_for(anext(lite), DEADLINE) for _ in expected]
            assert sorted(each.body for each in read) == expected


@pytest.mark.parametrize("port", ["namesrv", "main", "fast"])
async def test_every_port_wants_tls_and_a_certificate(tmp_path: Path, port: str) -> None:
    async with cluster(tmp_path) as running:
        number, certs = running.ports[port], running.certs
        assert (await ask(number, certs.tls())).is_response
        with pytest.raises(RemotingError, match=r"it answered nothing and may want TLS"):
            await ask(number, None)
        with pytest.raises(RemotingError, match=r"wants a client certificate|was lost"):
            await ask(number, certs.tls(cert=None, key=None))
        with pytest.raises(RemotingError):
            await ask(number, certs.tls(**certs.foreign()))
        with pytest.raises(RemotingError):
            await ask(number, certs.tls(**certs.expired()))


async def test_a_permissive_cluster_serves_both(tmp_path: Path) -> None:
    async with cluster(tmp_path, "permissive") as running:
        for tls in (False, running.certs.tls()):
            async with Producer(running.namesrv, tls=tls) as producer:
                await producer.send(Message("t", b"x"))


async def test_the_client_says_why_it_does_not_connect(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        certs = running.certs
        for tls, reason in (
            (certs.tls(server_name="elsewhere"), "Hostname mismatch, .* not valid for 'elsewhere'"),
            (certs.tls(ca=None), "self-signed certificate in certificate chain"),
            (False, "may want TLS"),
        ):
            async with Producer(running.namesrv, tls=tls) as producer:
                with pytest.raises(NameServerError, match=reason):
                    await producer.send(Message("t", b"x"))
        with pytest.raises(OptionError, match=r"tls\.ca=.*nothing: No such file"):
            Producer(running.namesrv, tls=certs.tls(ca=certs["nothing"]))


async def test_tls_to_a_plain_port_is_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        cluster(tmp_path, "disabled") as running,
        Producer(running.namesrv, tls=running.certs.tls()) as producer,
    ):
        with pytest.raises(RocketMQError, match=r"serves no TLS on this port \(tls.server.mode"):
            await producer.send(Message("t", b"x"))
        assert "limit 16777216; is it a TLS handshake?: closed" in caplog.text


async def test_a_server_certificate_that_has_expired_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path, "permissive") as running:
        certs = running.certs
        cert, key = certs.authority().issue("late", ["127.0.0.1"], days=-1)
        certs.write("server.pem", cert)
        certs.write("server.key", key)
        await running.name_server.tls.reload_if_changed()
        async with Producer(running.namesrv, tls=certs.tls()) as producer:
            with pytest.raises(NameServerError, match="certificate has expired"):
                await producer.send(Message("t", b"x"))


async def test_a_broker_with_unusable_files_does_not_start(tmp_path: Path) -> None:
    certs = Certificates(tmp_path / "certs")
    certs.write("server.key", b"nothing")
    broker = Broker(local_broker(**certs.values()), small_store(tmp_path / "store"))
    with pytest.raises(TlsError, match=r"tls\.server\.keyPath=.*: no private key in PEM format"):
        await broker.start()
    await broker.stop()


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
async def test_replicas_follow_over_mutual_tls(tmp_path: Path, mode: str) -> None:
    async with cluster(tmp_path, mode, tls_enable=True) as running:
        store = small_store(tmp_path / "replica", broker_role=BrokerRole.SLAVE)
        config = local_broker(
            namesrv_addr=running.namesrv,
            broker_id=1,
            **running.certs.values(mode, tls_enable=True),
        )
        replica = Broker(config, store)
        await replica.start()
        try:
            tls = running.certs.tls()
            async with Producer(running.namesrv, tls=tls) as producer:
                for number in range(100):
                    await producer.send(Message("t", b"%d" % number * 1000))
            master, follower = running.broker.store, replica.store
            assert master is not None
            assert follower is not None
            await until(lambda: follower.max_physical_offset == master.max_physical_offset > 0)
            assert replica.replication is not None
            assert replica.replication.is_following()
        finally:
            await replica.stop()


async def test_a_plain_replica_of_an_enforcing_master_gets_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports["ha"])
        writer.write(b"\0" * 8)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), DEADLINE) == b""
        writer.close()


async def test_certificates_change_under_load_without_a_lost_connection(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        certs = running.certs
        lost: list[str] = []
        done = asyncio.Event()
        sent = 0

        async def send() -> None:
            nonlocal sent
            async with Producer(running.namesrv, tls=certs.tls()) as producer:
                while not done.is_set():
                    try:
                        await producer.send(Message("t", b"x" * 1000))
                        sent += 1
                    except RocketMQError as error:
                        lost.append(str(error))

        senders = [asyncio.create_task(send()) for _ in range(3)]
        await until(lambda: sent > 100)
        connections = [*running.broker._servers[0].connections]
        serials = set()
        wanted: list[int] = []
        for _ in range(5):
            cert, key = certs.renew_server()
            certs.write("server.pem", cert[: len(cert) // 2])  # half way
            await running.broker._tls.reload_if_changed()
            certs.write("server.pem", cert)
            await running.broker._tls.reload_if_changed()
            certs.write("server.key", key)
            await running.broker._tls.reload_if_changed()
            serials.add(await serial_number(running.broker.port, certs))
            wanted.append(sent + 20)
            await until(lambda: sent >= wanted[-1])
        assert len(connections) >= 3
        assert set(connections) <= running.broker._servers[0].connections
        done.set()
        await asyncio.gather(*senders)
        assert lost == []
        assert len(serials) == 5


async def serial_number(port: int, certs: Certificates) -> str:
    tls = client_tls(certs.tls())
    assert tls is not None
    _, writer = await asyncio.open_connection("127.0.0.1", port, **tls.arguments("127.0.0.1"))
    number = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return str(number)


@pytest.mark.parametrize(
    ("version", "is_spoken"),
    [("tls1", False), ("tls1_1", False), ("tls1_2", True), ("tls1_3", True)],
)
async def test_openssl_finds_nothing_below_tls_1_2(
    tmp_path: Path, version: str, is_spoken: bool
) -> None:
    async with cluster(tmp_path) as running:
        certs = running.certs
        for port in running.ports.values():
            found = await asyncio.to_thread(
                subprocess.run,
                [
                    *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", f"-{version}"),
                    # Without this the client itself refuses old versions.
                    *("-cipher", "DEFAULT@SECLEVEL=0", "-CAfile", certs["ca.pem"]),
                    *("-cert", certs["client.pem"], "-key", certs["client.key"]),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            text = (found.stdout + found.stderr).decode()
            assert ("Verify return code: 0 (ok)" in text and "Cipher is (NONE)" not in text) is (
                is_spoken
            ), text
            if not is_spoken:
                assert "alert protocol version" in text
