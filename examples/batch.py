"""Send many messages in few requests: as an explicit batch, or batched by the producer."""

from __future__ import annotations

import asyncio
import os

from pyromq.client import Batching, Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESRV, group="shop") as producer:
        # A batch goes to one queue, in order; the producer splits it at the size limit.
        results = await producer.send_batch(
            Message("batch", f"order-{number}".encode()) for number in range(100)
        )
        print("batch of", len(results), "on", len({result.queue for result in results}), "queue")

    # With a linger time, concurrent single sends share requests.
    async with Producer(NAMESRV, group="shop", batching=Batching(linger=0.005)) as producer:
        results = await asyncio.gather(
            *(producer.send(Message("batch", f"order-{number}".encode())) for number in range(500))
        )
        print("sent", len({result.msg_id for result in results}), "single messages")


if __name__ == "__main__":
    asyncio.run(main())
