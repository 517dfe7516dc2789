"""Delay a message: level 1 is one second, 2 is five, 3 is ten, up to two hours."""

from __future__ import annotations

import asyncio
import os
import time

from pyromq.client import LitePullConsumer, Message, Producer, StartFrom

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESRV, group="shop") as producer:
        await producer.send(Message("delay", b"now"))
        began = time.time()
        await producer.send(Message("delay", b"one second later", delay_level=1))

    async with LitePullConsumer(NAMESRV, start_from=StartFrom.FIRST) as consumer:
        await consumer.subscribe("delay")
        async for message in consumer:
            print(message.body.decode())
            if message.body != b"now":
                print("never early:", time.time() - began >= 1.0)
                break


if __name__ == "__main__":
    asyncio.run(main())
