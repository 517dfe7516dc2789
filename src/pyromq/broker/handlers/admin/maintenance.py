"""Clean-up requests.

CLEAN_EXPIRED_CONSUMEQUEUE, DELETE_EXPIRED_COMMITLOG, CLEAN_UNUSED_TOPIC and
GET_SYSTEM_TOPIC_LIST_FROM_BROKER. Handlers run on the loop; those that inspect many queues yield in
between.
"""

from __future__ import annotations

import asyncio
import itertools
import logging

from pyromq.acl import classification as access
from pyromq.broker.role import Role
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.topic_deletion import TopicDeletion
from pyromq.broker.state.connections import ClientConnection
from pyromq.broker.state.topics import TopicTable
from pyromq.protocol.names import TOPICS_WITH_PROGRESS
from pyromq.protocol.wire.bodies import TopicList
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.store.message_store import MessageStore

logger = logging.getLogger(__name__)


class MaintenanceHandlers:
    """Cleans up on request."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, deletion: TopicDeletion, role: Role
    ) -> None:
        self._role = role
        self._store = store
        self._topics = topics
        self._deletion = deletion

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, access.ADMIN, self.clean_expired_queues),
            Route(RequestCode.DELETE_EXPIRED_COMMITLOG, access.ADMIN, self.delete_expired_log),
            Route(RequestCode.CLEAN_UNUSED_TOPIC, access.ADMIN, self.clean_unused_topics),
            Route(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, access.ADMIN, self.system_topics),
        )

    async def clean_expired_queues(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """CLEAN_EXPIRED_CONSUMEQUEUE: delete the files of queues without a message in the log."""
        logger.info("removing expired consume queues for %s", connection.remote_address)
        await self._store.retention.clean_expired_queues()
        return request.answer()

    def delete_expired_log(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """DELETE_EXPIRED_COMMITLOG: delete expired segments now, whatever `deleteWhen` says."""
        logger.info("deleting expired log segments for %s", connection.remote_address)
        self._store.retention.execute_delete_files_manually()
        return request.answer()

    async def clean_unused_topics(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """CLEAN_UNUSED_TOPIC: remove the queues of topics that no longer exist.

        A replica removes none: messages of a topic may arrive before its configuration does.
        """
        if self._role.is_replica:
            return request.answer(remark="nothing removed: this broker is a replica")
        unused = [
            topic
            for topic in self._store.queue_counts()
            if topic not in self._topics and topic not in TOPICS_WITH_PROGRESS
        ]
        # Concurrently, so that they share saves. A topic may be created meanwhile.
        removed = await asyncio.gather(*map(self._deletion.remove_unused, unused))
        for topic in itertools.compress(unused, removed):
            logger.info(
                "queues of nonexistent topic %s removed for %s",
                topic,
                connection.remote_address,
            )
        return request.answer()

    def system_topics(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER: return the topics that applications cannot use."""
        return request.answer(body=TopicList(self._topics.system_topics()).encode())
