"""A NameServer and brokers, of pyromq or of Apache: what the client cases run against.

Each broker keeps its port and its store when it is restarted, so clients find it again by
themselves. Called by the interop tests; every call blocks.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pyromq.client import ClientOptions
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.bodies import TopicRouteData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader, GetRouteInfoRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.tls.client import client_tls
from tests.interop.servers import PyromqServer
from tests.support.access import write_accounts
from tests.support.apache_rocketmq import (
    QUICK_JVM_OPTIONS,
    VERSION,
    ApacheRocketMQ,
    free_port,
    java_or_skip,
)
from tests.support.certificates import Certificates
from tests.support.patience import DEADLINE

#: Apache's is 4.9.7 unless the name says otherwise. pyromq-tls wants a certificate of each client
#: that uses TLS, and takes plain ones, too. pyromq-secure takes nobody without a certificate and a
#: signature: enforcing mutual TLS, and strict access control on brokers and the NameServer.
Kind = Literal["pyromq", "pyromq-tls", "pyromq-secure", "apache", "apache-5.3.3"]
Server = PyromqServer | ApacheRocketMQ

#: Waiting made short, and what is off by default made available.
SETTINGS = {
    "messageDelayLevel": "1s 3s " + " ".join(["1s"] * 16),
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}

#: Accounts of pyromq-secure. Clients use any topic and group, and read traces.
_ACCOUNTS = """accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: brokers, secretKey: brokers-secret, peer: true}
- accessKey: clients-key
  secretKey: clients-secret-äöü
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [RMQ_SYS_TRACE_TOPIC=PUB|SUB]
"""
_OPERATOR = ("operator", "operator-secret")
_CLIENTS: ClientOptions = {"access_key": "clients-key", "secret_key": "clients-secret-äöü"}
#: Services of 5.x that no client here uses, and that take a third of a core while idle: timers of
#: any length, and the queues of pop consumption.
_WITHOUT_IDLE_SERVICES = {"timerWheelEnable": "false", "reviveQueueNum": "1"}

_READ_WRITE = 6


class Cluster:
    """A NameServer and one broker for each name, for as long as the `with` block runs."""

    def __init__(
        self,
        kind: Kind,
        broker_names: Sequence[str] = ("broker-a",),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._version = kind.partition("-")[2] or VERSION
        self._scratch = Path(tempfile.mkdtemp(prefix="interop-cluster-"))
        self._names = broker_names
        quiet = _WITHOUT_IDLE_SERVICES if self._version.startswith("5.") else {}
        self._settings = {**SETTINGS, **quiet, **(settings or {})}
        self._nameserver: Server | None = None
        self._ports: dict[str, int] = {}
        self._brokers: dict[str, Server] = {}
        self.namesrv_address = ""
        #: What clients need to use the cluster: TLS, and keys.
        self.options: ClientOptions = {}
        #: The keys of an administrator, empty without access control.
        self.operator_keys = ("", "")
        self._namesrv_settings: dict[str, str] = {}

    def __enter__(self) -> Self:
        if not self._is_pyromq:
            java_or_skip()
        try:
            if self.kind == "pyromq-tls":
                self._turn_tls_on("permissive")
            elif self.kind == "pyromq-secure":
                self._turn_tls_on("enforcing")
                self._turn_access_control_on()
            self._nameserver = (
                PyromqServer(namesrv_only=True, namesrv_properties=self._namesrv_settings)
                if self._is_pyromq
                else ApacheRocketMQ(namesrv_only=True, version=self._version)
            )
            self._nameserver.start()
            self.namesrv_address = self._nameserver.namesrv_address
            for name in self._names:
                self._ports[name] = free_port(-2, 1)
                self.start_broker(name)
        except BaseException:
            self._clean_up()
            raise
        return self

    @property
    def _is_pyromq(self) -> bool:
        return self.kind.startswith("pyromq")

    def _turn_tls_on(self, mode: str) -> None:
        certs = Certificates(self._scratch / "certs")
        settings = certs.read("tls.properties").replace(b"=enforcing", f"={mode}".encode())
        certs.write("tls.properties", settings + b"tls.enable=true\n")
        self.options = {"tls": certs.tls()}
        self._namesrv_settings = {"tls.config.file": certs["tls.properties"]}
        self._settings |= self._namesrv_settings

    def _turn_access_control_on(self) -> None:
        home = self._scratch / "home"
        write_accounts(home, _ACCOUNTS)
        self.operator_keys = _OPERATOR
        self.options |= _CLIENTS
        shared = {"aclEnable": "true", "rocketmqHome": str(home)}
        self._namesrv_settings |= shared
        keys = {"replicationAccessKey": "brokers", "replicationSecretKey": "brokers-secret"}
        self._settings |= shared | keys | {"aclMode": "strict"}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for broker in self._brokers.values():
                if isinstance(broker, PyromqServer):
                    broker.stop()  # in peace; Java's takes ten seconds, and nobody looks
        finally:
            self._clean_up()

    def _clean_up(self) -> None:
        for server in (*self._brokers.values(), self._nameserver):
            if isinstance(server, PyromqServer):
                server.clean_up()
            elif server is not None:
                server.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def start_broker(self, name: str = "broker-a") -> None:
        port, store = self._ports[name], self._scratch / name
        broker: Server
        if self._is_pyromq:
            broker = PyromqServer(
                store=store,
                namesrv_address=self.namesrv_address,
                broker_properties={
                    **self._settings,
                    "listenPort": str(port),
                    "brokerName": name,
                },
            )
        else:
            broker = ApacheRocketMQ(
                broker_only=True,
                namesrv_address=self.namesrv_address,
                broker_name=name,
                broker_port=port,
                store=store,
                broker_properties=self._settings,
                jvm_options=QUICK_JVM_OPTIONS,
                version=self._version,
            )
        self._brokers[name] = broker
        broker.start()

    def stop_broker(self, name: str = "broker-a", *, kill: bool = False) -> None:
        """End a broker as an operator would, or as a crash does."""
        broker = self._brokers.pop(name)
        if kill:
            broker.kill()
        else:
            broker.stop()
        if isinstance(broker, PyromqServer):
            broker.clean_up()

    def signal_broker(self, name: str, how: signal.Signals) -> None:
        """SIGSTOP makes a broker as silent as one behind a cut cable, until SIGCONT."""
        pid = self._brokers[name].broker_pid
        assert pid is not None, f"{name} does not run"
        os.kill(pid, how)

    def broker_address(self, name: str = "broker-a") -> str:
        return self._brokers[name].broker_address

    def broker_log(self, name: str = "broker-a") -> str:
        """The end of a broker's log, for the text of a failure."""
        broker = self._brokers[name]
        if isinstance(broker, PyromqServer):
            return broker.log()
        return broker.broker_log.read_text(errors="replace")[-4000:]

    def create_topic(self, topic: str, queues: int = 4) -> str:
        """Make a topic on every broker and wait until clients can find it; return its name."""
        asyncio.run(self._create_topic(topic, queues))
        return topic

    def wait_for_topic(self, topic: str) -> None:
        """Wait until clients can find a topic that the brokers make by themselves."""

        async def wait() -> None:
            client = self.operator()
            try:
                await self._wait_for_route(client, topic, 1)
            finally:
                await client.close()

        asyncio.run(wait())

    def operator(self) -> RemotingClient:
        """A client that may do everything."""
        return RemotingClient(
            tls=client_tls(self.options.get("tls", False)),
            before_request=acl.signer(*self.operator_keys),
        )

    async def _create_topic(self, topic: str, queues: int) -> None:
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=_READ_WRITE,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
        )
        client = self.operator()
        try:
            for name in self._names:
                answer = await client.request(
                    self.broker_address(name),
                    RemotingCommand(
                        RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.encode()
                    ),
                    timeout=DEADLINE,
                )
                assert answer.code == ResponseCode.SUCCESS, answer
            await self._wait_for_route(client, topic, len(self._names))
        finally:
            await client.close()

    async def _wait_for_route(self, client: RemotingClient, topic: str, brokers: int) -> None:
        deadline = time.monotonic() + DEADLINE
        query = GetRouteInfoRequestHeader(topic=topic).encode()
        while True:
            answer = await client.request(
                self.namesrv_address,
                RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=query),
                timeout=DEADLINE,
            )
            if answer.code == ResponseCode.SUCCESS:
                route = TopicRouteData.decode(answer.body)
                if len(route.queue_datas) >= brokers:
                    return
            assert time.monotonic() < deadline, f"the NameServer never knew {topic}: {answer}"
            await asyncio.sleep(0.02)
