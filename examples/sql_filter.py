"""Let the broker filter messages by their properties.

The broker needs `enablePropertyFilter=true`.
"""

from __future__ import annotations

import asyncio
import os

from pyromq.client import LitePullConsumer, Message, Producer, StartFrom, Subscription

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESRV, group="shop") as producer:
        for price, region in ((5, "north"), (15, "south"), (25, "north"), (35, "north")):
            properties = {"price": str(price), "region": region}
            body = f"{price} {region}".encode()
            await producer.send(Message("sql-filter", body, properties=properties))

    wanted = Subscription.sql("price BETWEEN 10 AND 30 OR region = 'south'")
    found = []
    async with LitePullConsumer(NAMESRV, group="filtered", start_from=StartFrom.FIRST) as consumer:
        await consumer.subscribe({"sql-filter": wanted})
        async for message in consumer:
            found.append(message.body.decode())
            if len(found) == 2:
                break
    print(*sorted(found), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
