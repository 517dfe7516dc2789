"""Handle the messages of each queue strictly in order.

The consumer holds a lock on each of its queues at the broker. A failing message blocks its queue
until it succeeds, so no other message overtakes it.
"""

from __future__ import annotations

import asyncio
import os

from pyromq.client import (
    Message,
    Order,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    StartFrom,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESRV, group="shop") as producer:
        for step in ("created", "paid", "sent"):
            await producer.send(Message("orderly", step.encode(), ordering_key="order-1"))

    done = asyncio.Event()
    failures = 0

    async def handle(message: ReceivedMessage) -> Retry | None:
        nonlocal failures
        step = message.body.decode()
        if step == "paid" and failures < 2:
            failures += 1
            print("paid failed")
            return Retry(suspend=0.05)  # retry in 50 ms; later messages wait
        print(step)
        if step == "sent":
            done.set()
        return None

    async with PushConsumer(
        NAMESRV,
        group="orderly-billing",
        handler=handle,
        subscriptions={"orderly": "*"},
        order=Order.ORDERLY,
        start_from=StartFrom.FIRST,
    ):
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
