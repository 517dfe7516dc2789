"""Creates a topic on all brokers of `pyromq standalone --brokers` as soon as one has it.

In a cluster, each broker creates a topic when the first send reaches it. A producer that sends one
message creates the topic on one broker; clients then see that broker alone and send everything
there. So whenever a send creates a topic, this module creates it on the brokers that do not have
it yet, with the same queues.

Only topics that sends create are spread. Administrators decide for themselves: with
`mqadmin updateTopic`, -c means all brokers and -b one; deletions stay deletions.

Runs on the loop of the parent process: topics one after the other, brokers concurrently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from pyromq.cli.brokers.child import Created
from pyromq.nameserver.server import NameServer
from pyromq.protocol.names import AUTO_CREATE_TOPIC
from pyromq.protocol.wire.bodies import TopicFilterType
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import CreateTopicRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError

logger = logging.getLogger(__name__)

#: Topics that wait; more are left to the brokers themselves.
_MAX_WAITING: Final = 10_000
_REQUEST_SECONDS: Final = 10.0


class TopicSpread:
    """Creates topics on the brokers that `addresses` returns, by name."""

    def __init__(
        self,
        name_server: NameServer,
        addresses: Callable[[], Mapping[str, str]],
        client: RemotingClient | None = None,
    ) -> None:
        """`client` is closed with this object; it may create topics."""
        self._name_server = name_server
        self._addresses = addresses
        self._client = client or RemotingClient()
        self._waiting: asyncio.Queue[tuple[str, Created]] = asyncio.Queue(_MAX_WAITING)
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to create topics."""
        self._work = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Drop the topics that wait."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        await self._client.close()

    def created(self, broker: str, topic: Created) -> None:
        """Note that a send has created a topic on a broker."""
        if topic.topic.startswith("%"):  # retry topics belong to groups, not to producers
            return
        try:
            self._waiting.put_nowait((broker, topic))
        except asyncio.QueueFull:
            logger.warning(
                "topic %s of %s not created on the other brokers: %d topics wait",
                *(topic.topic, broker, _MAX_WAITING),
            )

    async def _run(self) -> None:
        while True:
            creator, topic = await self._waiting.get()
            addresses = self._addresses()
            missing = addresses.keys() - self._brokers_of(topic.topic) - {creator}
            await asyncio.gather(
                *(self._create(topic, name, addresses[name]) for name in sorted(missing))
            )

    def _brokers_of(self, topic: str) -> set[str]:
        route = self._name_server.routes.route(topic)
        return set() if route is None else {each.broker_name for each in route.queue_datas}

    async def _create(self, topic: Created, broker: str, address: str) -> None:
        header = CreateTopicRequestHeader(
            topic=topic.topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=topic.queues,
            write_queue_nums=topic.queues,
            perm=topic.perm,
            topic_filter_type=TopicFilterType.SINGLE_TAG.name,
            topic_sys_flag=topic.sys_flag,
        )
        command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.encode())
        reason: object = None
        try:
            answer = await self._client.request(address, command, _REQUEST_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                reason = answer.remark
        except RemotingError as error:
            reason = error
        if reason is not None:
            logger.warning(
                "topic %s not created on %s, which will do so with the first send: %s",
                *(topic.topic, broker, reason),
            )
