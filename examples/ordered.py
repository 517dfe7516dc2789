"""Keep the messages of an order in sequence: the same ordering key goes to the same queue."""

from __future__ import annotations

import asyncio
import os

from pyromq.client import LitePullConsumer, Message, Producer, StartFrom

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
STEPS = ("created", "paid", "sent")


async def main() -> None:
    async with Producer(NAMESRV, group="shop") as producer:
        for step in STEPS:
            for order in ("order-1", "order-2"):
                body = f"{order} {step}".encode()
                # Await each send: concurrent sends may overtake each other.
                await producer.send(Message("ordered", body, ordering_key=order))

    seen: dict[str, list[str]] = {}
    async with LitePullConsumer(NAMESRV, start_from=StartFrom.FIRST) as consumer:
        await consumer.subscribe("ordered")
        async for message in consumer:
            order, step = message.body.decode().split()
            seen.setdefault(order, []).append(step)
            if sum(map(len, seen.values())) == 6:
                break
    for order, steps in sorted(seen.items()):
        print(order, *steps)


if __name__ == "__main__":
    asyncio.run(main())
