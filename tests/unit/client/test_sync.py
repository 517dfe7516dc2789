"""Synchronous clients: thin, shared loop, threads, forks, Ctrl-C, the interpreter's end."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from pyromq.client import (
    Batching,
    ClientStateError,
    HalfMessage,
    IllegalMessageError,
    LitePullConsumer,
    Message,
    MessageQueue,
    OptionError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RocketMQError,
    SendStatus,
    StartFrom,
    TransactionProducer,
    TransactionState,
    reply_to,
)
from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.options import Settings
from pyromq.client.session.session import Session
from pyromq.client.sync import SyncLitePullConsumer, SyncProducer
from pyromq.protocol.wire.bodies import HeartbeatData
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = f"topic-{abs(hash(request.node.nodeid))}"
    cluster.create_topic(name)
    return name


class Collected:
    """What a handler got; `wait_for` waits until it is enough."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._changed = threading.Condition()

    def handle(self, message: ReceivedMessage) -> None:
        with self._changed:
            self.bodies.append(message.body)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[bytes]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.bodies) >= count, DEADLINE)
        return sorted(self.bodies)


def test_a_producer_sends(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv, group="shop") as producer:
        result = producer.send(Message(topic, b"one"))
        assert result.status is SendStatus.SEND_OK
        queue = producer.queues(topic)[2]
        assert producer.send(Message(topic, b"two"), queue).queue == queue
        chosen = producer.send(Message(topic, b"three"), select=lambda queues, _: queues[-1])
        assert chosen.queue.queue_id == 3
        assert len(producer.send_batch([Message(topic, b"4"), Message(topic, b"5")])) == 2
        producer.send_oneway(Message(topic, b"6"))
        assert producer.client_id
    assert total(cluster, topic) == 6


def test_it_begins_with_the_first_use_and_is_closed_once(cluster: Cluster, topic: str) -> None:
    producer = Producer.sync(cluster.namesrv)
    assert producer.send(Message(topic, b"one")).status is SendStatus.SEND_OK
    producer.close()
    producer.close()
    with pytest.raises(ClientStateError, match="closed"):
        producer.send(Message(topic, b"two"))
    with pytest.raises(ClientStateError, match="closed"):
        producer.start()


def test_what_was_never_used_is_closed_without_a_loop(cluster: Cluster) -> None:
    producer = Producer.sync(cluster.namesrv)
    producer.close()
    with pytest.raises(ClientStateError):
        producer.queues("orders")


def test_bad_arguments_are_refused_at_once(cluster: Cluster) -> None:
    with pytest.raises(OptionError, match="retries"):
        Producer.sync(cluster.namesrv, retries=-1)
    with pytest.raises(TypeError):
        Producer.sync()  # type: ignore[call-arg]


def test_exceptions_are_those_of_the_asynchronous_client(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv) as producer:
        with pytest.raises(IllegalMessageError):
            producer.send(Message("not a topic", b"x"))
        # It goes on after an error.
        assert producer.send(Message(topic, b"x")).queue.topic == topic
    with Producer.sync("127.0.0.1:1") as producer, pytest.raises(RocketMQError):
        producer.send(Message(topic, b"x"))


def test_submitted_sends_share_requests_and_close_waits_for_them(
    cluster: Cluster, topic: str
) -> None:
    producer = Producer.sync(cluster.namesrv, batching=Batching())
    futures = [producer.submit(Message(topic, b"%d" % number)) for number in range(200)]
    producer.close()
    assert all(future.done() for future in futures)
    assert {future.result().status for future in futures} == {SendStatus.SEND_OK}
    assert total(cluster, topic) == 200


def test_submit_raises_what_is_known_at_once_in_the_future(cluster: Cluster) -> None:
    with Producer.sync(cluster.namesrv) as producer:
        future = producer.submit(Message("not a topic", b"x"))
        assert isinstance(future.exception(DEADLINE), IllegalMessageError)


def test_threads_share_a_producer(cluster: Cluster, topic: str) -> None:
    producer = Producer.sync(cluster.namesrv)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: producer.send(Message(topic, b"x")), range(64)))
    producer.close()
    assert len({result.msg_id for result in results}) == 64
    assert total(cluster, topic) == 64


