"""A web service that publishes orders and keeps the orders published by others.

    NAMESRV_ADDR=127.0.0.1:9876 uvicorn examples.fastapi_app:app
    curl -X POST localhost:8000/orders/order-17
    curl localhost:8000/orders

Producer and consumer live as long as the application, on its event loop. With several workers
(gunicorn -w 4 -k uvicorn.workers.UvicornWorker), each has its own clients, and the consumers share
the queues of their group.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from pyromq.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RocketMQError,
    StartFrom,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "web-orders"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    orders: dict[str, int] = {}

    async def handle(message: ReceivedMessage) -> None:
        # Delivery is at least once, so the handler must be idempotent.
        orders[message.keys] = message.store_timestamp

    async with (
        Producer(NAMESRV, group="web") as producer,
        PushConsumer(
            NAMESRV,
            group="web-orders-kept",
            handler=handle,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
        ),
    ):
        app.state.producer, app.state.orders = producer, orders
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order_id}", status_code=202)
async def publish(order_id: str, request: Request) -> dict[str, str]:
    producer: Producer = request.app.state.producer
    try:
        result = await producer.send(Message(TOPIC, b"ordered", keys=order_id))
    except RocketMQError as error:
        raise HTTPException(503, str(error)) from error
    return {"id": result.msg_id}


@app.get("/orders")
async def kept(request: Request) -> list[str]:
    return sorted(request.app.state.orders)
