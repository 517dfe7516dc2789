"""Read at your own pace: loops, lists, seeking, and manual commits."""

from __future__ import annotations

import asyncio
import os

from pyromq.client import LitePullConsumer, Message, Producer, StartFrom

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESRV, group="shop") as producer:
        queue = (await producer.queues("lite-pull"))[0]
        for number in range(10):
            await producer.send(Message("lite-pull", b"%d" % number), queue)

    # As a member of a group. A message counts as consumed when the loop requests the next one, or
    # when the block ends without an error.
    async with LitePullConsumer(NAMESRV, group="reports", start_from=StartFrom.FIRST) as consumer:
        await consumer.subscribe("lite-pull")
        async for message in consumer:
            print("loop", message.body.decode())
            if message.body == b"2":
                break

    # The next member resumes there; this one commits explicitly.
    async with LitePullConsumer(NAMESRV, group="reports", auto_commit=False) as consumer:
        await consumer.subscribe("lite-pull")
        read: list[str] = []
        while len(read) < 7:
            read += [message.body.decode() for message in await consumer.poll(timeout=10.0)]
        print("lists", *read)
        await consumer.commit()

    # Without a group: read any queue from any offset, without commits.
    async with LitePullConsumer(NAMESRV) as consumer:
        await consumer.assign([queue])
        await consumer.seek(queue, 8)
        messages = await consumer.poll(timeout=10.0)
        print("from 8 on", *(message.body.decode() for message in messages))


if __name__ == "__main__":
    asyncio.run(main())