async def test_it_works_in_the_thread_of_a_running_loop(cluster: Cluster, topic: str) -> None:
    # As in a notebook's cell.
    with Producer.sync(cluster.namesrv) as producer:
        assert producer.send(Message(topic, b"x")).status is SendStatus.SEND_OK


def test_a_push_consumer_consumes(cluster: Cluster, topic: str) -> None:
    got = Collected()
    with (
        PushConsumer.sync(
            cluster.namesrv,
            group="billing",
            handler=got.handle,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
        ) as consumer,
        Producer.sync(cluster.namesrv) as producer,
    ):
        for number in range(20):
            producer.send(Message(topic, b"%02d" % number))
        assert got.wait_for(20) == [b"%02d" % number for number in range(20)]
        assert {queue.topic for queue in consumer.assignment()} >= {topic}
        assert consumer.wait(0.01) is False
        consumer.pause()
        consumer.resume()
        consumer.unsubscribe(topic)
        consumer.subscribe(topic)
    assert consumer.wait(0.01) is True


def test_a_handler_may_send_and_close(cluster: Cluster, topic: str) -> None:
    producer = Producer.sync(cluster.namesrv)

    def handle(message: ReceivedMessage) -> None:
        producer.send(Message(f"{topic}-done", message.body))
        consumer.close()

    consumer = PushConsumer.sync(
        cluster.namesrv,
        group="forwarding",
        handler=handle,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
        close_grace=600.0,
    )
    consumer.start()
    producer.send(Message(topic, b"x"))
    assert consumer.wait(DEADLINE)
    producer.close()
    assert total(cluster, f"{topic}-done") == 1
    assert committed(cluster, topic, "forwarding") == 1


def test_a_coroutine_handler_cannot_wait_for_its_own_loop(cluster: Cluster, topic: str) -> None:
    producer = Producer.sync(cluster.namesrv)
    errors: list[Exception] = []
    seen = threading.Event()

    async def handle(message: ReceivedMessage) -> None:
        try:
            producer.send(message_of(message))
        except ClientStateError as error:
            errors.append(error)
        seen.set()

    def message_of(message: ReceivedMessage) -> Message:
        return Message(message.topic, message.body)

    producer.send(Message(topic, b"x"))
    with PushConsumer.sync(
        cluster.namesrv,
        group="waiting",
        handler=handle,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
    ):
        assert seen.wait(DEADLINE)
    assert "event loop that serves it" in str(errors[0])
    producer.close()


def test_a_consumer_that_cannot_start_says_why() -> None:
    consumer = PushConsumer.sync(
        "127.0.0.1:1", group="billing", handler=print, subscriptions={"orders": "*"}
    )
    with pytest.raises(RocketMQError):
        consumer.start()
    consumer.close()


def test_requests_are_replied_to(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv) as replier, Producer.sync(cluster.namesrv) as asker:

        def handle(message: ReceivedMessage) -> None:
            replier.send(reply_to(message, message.body.upper()))

        with PushConsumer.sync(
            cluster.namesrv,
            group="repliers",
            handler=handle,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
        ):
            assert asker.request(Message(topic, b"hello"), timeout=DEADLINE).body == b"HELLO"


def test_transactions(cluster: Cluster, topic: str) -> None:
    def execute(half: HalfMessage) -> TransactionState:
        # A plain function is not on the loop.
        assert plain.send(Message(f"{topic}-plain", half.body)).status is SendStatus.SEND_OK
        return TransactionState(half.argument)

    with (
        Producer.sync(cluster.namesrv) as plain,
        TransactionProducer.sync(
            cluster.namesrv, group="payments", check=lambda _: TransactionState.ROLLBACK
        ) as producer,
    ):
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            done = producer.send_in_transaction(Message(topic, b"x"), execute, state.value)
            assert done.state is state
        producer.send(Message(topic, b"y"))
        with LitePullConsumer.sync(cluster.namesrv, start_from=StartFrom.FIRST) as consumer:
            consumer.subscribe(topic)
            assert {next(consumer).body, next(consumer).body} == {b"x", b"y"}
            assert consumer.poll(0.1) == []


