"""A NameServer and brokers in a test process, on free ports, in a temporary directory.

    with Cluster(brokers=2) as cluster:          # or: async with Cluster() as cluster
        cluster.create_topic("orders", queues=8)
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        cluster.drain("orders", count=3)         # messages in the order they were stored
        cluster.await_dead_letter("billing")     # a message that a consumer gave up on

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

    `settings` apply to every broker and use RocketMQ's keys: `{"messageDelayLevel": "100ms 1s"}`.
    Without a `directory`, files go to a temporary one that `stop` removes.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        if brokers < 0:
            raise ValueError(f"brokers={brokers}: expected 0 or more")
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
        """Stop everything and remove the temporary directory. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._process != os.getpid():
            return  # a fork: the cluster belongs to the parent
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

    # For tests

    @property
    def namesrv(self) -> str:
        """Return the NameServer's address."""
        self._check_running()
        return self._namesrv

    def add_broker(self, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        """Start one more broker; `settings` override the cluster's."""
        return self._run(self._add_broker(dict(settings or {})))

    async def add_broker_async(self, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        """`add_broker` for coroutines."""
        return await self._run_from_loop(self._add_broker(dict(settings or {})))

    def create_topic(self, topic: str, *, queues: int = 4) -> None:
        """Create a topic on every running broker, or change its number of queues.

        Other topics get 4 queues on their first message, as usual.
        """
        self._run(self._create_topic(topic, queues))

    async def create_topic_async(self, topic: str, *, queues: int = 4) -> None:
        """`create_topic` for coroutines."""
        await self._run_from_loop(self._create_topic(topic, queues))

    def drain(
        self, topic: str, count: int | None = None, *, timeout: float = 10.0
    ) -> list[ReceivedMessage]:
        """Return a topic's messages in the order they were stored.

        Each call returns the messages stored since the previous one. With `count` it waits until
        there are at least that many and raises TimeoutError after `timeout` seconds; without, it
        returns at once. It joins no group, so consumers still get the messages.
        """
        return self._run(self._drain(topic, count, timeout))

    async def drain_async(
        self,
        topic: str,
        count: int | None = None,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - part of its error
    ) -> list[ReceivedMessage]:
        """`drain` for coroutines."""
        return await self._run_from_loop(self._drain(topic, count, timeout))

    def await_dead_letter(self, group: str, *, timeout: float = 10.0) -> ReceivedMessage:
        """Return a consumer group's oldest dead letter that was not returned before.

        Waits for one and raises TimeoutError after `timeout` seconds. Its original topic is
        `message.system_properties["RETRY_TOPIC"]`. A message becomes a dead letter after its
        consumer's `max_reconsume_times`, or at once with `Retry(delay_level=-1)`. For short delays
        use `settings={"messageDelayLevel": "10ms 10ms 10ms"}`.
        """
        return self._run(self._await_dead_letter(group, timeout))

    async def await_dead_letter_async(
        self,
        group: str,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - part of its error
    ) -> ReceivedMessage:
        """`await_dead_letter` for coroutines."""
        return await self._run_from_loop(self._await_dead_letter(group, timeout))

    def message_count(self, topic: str) -> int:
        """Return how many messages the running brokers hold of a topic, drained or not."""
        return self._run(self._message_count(topic))

    async def message_count_async(self, topic: str) -> int:
        """`message_count` for coroutines."""
        return await self._run_from_loop(self._message_count(topic))

    def reset(self) -> None:
        """Empty all brokers: no topics, messages, groups or offsets. Starts stopped ones.

        Addresses stay the same, so open clients reconnect. For tests that share a cluster.
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
            raise RuntimeError(
                "the cluster is not running: use it in `with`, or call start() first"
            )
        return self._thread


class ClusterBroker:
    """A broker of a cluster, which tests can stop and kill. It keeps its port."""

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
        """Return its address, which stays the same while it is stopped."""
        return f"{HOST}:{self._port}"

    @property
    def is_running(self) -> bool:
        """Return whether it is running."""
        return self._broker is not None

    @property
    def directory(self) -> Path:
        """Return its store directory."""
        return self._directory / str(self._lives)

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start it again on its own files; `settings` apply from now on."""
        self._cluster._run(self._start(dict(settings or {})))

    def stop(self) -> None:
        """Stop it cleanly: answer requests in flight, unregister from the NameServer."""
        self._cluster._run(self._stop())

    def kill(self) -> None:
        """End it like a killed process: connections break, nothing more is written."""
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
        # The loop is the only writer of messages, so this copy is consistent.
        shutil.copytree(before, self.directory)
        # The old broker stops on files that nobody reads.
        await broker.stop()
        shutil.rmtree(before)


def _remove(directory: Path, process: int) -> None:
    # Forks run this on exit too.
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def _check(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for unknown or ignored settings: in a test that is a mistake."""
    warnings = load_broker_properties(settings).warnings
    if warnings:
        raise ConfigError("; ".join(warnings))
