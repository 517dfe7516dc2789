"""Use the clients without asyncio: in scripts, threads, Django, Celery, notebooks.

One background thread per process serves all synchronous clients. They may be created before a
fork: each process opens its own connections.
"""

from __future__ import annotations

import os
import threading

from pyromq.client import Message, Producer, PushConsumer, ReceivedMessage, StartFrom

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def main() -> None:
    lock, bodies, enough = threading.Lock(), [], threading.Event()

    def handle(message: ReceivedMessage) -> None:
        # Plain functions run in threads, several at a time.
        with lock:
            bodies.append(message.body.decode())
            if len(bodies) == 4:
                enough.set()

    with Producer.sync(NAMESRV, group="shop") as producer:
        result = producer.send(Message("synchronous", b"1"))
        print("sent", result.status.name)
        # Send concurrently with futures of concurrent.futures.
        futures = [producer.submit(Message("synchronous", b"%d" % n)) for n in (2, 3, 4)]
        print("submitted", {future.result().status.name for future in futures})

    with PushConsumer.sync(
        NAMESRV,
        group="billing-sync",
        handler=handle,
        subscriptions={"synchronous": "*"},
        start_from=StartFrom.FIRST,
    ):
        enough.wait()
    print("consumed", sorted(bodies))


if __name__ == "__main__":
    main()