def test_a_lite_pull_consumer_reads(cluster: Cluster, topic: str) -> None:
    assigned: list[MessageQueue] = []
    with Producer.sync(cluster.namesrv) as producer:
        queue = producer.queues(topic)[0]
        for number in range(10):
            producer.send(Message(topic, b"%d" % number), queue)

    def reader(group: str) -> SyncLitePullConsumer:
        return LitePullConsumer.sync(cluster.namesrv, group=group, start_from=StartFrom.FIRST)

    with reader("reading") as consumer:
        consumer.subscribe({topic: "*"}, on_assigned=assigned.extend)
        for message in consumer:
            if message.body == b"4":
                break
        assert consumer.assignment() == assigned
        assert consumer.position(queue) == 5
    # All five were consumed: the block ended well.
    assert committed(cluster, topic, "reading") == 5
    assert list(consumer) == []

    def fail() -> None:
        with reader("reading") as consumer:
            consumer.subscribe(topic)
            assert next(consumer).body == b"5"
            assert next(consumer).body == b"6"
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert committed(cluster, topic, "reading") == 6

    with reader("reading") as consumer:
        consumer.subscribe(topic, on_revoked=lambda _: consumer.commit())
        lists = consumer.batches()
        assert [message.body for message in next(lists)][:2] == [b"6", b"7"]
        consumer.seek(queue, 2)
        assert consumer.poll(DEADLINE)[0].body == b"2"
        consumer.seek_to_begin(queue)
        assert consumer.poll(DEADLINE)[0].body == b"0"
        consumer.seek_to_end(queue)
        consumer.pause()
        consumer.resume()
        assert consumer.poll(0.1) == []
        assert consumer.committed(queue) == 6
        assert consumer.max_offset(queue) == 10
        assert consumer.min_offset(queue) == 0
        assert len(consumer.queues(topic)) == 4
        consumer.commit({queue: 8})
        consumer.close()
        with pytest.raises(ClientStateError):
            consumer.poll()


def test_a_pull_consumer_pulls(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv) as producer:
        queue = producer.queues(topic)[0]
        for number in range(3):
            producer.send(Message(topic, b"%d" % number), queue)
    began = datetime.fromtimestamp(0)
    with PullConsumer.sync(cluster.namesrv, topic, group="pulling") as consumer:
        assert queue in consumer.queues()
        result = consumer.pull(queue, 1, max_messages=1, wait=0.1)
        assert [message.body for message in result.messages] == [b"1"]
        assert result.next_offset == 2
        assert (consumer.min_offset(queue), consumer.max_offset(queue)) == (0, 3)
        assert consumer.offset_by_time(queue, began) == 0
        consumer.commit(queue, 2)
        assert consumer.committed(queue) == 2
        assert consumer.client_id
    with pytest.raises(ClientStateError):
        consumer.queues()


def test_close_ends_a_reader_in_another_thread(cluster: Cluster, topic: str) -> None:
    consumer = LitePullConsumer.sync(cluster.namesrv)
    consumer.assign(consumer.queues(topic))
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(list, consumer)
        with pytest.raises(TimeoutError):
            read.result(0.05)
        consumer.close()
        assert read.result(DEADLINE) == []


def test_a_pickled_face_begins_anew(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv, group="shop", retries=0) as producer:
        producer.send(Message(topic, b"x"))
        copy: SyncProducer = pickle.loads(pickle.dumps(producer))
        with copy:
            copy.send(Message(topic, b"x"))
            assert copy.client_id != producer.client_id
    assert total(cluster, topic) == 2


FORK = """
import os, sys
from pyromq.client import Message, Producer

producer = Producer.sync(sys.argv[1], group="shop", send_timeout=60)
{before}
child = os.fork()
for number in range(10):
    producer.send(Message(sys.argv[2], b"x"))
# One write: print makes two where output is not buffered, and the lines would mix.
os.write(1, (producer.client_id + "\\n").encode())
if child:
    _, status = os.waitpid(child, 0)
    # The parent's client is not disturbed by the child's end.
    producer.send(Message(sys.argv[2], b"x"))
    assert status == 0, status
"""


