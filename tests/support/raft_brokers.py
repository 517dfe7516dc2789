"""A NameServer and the brokers of one raft group on the test's own loop.

Elections take a fraction of a second, unless the machine stalls: then they are repeated, and a test
that waits for a condition just waits longer. `cut` takes a broker off the network, as a killed
process is, and `start` brings it back with the files that it left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pyromq.base.settings import settings_of
from pyromq.broker.broker import Broker
from pyromq.broker.config import load_broker_properties
from pyromq.client import Message, Producer, RocketMQError, SendResult
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.raft.log import RaftLog
from pyromq.raft.member import Role
from pyromq.remoting.client import RemotingClient
from pyromq.tls.client import client_tls
from pyromq.tls.settings import TlsSettings
from tests.support.apache_rocketmq import free_port
from tests.support.certificates import Certificates
from tests.support.patience import DEADLINE, PATIENT_PROPERTIES, until

#: Intervals of `raft.member.Settings`, in milliseconds.
TIMING = {
    "heartbeat_interval": 200,
    "max_heartbeat_leak": 4,
    "min_vote_interval": 30,
    "max_vote_interval": 150,
    "commit_interval": 50,
}


class RaftBrokers:
    """One group."""

    def __init__(
        self,
        root: Path,
        count: int = 3,
        certificates: Certificates | None = None,
        **settings: str,
    ) -> None:
        """With `certificates`, brokers speak mutual TLS only, and the NameServer speaks both."""
        self.root = root
        self._tls = None if certificates is None else certificates.tls()
        if certificates is not None:
            keys = {item.attribute: item.key for item in settings_of(TlsSettings)}
            values = certificates.values(tls_enable="true")
            settings |= {keys[name]: str(value) for name, value in values.items()}
        for_name_server = {} if certificates is None else certificates.values("permissive")
        self._settings = settings
        self.ids = [f"n{number}" for number in range(count)]
        self._peers = ";".join(f"{node}-127.0.0.1:{free_port()}" for node in self.ids)
        self.name_server = NameServer(
            NamesrvConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                kv_config_path=str(root / "kvConfig.json"),
                config_store_path=str(root / "namesrv.properties"),
                **for_name_server,
            )
        )
        #: The running brokers, by the ids of their nodes.
        self.brokers: dict[str, Broker] = {}
        #: Why brokers gave up.
        self.failures: dict[str, str] = {}
        self.client = RemotingClient(tls=client_tls(self._tls or False))

    async def start(self) -> RaftBrokers:
        """Start all brokers, and wait for a leader."""
        await self.name_server.start()
        for node in self.ids:
            await self.start_broker(node)
        await self.leader()
        return self

    async def stop(self) -> None:
        for node in list(self.brokers):
            await self.brokers.pop(node).stop()
        await self.client.close()
        await self.name_server.stop()

    async def start_broker(self, node: str, **settings: str) -> Broker:
        loaded = load_broker_properties(
            {
                **PATIENT_PROPERTIES,
                "namesrvAddr": self.name_servers,
                "storePathRootDir": str(self.root / node),
                "brokerName": "group",
                "mappedFileSizeCommitLog": "1048576",
                "mappedFileSizeConsumeQueue": "2000",
                "maxHashSlotNum": "64",
                "maxIndexNum": "64",
                "messageDelayLevel": "10ms 400ms 1h",
                "listenPort": "0",
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "group",
                "dLegerPeers": self._peers,
                "dLegerSelfId": node,
                **self._settings,
                **settings,
            }
        )
        broker = self.brokers[node] = Broker(
            loaded.broker,
            loaded.store,
            raft_timing=TIMING,
            on_failure=lambda reason: self.failures.update({node: reason}),
        )
        await broker.start()
        return broker

    async def cut(self, node: str) -> Broker:
        """Take a broker off the network; its files stay as a kill leaves them until it stops."""
        broker = self.brokers.pop(node)
        await broker.cut_off()
        return broker

    async def leader(self) -> str:
        """Wait until one of the running brokers is the master, and return its node."""
        await until(lambda: self._leaders())
        return self._leaders()[0]

    def _leaders(self) -> list[str]:
        return [
            node
            for node, broker in self.brokers.items()
            if not broker.role.is_replica
            and broker.raft is not None
            and broker.raft.node.role is Role.LEADER
            and broker.store is not None
            and broker.store.agreement is not None
            and broker.store.agreement.is_leading
        ]

    async def followers(self) -> list[str]:
        leader = await self.leader()
        return [node for node in self.brokers if node != leader]

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self.name_server.port}"

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        """A producer; see `sent`."""
        async with Producer(
            self.name_servers,
            group="producers",
            max_delay_level=18,
            send_timeout=5.0,
            tls=self._tls or False,
        ) as producer:
            yield producer

    @staticmethod
    async def sent(producer: Producer, message: Message) -> SendResult:
        """Send until it is acknowledged: while there is no leader, nobody takes messages."""
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                return await producer.send(message)
            except RocketMQError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.02)

    def log(self, node: str) -> RaftLog:
        broker = self.brokers[node]
        assert broker.store is not None
        assert broker.store.agreement is not None
        log = broker.store.agreement.entries
        assert isinstance(log, RaftLog)
        return log

    async def settled(self) -> None:
        """Wait until all running brokers have committed the same entries."""
        leader = await self.leader()
        end = self.log(leader).end_index
        await until(lambda: all(self.log(node).committed_index >= end for node in self.brokers))

    async def ask(self, node: str, command: RemotingCommand) -> RemotingCommand:
        return await self.client.request(self.brokers[node].address, command, DEADLINE)
