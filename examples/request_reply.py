"""Send a request and wait for its reply: remote calls through the broker."""

from __future__ import annotations

import asyncio
import os

from pyromq.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RequestTimeoutError,
    StartFrom,
    reply_to,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESRV, group="replier") as replier:

        async def handle(message: ReceivedMessage) -> None:
            if message.body != b"nobody knows":
                await replier.send(reply_to(message, message.body.upper()))

        async with (
            PushConsumer(
                NAMESRV,
                group="repliers",
                handler=handle,
                subscriptions={"questions": "*"},
                start_from=StartFrom.FIRST,
            ),
            Producer(NAMESRV, group="requester") as producer,
        ):
            reply = await producer.request(Message("questions", b"hello"), timeout=10.0)
            print("reply:", reply.body.decode())
            try:
                await producer.request(Message("questions", b"nobody knows"), timeout=0.5)
            except RequestTimeoutError as error:
                print("no reply:", type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main())
