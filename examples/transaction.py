"""Deliver a message only if a database transaction commits.

The orders table is the source of truth. If this program dies between commit and send, the broker
asks any producer of the group for the outcome, and `check` looks it up in the table.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3

from pyromq.client import (
    HalfMessage,
    LitePullConsumer,
    Message,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute(
        "create table orders (transaction_id text primary key, price int check (price > 0))"
    )

    async def execute(half: HalfMessage) -> TransactionState:
        try:
            with database:
                database.execute(
                    "insert into orders values (?, ?)", (half.transaction_id, int(half.body))
                )
        except sqlite3.IntegrityError:
            return TransactionState.ROLLBACK
        return TransactionState.COMMIT

    async def check(message: ReceivedMessage) -> TransactionState:
        found = database.execute(
            "select 1 from orders where transaction_id = ?", (message.msg_id,)
        ).fetchone()
        return TransactionState.COMMIT if found else TransactionState.ROLLBACK

    async with TransactionProducer(NAMESRV, group="payments", check=check) as producer:
        for price in (10, -1, 20):
            done = await producer.send_in_transaction(
                Message("payments", str(price).encode()), execute
            )
            print("price", price, done.state.name)

    prices = []
    async with LitePullConsumer(NAMESRV, start_from=StartFrom.FIRST) as consumer:
        await consumer.subscribe("payments")
        async for message in consumer:
            prices.append(int(message.body))
            if len(prices) == 2:
                break
    print("consumed", sorted(prices))
    database.close()


if __name__ == "__main__":
    asyncio.run(main())
