"""Send a message and consume it with a handler.

pyromq standalone &
python examples/quick_start.py
"""

from __future__ import annotations

import asyncio
import os

from pyromq.client import Message, Producer, PushConsumer, ReceivedMessage, StartFrom

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    arrived = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        # Return to acknowledge the message; raise to have it redelivered later.
        print("consumed", message.tags, message.keys, message.body.decode())
        arrived.set()

    async with Producer(NAMESRV, group="shop") as producer:
        message = Message("quick-start", b"one book", tags="new", keys="order-17")
        result = await producer.send(message)
        print("sent", result.status.name, result.queue.broker_name)

    async with PushConsumer(
        NAMESRV,
        group="billing",
        handler=handle,
        subscriptions={"quick-start": "new || paid"},
        start_from=StartFrom.FIRST,
    ):
        await arrived.wait()


if __name__ == "__main__":
    asyncio.run(main())
