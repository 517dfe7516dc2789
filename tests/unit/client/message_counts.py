"""Count the messages of a real cluster: stored in a topic, consumed by a group."""

from __future__ import annotations

import asyncio

from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.options import Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import HeartbeatData
from pyromq.testing import Cluster


def total(cluster: Cluster, topic: str) -> int:
    """Return the number of messages in a topic."""
    return asyncio.run(_offsets(cluster.namesrv, topic, None))


def committed(cluster: Cluster, topic: str, group: str) -> int:
    """Return the number of messages that a group has consumed."""
    return asyncio.run(_offsets(cluster.namesrv, topic, group))


async def _offsets(namesrv: str, topic: str, group: str | None) -> int:
    session = Session(Settings.of(namesrv, {}), HeartbeatData)
    session.start()
    access = QueueAccess(session, group)
    try:
        queues = await access.queues(topic)
        if group is None:
            return sum([await access.max_offset(queue) for queue in queues])
        return sum([await access.committed(queue) or 0 for queue in queues])
    finally:
        await session.close()
