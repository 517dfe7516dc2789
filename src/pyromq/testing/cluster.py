"""A NameServer and brokers in the process of a test, on free ports, in a temporary directory.

    with Cluster(brokers=2) as cluster:          # or: async with Cluster() as cluster
        cluster.create_topic("orders", queues=8)
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        cluster.drain("orders", count=3)         # what was sent, in order
        cluster.await_dead_letter("billing")     # what a consumer gave up

The servers run on an event loop in a thread of their own: a test that blocks its own loop
does not block them, and a cluster may outlive the loops of the tests that use it. Methods
wait; in coroutines, `async with` and the methods named `..._async` wait without blocking.

`kill` leaves a broker's files as the end of its process would at that instant: what was
answered is in them, what a clean stop writes is not. The next start recovers them.

Used by tests, from any thread but the cluster's own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pyromq.base.settings import ConfigError
from pyromq.broker.broker import Broker
from pyromq.broker.config import load_broker_properties
from pyromq.client.arguments import check_count, check_seconds
from pyromq.client.errors import BrokerError
from pyromq.client.loop_thread import LoopThread
from pyromq.client.message import check_group, check_topic
from pyromq.client.received import ReceivedMessage
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.sysflag import PERM_READ, PERM_WRITE
from pyromq.protocol.names import AUTO_CREATE_TOPIC
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.testing.topics import TopicReader

_Result = TypeVar("_Result")

HOST: Final = "127.0.0.1"
#: Every broker's, before the test's own.
_SETTINGS: Final = {
    "bindAddress": HOST,
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "enablePropertyFilter": "true",
    # A test that keeps the interpreter busy, or a machine that stalls, is no reason to refuse
    # its messages.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": str(10 * 60 * 1000),
    "syncFlushTimeout": str(10 * 60 * 1000),
    # Small files are quick to make; a message of the largest size still fits.
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 4096),
    "maxHashSlotNum": "4096",
    "maxIndexNum": "16384",
}


class Cluster:
    """One NameServer and `brokers` brokers named `broker-0`, `broker-1` and so on.

    `settings` are those of every broker, with RocketMQ's keys, as in
    `{"messageDelayLevel": "100ms 1s"}`. Without a `directory` there is a temporary one, removed
    by `stop`.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        if brokers < 0:
            raise ValueError(f"brokers={brokers}: 0 or more are possible")
        self._settings = dict(settings or {})
        _check(self._settings)
        self._count = brokers
        self._given = None if directory is None else Path(directory)
        self._remove: weakref.finalize[..., Cluster] | None = None
        self._process = os.getpid()
        self._thread: LoopThread | None = None
        self._name_server: NameServer | None = None
        self._namesrv = ""
        self._topics = TopicReader("")
        self.directory = Path()
        self.brokers: list[ClusterBroker] = []

    # Life

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
        """Start the NameServer and all brokers; come back when clients find them."""
        if self._thread is not None:
            return
        self._process = os.getpid()
        self._thread = LoopThread("pyromq-testing")
        try:
            self._thread.run(self._start())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything and remove the temporary directory. May be called twice."""
        thread, self._thread = self._thread, None
        if thread is None or self._process != os.getpid():
            return  # in a fork: the cluster is the parent's
        try:
            thread.run(self._stop())
        finally:
            thread.stop()
            if self._remove is not None:
                self._remove()

    async def start_async(self) -> None:
        """`start` for coroutines."""
        await asyncio.to_thread(self.start)

    async def stop_async(self) -> None:
        """`stop` for coroutines."""
        await asyncio.to_thread(self.stop)

    # What tests use

    @property
    def namesrv(self) -> str:
        """The NameServer's address, for clients."""
        self._check_running()
        return self._namesrv

    def add_broker(self, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        """One more broker, started; `settings` go before the cluster's."""
        return self._run(self._add_broker(dict(settings or {})))

    async def add_broker_async(self, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        """`add_broker` for coroutines."""
        return await self._run_from_loop(self._add_broker(dict(settings or {})))

    def create_topic(self, topic: str, *, queues: int = 4) -> None:
        """Create a topic at every broker that runs, or change how many queues it has there.

        Topics that are not created get 4 queues at the first send, as everywhere.
        """
        self._run(self._create_topic(topic, queues))

    async def create_topic_async(self, topic: str, *, queues: int = 4) -> None:
        """`create_topic` for coroutines."""
        await self._run_from_loop(self._create_topic(topic, queues))

    def drain(
        self, topic: str, count: int | None = None, *, timeout: float = 10.0
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic in the order in which they were stored.

        The next call returns only what came after them. With a `count` it waits until there are
        as many (or more), and raises TimeoutError after `timeout` seconds; without one it returns
        what is there now. It is no member of any group: consumers get the messages, too.
        """
        return self._run(self._drain(topic, count, timeout))

    async def drain_async(
        self,
        topic: str,
        count: int | None = None,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - told in its error
    ) -> list[ReceivedMessage]:
        """`drain` for coroutines."""
        return await self._run_from_loop(self._drain(topic, count, timeout))

    def await_dead_letter(self, group: str, *, timeout: float = 10.0) -> ReceivedMessage:
        """Return the oldest dead letter of a consumer group that was not returned before.

        Waits for one, and raises TimeoutError after `timeout` seconds. Its original topic is
        `message.system_properties["RETRY_TOPIC"]`. A message is a dead letter after
        `max_reconsume_times` of its consumer, or at once with `Retry(delay_level=-1)`; short
        delays come from `settings={"messageDelayLevel": "10ms 10ms 10ms"}`.
        """
        return self._run(self._await_dead_letter(group, timeout))

    async def await_dead_letter_async(
        self,
        group: str,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - told in its error
    ) -> ReceivedMessage:
        """`await_dead_letter` for coroutines."""
        return await self._run_from_loop(self._await_dead_letter(group, timeout))

    def message_count(self, topic: str) -> int:
        """Return how many messages a topic has at the brokers that run, drained or not."""
        return self._run(self._message_count(topic))

    async def message_count_async(self, topic: str) -> int:
        """`message_count` for coroutines."""
        return await self._run_from_loop(self._message_count(topic))

    def reset(self) -> None:
        """Make all brokers empty: no topics, messages, groups or offsets; those that were
        stopped or killed run again.

        Addresses stay, and clients that are open find the brokers again. For tests that share
        a cluster.
        """
        self._run(self._reset())

    async def reset_async(self) -> None:
        """`reset` for coroutines."""
        await self._run_from_loop(self._reset())

    # Helpers, in call order.

    async def _start(self) -> None:
        if self._given is None:
            self.directory = Path(tempfile.mkdtemp(prefix="pyromq-"))
            self._remove = weakref.finalize(self, _remove, self.directory, os.getpid())
        else:
            self.directory = self._given
        self._name_server = NameServer(
            NamesrvConfig(
                listen_port=0,
                bind_address=HOST,
                kv_config_path=str(self.directory / "kvConfig.json"),
                config_store_path=str(self.directory / "namesrv.properties"),
            )
        )
        await self._name_server.start()
        self._namesrv = f"{HOST}:{self._name_server.port}"
        self._topics = TopicReader(self._namesrv)
        self.brokers = []
        for _ in range(self._count):
            await self._add_broker({})

    async def _stop(self) -> None:
        for broker in self.brokers:
            await broker._stop()
        if self._name_server is not None:
            await self._name_server.stop()

    async def _add_broker(self, settings: dict[str, str]) -> ClusterBroker:
        _check(settings)
        name = f"broker-{len(self.brokers)}"
        everything = {
            "brokerName": name,
            **_SETTINGS,
            **self._settings,
            **settings,
            "namesrvAddr": self._namesrv,
        }
        broker = ClusterBroker(self, everything, self.directory / name)
        await broker._start()
        self.brokers.append(broker)
        return broker

    async def _create_topic(self, topic: str, queues: int) -> None:
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=PERM_READ | PERM_WRITE,
            topic_filter_type="SINGLE_TAG",
        )
        client = RemotingClient()
        try:
            for broker in self.brokers:
                if broker.is_running:
                    command = RemotingCommand(
                        RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.encode()
                    )
                    answer = await client.request(broker.address, command, 10.0)
                    if answer.code != ResponseCode.SUCCESS:
                        raise BrokerError(broker.address, answer.code, answer.remark)
        finally:
            await client.close()

    async def _drain(
        self,
        topic: str,
        count: int | None,
        timeout: float,  # noqa: ASYNC109 - told in its error
    ) -> list[ReceivedMessage]:
        check_topic(topic)
        if count is not None:
            check_count("count", count, 0)
        check_seconds("timeout", timeout, may_be_zero=True)
        return await self._topics.drain(topic, self._running_brokers(), count, timeout)

    async def _await_dead_letter(
        self,
        group: str,
        timeout: float,  # noqa: ASYNC109 - told in its error
    ) -> ReceivedMessage:
        check_group(group)
        check_seconds("timeout", timeout, may_be_zero=True)
        return await self._topics.next_dead_letter(group, self._running_brokers(), timeout)

    async def _message_count(self, topic: str) -> int:
        check_topic(topic)
        return await self._topics.count(topic, self._running_brokers())

    async def _reset(self) -> None:
        for broker in self.brokers:
            await broker._stop()
        for broker in self.brokers:
            shutil.rmtree(broker.directory, ignore_errors=True)
            await broker._start()
        self._topics.forget()

    def _running_brokers(self) -> set[str]:
        return {broker.name for broker in self.brokers if broker.is_running}

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return self._running(coroutine).run(coroutine)

    async def _run_from_loop(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return await self._running(coroutine).run_from_loop(coroutine)

    def _running(self, coroutine: Coroutine[Any, Any, Any]) -> LoopThread:
        try:
            return self._check_running()
        except RuntimeError:
            coroutine.close()
            raise

    def _check_running(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError("this cluster does not run: use it in `with`, or call start() first")
        return self._thread


class ClusterBroker:
    """A broker of a cluster: stopped and killed in tests of faults. Its port stays the same."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, str], directory: Path) -> None:
        self.name = settings["brokerName"]
        self._cluster = cluster
        self._settings = dict(settings)
        self._directory = directory
        self._lives = 0
        self._port = self._settings.pop("listenPort", "0")
        self._broker: Broker | None = None

    @property
    def address(self) -> str:
        """Where clients reach it; also while it is stopped."""
        return f"{HOST}:{self._port}"

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped or killed."""
        return self._broker is not None

    @property
    def directory(self) -> Path:
        """Where its store is."""
        return self._directory / str(self._lives)

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start it again, on its own files; `settings` count from now on."""
        self._cluster._run(self._start(dict(settings or {})))

    def stop(self) -> None:
        """Stop it cleanly: requests under way are answered, the NameServer forgets it."""
        self._cluster._run(self._stop())

    def kill(self) -> None:
        """End it as a killed process ends: connections break, nothing is written any more."""
        self._cluster._run(self._kill())

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """`stop` and `start`."""
        self._cluster._run(self._restart(dict(settings or {})))

    async def start_async(self, settings: Mapping[str, str] | None = None) -> None:
        """`start` for coroutines."""
        await self._cluster._run_from_loop(self._start(dict(settings or {})))

    async def stop_async(self) -> None:
        """`stop` for coroutines."""
        await self._cluster._run_from_loop(self._stop())

    async def kill_async(self) -> None:
        """`kill` for coroutines."""
        await self._cluster._run_from_loop(self._kill())

    async def restart_async(self, settings: Mapping[str, str] | None = None) -> None:
        """`restart` for coroutines."""
        await self._cluster._run_from_loop(self._restart(dict(settings or {})))

    # Helpers, in call order. On the cluster's loop.

    async def _start(self, settings: Mapping[str, str] | None = None) -> None:
        if self._broker is not None:
            return
        _check(settings or {})
        self._settings.update(settings or {})
        values = load_broker_properties(
            {
                **self._settings,
                "listenPort": self._port,
                "storePathRootDir": str(self.directory),
            }
        )
        broker = Broker(values.broker, values.store)
        try:
            await broker.start()
        except BaseException:
            await broker.stop()
            raise
        self._broker = broker
        self._port = str(broker.port)

    async def _stop(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()

    async def _restart(self, settings: Mapping[str, str]) -> None:
        await self._stop()
        await self._start(settings)

    async def _kill(self) -> None:
        broker, self._broker = self._broker, None
        if broker is None:
            return
        await broker.cut_off()
        before = self.directory
        self._lives += 1
        # On the loop itself, which is all that writes messages: the copy is of one instant.
        shutil.copytree(before, self.directory)
        # What is left of the old one ends in files that nobody reads.
        await broker.stop()
        shutil.rmtree(before)


def _remove(directory: Path, process: int) -> None:
    # Forks run this at their end, too.
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def _check(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for settings that do not exist: in a test that is a mistake."""
    warnings = load_broker_properties(settings).warnings
    if warnings:
        raise ConfigError("; ".join(warnings).replace(": it is ignored", ""))