@pytest.mark.parametrize("before", ["", 'producer.send(Message(sys.argv[2], b"x"))'])
def test_after_a_fork_both_send(cluster: Cluster, topic: str, before: str) -> None:
    printed = run(FORK.format(before=before), cluster.namesrv, topic)
    assert len(set(printed.split())) == 2
    assert total(cluster, topic) == 21 + bool(before)


MULTIPROCESSING = """
import multiprocessing, sys
from pyromq.client import Message, Producer, PushConsumer, StartFrom

producer = Producer.sync(sys.argv[1], group="shop", send_timeout=60)

def work(number):
    return producer.send(Message(sys.argv[2], b"%d" % number)).status.name

def consume():
    got = []
    consumer = PushConsumer.sync(
        sys.argv[1], group="children", handler=lambda message: got.append(message),
        subscriptions={sys.argv[2]: "*"}, start_from=StartFrom.FIRST)
    consumer.start()
    while len(got) < 21:
        consumer.wait(0.01)

producer.send(Message(sys.argv[2], b"first"))
context = multiprocessing.get_context("fork")
with context.Pool(2) as pool:
    print(set(pool.map(work, range(20))))
# Ends without `close`: the child's end commits.
process = context.Process(target=consume)
process.start()
process.join()
print(process.exitcode)
"""


def test_workers_of_multiprocessing(cluster: Cluster, topic: str) -> None:
    assert run(MULTIPROCESSING, cluster.namesrv, topic).splitlines() == ["{'SEND_OK'}", "0"]
    assert total(cluster, topic) == 21
    assert committed(cluster, topic, "children") == 21


EXIT = """
import sys
from pyromq.client import Batching, Message, Producer, PushConsumer, StartFrom

producer = Producer.sync(sys.argv[1], send_timeout=60, batching=Batching(linger=0.2))
for number in range(10):
    producer.submit(Message(sys.argv[2], b"x"))
got = []
consumer = PushConsumer.sync(sys.argv[1], group="ending", handler=lambda message: got.append(1),
    subscriptions={sys.argv[2]: "*"}, start_from=StartFrom.FIRST)
consumer.start()
while len(got) < 10:
    consumer.wait(0.01)
producer.submit(Message(sys.argv[2] + "-last", b"x"))
"""


def test_the_end_of_the_interpreter_closes(cluster: Cluster, topic: str) -> None:
    run(EXIT, cluster.namesrv, topic)
    assert total(cluster, f"{topic}-last") == 1
    assert committed(cluster, topic, "ending") == 10


INTERRUPT = """
import signal
import sys
from pyromq.client import PushConsumer

# Whoever runs the tests in the background of a shell has Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

with PushConsumer.sync(sys.argv[1], group="interrupted", handler=print,
        subscriptions={sys.argv[2]: "*"}) as consumer:
    try:
        print("ready", flush=True)
        consumer.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_control_c_ends_a_wait(cluster: Cluster, topic: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPT, cluster.namesrv, topic],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert rest == "interrupted\n"
    assert process.returncode == 0


def run(program: str, *arguments: str) -> str:
    """What a program of its own prints; pytest's process is not forked."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stdout


def total(cluster: Cluster, topic: str) -> int:
    """How many messages a topic has."""
    return asyncio.run(_offsets(cluster.namesrv, topic, None))


def committed(cluster: Cluster, topic: str, group: str) -> int:
    """How many of them a group has consumed."""
    return asyncio.run(_offsets(cluster.namesrv, topic, group))


async def _offsets(namesrv: str, topic: str, group: str | None) -> int:
    session = Session(Settings.of(namesrv, {}), HeartbeatData)
    session.start()
    access = QueueAccess(session, group)
    try:
        queues = await access.queues(topic)
        if group is None:
            return sum([await access.max_offset(queue) for queue in queues])
        return sum([await access.committed(queue) or 0 for queue in queues])
    finally:
        await session.close()
