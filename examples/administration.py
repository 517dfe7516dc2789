"""Administer a cluster: create a topic, look at its queues, find a mistyped name, delete it.

    pyromq standalone                     in one shell, and in another
    python examples/administration.py

The address of the NameServer comes from the environment variable NAMESRV_ADDR, else it is
127.0.0.1:9876.
"""

from __future__ import annotations

import asyncio
import os

from pyromq.admin import Admin, TopicConfiguration, UnknownTopicError
from pyromq.client import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "admin-example"


async def main() -> None:
    async with Admin(NAMESRV) as admin, Producer(NAMESRV) as producer:
        (cluster, *_) = await admin.cluster.names()
        change = await admin.topics.update(TopicConfiguration(TOPIC, 2, 2), cluster=cluster)
        print("created on", len(change.brokers), "broker")

        for body in (b"one", b"two", b"three"):
            await producer.send(Message(TOPIC, body))
        queues = await admin.topics.status(TOPIC)
        print(len(queues), "queues,", sum(queue.max_offset for queue in queues), "messages")

        try:
            await admin.topics.route("admin-exmaple")
        except UnknownTopicError as error:
            print("no such topic, but there is", *error.suggestions)

        deletion = await admin.topics.delete(TOPIC, cluster)
        print("deleted from", deletion.cluster)


if __name__ == "__main__":
    asyncio.run(main())
