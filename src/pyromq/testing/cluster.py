"""A NameServer and brokers in a test process, on free ports, in a temporary directory.

    with Cluster(brokers=2) as cluster:          # or: async with Cluster() as cluster
        cluster.create_topic("orders", queues=8)
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        cluster.drain("orders", count=3)         # messages in the order they were stored
        cluster.await_dead_letter("billing")     # a message that a consumer gave up on

    with Cluster(replicas=1) as cluster:         # a master and a replica
        (master,) = cluster.brokers
        master.await_replicas()                  # the replica has every message
        master.kill()                            # consumers continue from the replica
        cluster.promote(master.replicas[0])      # producers continue, too
        master.rejoin()                          # the old master is a replica now

    with Cluster(raft=3) as cluster:             # three nodes, which elect their master
        cluster.leader.kill()
        cluster.await_leader()                   # producers continue, by themselves
        cluster.await_committed()                # all nodes have the same log

    with Cluster(tls=True, acl=True) as cluster:  # nobody without a certificate and a signature
        Producer(cluster.namesrv, **cluster.client_options)

The servers run on an event loop in their own thread: a test that blocks its loop does not block
them, and a cluster may outlive the loops of its tests. Methods block; coroutines use `async with`
and the methods named `..._async`.

`kill` leaves a broker's files as a killed process would: acknowledged messages are in them, what a
clean stop writes is not. The next start recovers them.

Call from any thread except the cluster's own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyromq.base.settings import ConfigError
from pyromq.client.arguments import check_count, check_seconds
from pyromq.client.errors import BrokerError
from pyromq.client.message import check_group, check_topic
from pyromq.client.options import ClientOptions
from pyromq.client.received import ReceivedMessage
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.sysflag import PERM_READ, PERM_WRITE
from pyromq.protocol.names import AUTO_CREATE_TOPIC
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader
from pyromq.store.config import BrokerRole
from pyromq.testing.broker import ClusterBroker
from pyromq.testing.node import HOST, Node, check_settings
from pyromq.testing.raft import RaftGroup, RaftMember
from pyromq.testing.raft_broker import RaftBroker
from pyromq.testing.replicas import ReplicaGroup
from pyromq.testing.security import AccountFields, Security
from pyromq.testing.server_loop import ServerLoop
from pyromq.testing.topics import TopicReader

#: Defaults of every broker; the test's settings override them.
_SETTINGS: Final = {
    "bindAddress": HOST,
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "enablePropertyFilter": "true",
    # Do not refuse messages because a test keeps the GIL or the machine stalls.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": str(10 * 60 * 1000),
    "syncFlushTimeout": str(10 * 60 * 1000),
    # Small files are quick to create; the largest message still fits.
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 4096),
    "maxHashSlotNum": "4096",
    "maxIndexNum": "16384",
}


class Cluster:
    """One NameServer and `brokers` brokers named `broker-0`, `broker-1` and so on.

    Each broker has `replicas` replicas (`ClusterBroker.replicas`), which follow it when the start
    returns. Masters are ASYNC_MASTERs unless `settings` have another `brokerRole`.
    With `raft`, one broker is a raft group of as many nodes (`nodes`, `leader`), three or five of
    them usually; one leads when the start returns.
    With `tls`, all ports want a certificate (mutual TLS); with `acl`, servers check signatures and
    permissions in strict mode. Clients need `client_options`. `acl` may be a list of accounts, each
    with the keys of conf/plain_acl.yml, in addition to the one of `client_options`, which may use
    all topics and groups. Certificates need the extra pyromq[tls], accounts pyromq[acl].
    `settings` apply to every broker and use RocketMQ's keys: `{"messageDelayLevel": "100ms 1s"}`.
    Without a `directory`, files go to a temporary one that `stop` removes.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        replicas: int = 0,
        raft: int = 0,
        tls: bool = False,
        acl: bool | Sequence[AccountFields] = False,
        settings: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        if brokers < 0:
            raise ValueError(f"brokers={brokers}: expected 0 or more")
        _check_replicas(replicas, settings or {})
        _check_raft(raft, brokers, replicas, settings or {})
        self._settings = dict(settings or {})
        check_settings(self._settings)
        self._count = brokers
        self._replicas = replicas
        self._raft = raft
        self._given = None if directory is None else Path(directory)
        self._remove: weakref.finalize[..., Cluster] | None = None
        self._loop = ServerLoop()
        self._name_server: NameServer | None = None
        self._namesrv = ""
        self._security = Security(tls=tls, acl=acl)
        self._topics = TopicReader("", {})
        self.directory = Path()
        self._groups: list[ReplicaGroup | RaftGroup] = []
        #: The masters, in the order of their names. A broker stays here when it is replaced. With
        #: `raft`, all nodes of the group.
        self.brokers: list[ClusterBroker] = []
        #: The nodes of the raft group, n0 first; the same as `brokers`.
        self.nodes: list[RaftBroker] = []

    # Lifecycle

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop_async()

    def start(self) -> None:
        """Start the NameServer and all brokers; return when clients can find them."""
        if self._loop.is_running:
            return
        self._loop.start()
        try:
            self._loop.run(self._start())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything and remove the temporary directory. Idempotent."""
        had_servers = True
        try:
            had_servers = self._loop.stop(self._stop)
        finally:
            if had_servers and self._remove is not None:
                self._remove()

    async def start_async(self) -> None:
        """`start` for coroutines."""
        await asyncio.to_thread(self.start)

    async def stop_async(self) -> None:
        """`stop` for coroutines."""
        await asyncio.to_thread(self.stop)

    # For tests

    @property
    def namesrv(self) -> str:
        """Return the NameServer's address."""
        self._loop.check()
        return self._namesrv

    @property
    def client_options(self) -> ClientOptions:
        """Return the options that clients need: TLS, and keys. Empty without `tls` and `acl`."""
        self._loop.check()
        return self._security.client_options

    def add_broker(self, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        """Start one more broker, with its replicas; `settings` override the cluster's."""
        return self._loop.run(self._add_broker(dict(settings or {})))

    async def add_broker_async(self, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        """`add_broker` for coroutines."""
        return await self._loop.run_from_loop(self._add_broker(dict(settings or {})))

    def promote(
        self, replica: ClusterBroker, *, role: str = "ASYNC_MASTER", force: bool = False
    ) -> None:
        """`replica.promote()`."""
        replica.promote(role=role, force=force)

    async def promote_async(
        self, replica: ClusterBroker, *, role: str = "ASYNC_MASTER", force: bool = False
    ) -> None:
        """`promote` for coroutines."""
        await replica.promote_async(role=role, force=force)

    @property
    def leader(self) -> RaftBroker:
        """Return the node that leads the raft group. Raises RuntimeError during an election."""
        member = self._raft_group().leader()
        if member is None:
            raise RuntimeError("the raft group has no leader at the moment: call await_leader()")
        return self._broker_of(member)

    def await_leader(self, *, timeout: float = 10.0) -> RaftBroker:
        """Return the node that leads the raft group, once clients find it.

        Raise TimeoutError after `timeout` seconds.
        """
        return self._loop.run(self._await_leader(timeout))

    async def await_leader_async(
        self,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - part of its error
    ) -> RaftBroker:
        """`await_leader` for coroutines."""
        return await self._loop.run_from_loop(self._await_leader(timeout))

    def await_committed(self, *, timeout: float = 10.0) -> None:
        """Wait until every node that runs has all entries, all committed, and compare the logs.

        Topics, groups and offsets are copied as well. Raise TimeoutError after `timeout` seconds,
        DivergedError if the bytes of two logs differ.
        """
        self._loop.run(self._await_committed(timeout))

    async def await_committed_async(
        self,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - part of its error
    ) -> None:
        """`await_committed` for coroutines."""
        await self._loop.run_from_loop(self._await_committed(timeout))

    def create_topic(self, topic: str, *, queues: int = 4) -> None:
        """Create a topic on every running broker, or change its number of queues.

        Other topics get 4 queues on their first message, as usual.
        """
        self._loop.run(self._create_topic(topic, queues))

    async def create_topic_async(self, topic: str, *, queues: int = 4) -> None:
        """`create_topic` for coroutines."""
        await self._loop.run_from_loop(self._create_topic(topic, queues))

    def drain(
        self, topic: str, count: int | None = None, *, timeout: float = 10.0
    ) -> list[ReceivedMessage]:
        """Return a topic's messages in the order they were stored.

        Each call returns the messages stored since the previous one. With `count` it waits until
        there are at least that many and raises TimeoutError after `timeout` seconds; without, it
        returns at once. It joins no group, so consumers still get the messages.
        """
        return self._loop.run(self._drain(topic, count, timeout))

    async def drain_async(
        self,
        topic: str,
        count: int | None = None,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - part of its error
    ) -> list[ReceivedMessage]:
        """`drain` for coroutines."""
        return await self._loop.run_from_loop(self._drain(topic, count, timeout))

    def await_dead_letter(self, group: str, *, timeout: float = 10.0) -> ReceivedMessage:
        """Return a consumer group's oldest dead letter that was not returned before.

        Waits for one and raises TimeoutError after `timeout` seconds. Its original topic is
        `message.system_properties["RETRY_TOPIC"]`. A message becomes a dead letter after its
        consumer's `max_reconsume_times`, or at once with `Retry(delay_level=-1)`. For short delays
        use `settings={"messageDelayLevel": "10ms 10ms 10ms"}`.
        """
        return self._loop.run(self._await_dead_letter(group, timeout))

    async def await_dead_letter_async(
        self,
        group: str,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - part of its error
    ) -> ReceivedMessage:
        """`await_dead_letter` for coroutines."""
        return await self._loop.run_from_loop(self._await_dead_letter(group, timeout))

    def message_count(self, topic: str) -> int:
        """Return how many messages the running brokers hold of a topic, drained or not."""
        return self._loop.run(self._message_count(topic))

    async def message_count_async(self, topic: str) -> int:
        """`message_count` for coroutines."""
        return await self._loop.run_from_loop(self._message_count(topic))

    def reset(self) -> None:
        """Empty all brokers: no topics, messages, groups or offsets. Starts stopped ones.

        Addresses stay the same, so open clients reconnect. For tests that share a cluster.
        """
        self._loop.run(self._reset())

    async def reset_async(self) -> None:
        """`reset` for coroutines."""
        await self._loop.run_from_loop(self._reset())

    # Helpers, in call order.

    async def _start(self) -> None:
        if self._given is None:
            self.directory = Path(tempfile.mkdtemp(prefix="pyromq-"))
            self._remove = weakref.finalize(self, _remove, self.directory, os.getpid())
        else:
            self.directory = self._given
        self._security.prepare(self.directory)
        config, _ = NamesrvConfig.load(
            {
                "listenPort": "0",
                "bindAddress": HOST,
                "kvConfigPath": str(self.directory / "kvConfig.json"),
                "configStorePath": str(self.directory / "namesrv.properties"),
                **self._security.server_settings,
            }
        )
        self._name_server = NameServer(config)
        await self._name_server.start()
        self._namesrv = f"{HOST}:{self._name_server.port}"
        self._topics = TopicReader(self._namesrv, self._security.operator_options)
        self._groups, self.brokers, self.nodes = [], [], []
        if self._raft:
            await self._add_raft_group()
            return
        for _ in range(self._count):
            await self._add_broker({})

    async def _stop(self) -> None:
        for group in self._groups:
            await group.close()
        if self._name_server is not None:
            await self._name_server.stop()

    async def _add_raft_group(self) -> None:
        assert self._name_server is not None
        settings = {
            "brokerName": "broker-0",
            **self._shared_settings(),
            "namesrvAddr": self._namesrv,
        }
        group = RaftGroup(settings, self.directory, self._raft, self._name_server)
        try:
            await group.start_all()
        except BaseException:
            await group.close()
            raise
        peers: list[ClusterBroker] = []
        self.nodes = [RaftBroker(self._loop, group, each, peers) for each in group.members]
        peers += self.nodes
        self.brokers = list(self.nodes)
        self._groups.append(group)

    def _shared_settings(self) -> dict[str, str]:
        """Return the settings of every broker."""
        security = self._security
        return {
            **_SETTINGS,
            **security.server_settings,
            **security.broker_settings,
            **self._settings,
        }

    def _raft_group(self) -> RaftGroup:
        self._loop.check()
        for group in self._groups:
            if isinstance(group, RaftGroup):
                return group
        raise RuntimeError("the cluster has no raft group: create it with Cluster(raft=3)")

    def _broker_of(self, member: RaftMember) -> RaftBroker:
        return next(each for each in self.nodes if each.node_id == member.node_id)

    async def _await_leader(self, timeout: float) -> RaftBroker:  # noqa: ASYNC109 - part of its error
        check_seconds("timeout", timeout, may_be_zero=True)
        return self._broker_of(await self._raft_group().await_leader(timeout))

    async def _await_committed(self, timeout: float) -> None:  # noqa: ASYNC109 - part of its error
        check_seconds("timeout", timeout, may_be_zero=True)
        await self._raft_group().await_committed(timeout)

    async def _add_broker(self, settings: dict[str, str]) -> ClusterBroker:
        if self._raft:
            raise RuntimeError("a cluster with raft= has one group; it cannot get another broker")
        _check_replicas(self._replicas, settings)
        check_settings(settings)
        name = f"broker-{len(self.brokers)}"
        everything = {
            "brokerName": name,
            **self._shared_settings(),
            **settings,
            "namesrvAddr": self._namesrv,
        }
        nodes = [Node(everything, self.directory / name)]
        for number in range(1, self._replicas + 1):
            role = {"brokerRole": BrokerRole.SLAVE.name, "brokerId": str(number)}
            # All brokers of the group would want the master's port.
            replica = {key: value for key, value in everything.items() if key != "listenPort"}
            nodes.append(Node({**replica, **role}, self.directory / f"{name}-replica-{number}"))
        group = ReplicaGroup(nodes, self._security.operator)
        try:
            await group.start_all()
        except BaseException:
            await group.close()
            raise
        peers: list[ClusterBroker] = []
        peers += (ClusterBroker(self._loop, group, node, peers) for node in nodes)
        self._groups.append(group)
        self.brokers.append(peers[0])
        return peers[0]

    async def _create_topic(self, topic: str, queues: int) -> None:
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=PERM_READ | PERM_WRITE,
            topic_filter_type="SINGLE_TAG",
        )
        client = self._security.operator()
        try:
            for group in self._groups:
                master = await group.serving()
                if master is not None:
                    command = RemotingCommand(
                        RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.encode()
                    )
                    answer = await client.request(master.address, command, 10.0)
                    if answer.code != ResponseCode.SUCCESS:
                        raise BrokerError(master.address, answer.code, answer.remark)
        finally:
            await client.close()

    async def _drain(
        self,
        topic: str,
        count: int | None,
        timeout: float,  # noqa: ASYNC109 - part of its error
    ) -> list[ReceivedMessage]:
        check_topic(topic)
        if count is not None:
            check_count("count", count, 0)
        check_seconds("timeout", timeout, may_be_zero=True)
        return await self._topics.drain(topic, self._running_brokers(), count, timeout)

    async def _await_dead_letter(
        self,
        group: str,
        timeout: float,  # noqa: ASYNC109 - part of its error
    ) -> ReceivedMessage:
        check_group(group)
        check_seconds("timeout", timeout, may_be_zero=True)
        return await self._topics.next_dead_letter(group, self._running_brokers(), timeout)

    async def _message_count(self, topic: str) -> int:
        check_topic(topic)
        return await self._topics.count(topic, self._running_brokers())

    async def _reset(self) -> None:
        for group in self._groups:
            await group.reset()
        self._topics.forget()

    def _running_brokers(self) -> set[str]:
        return {group.name for group in self._groups if group.is_running}


def _remove(directory: Path, process: int) -> None:
    # Forks run this on exit too.
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def _check_raft(raft: int, brokers: int, replicas: int, settings: Mapping[str, str]) -> None:
    if not raft:
        return
    if raft < 0:
        raise ValueError(f"raft={raft}: expected 0 or more")
    if brokers != 1 or replicas:
        raise ValueError("raft= is one broker of several nodes: leave brokers= and replicas= out")
    for key in ("enableDLegerCommitLog", "dLegerPeers", "dLegerSelfId", "listenPort"):
        if key in settings:
            raise ConfigError(f"raft= sets {key}; remove it from settings")


def _check_replicas(replicas: int, settings: Mapping[str, str]) -> None:
    if replicas < 0:
        raise ValueError(f"replicas={replicas}: expected 0 or more")
    if replicas and (
        "brokerId" in settings or settings.get("brokerRole", "") == BrokerRole.SLAVE.name
    ):
        raise ConfigError("replicas= sets brokerId and brokerRole=SLAVE; remove them from settings")
