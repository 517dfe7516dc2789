"""Every synchronous client: shared loop, threads, forks, Ctrl-C, the end of the interpreter."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyromq.client import (
    ClientStateError,
    IllegalMessageError,
    Message,
    OptionError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RocketMQError,
    SendStatus,
    StartFrom,
)
from pyromq.client.producer.sync import SyncProducer
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE
from tests.unit.client.message_counts import committed, total


def test_the_first_call_starts_it_and_close_is_idempotent(cluster: Cluster, topic: str) -> None:
    producer = Producer.sync(cluster.namesrv)
    assert producer.send(Message(topic, b"one")).status is SendStatus.SEND_OK
    producer.close()
    producer.close()
    with pytest.raises(ClientStateError, match="closed"):
        producer.send(Message(topic, b"two"))
    with pytest.raises(ClientStateError, match="closed"):
        producer.start()


def test_an_unused_client_is_closed_without_a_loop(cluster: Cluster) -> None:
    producer = Producer.sync(cluster.namesrv)
    producer.close()
    with pytest.raises(ClientStateError):
        producer.queues("orders")


def test_bad_arguments_are_refused_at_once(cluster: Cluster) -> None:
    with pytest.raises(OptionError, match="retries"):
        Producer.sync(cluster.namesrv, retries=-1)
    with pytest.raises(TypeError):
        Producer.sync()  # type: ignore[call-arg]


def test_exceptions_of_the_asynchronous_client_are_raised(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv) as producer:
        with pytest.raises(IllegalMessageError):
            producer.send(Message("not a topic", b"x"))
        # The client still works after an error.
        assert producer.send(Message(topic, b"x")).queue.topic == topic
    with Producer.sync("127.0.0.1:1") as producer, pytest.raises(RocketMQError):
        producer.send(Message(topic, b"x"))


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


def test_an_unpickled_client_is_a_new_one(cluster: Cluster, topic: str) -> None:
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
# One write: unbuffered print makes two, and the lines of both processes would mix.
os.write(1, (producer.client_id + "\\n").encode())
if child:
    _, status = os.waitpid(child, 0)
    # The child's exit does not affect the parent's client.
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
# Exits without `close`: the exit commits.
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


def test_clients_are_closed_at_exit(cluster: Cluster, topic: str) -> None:
    run(EXIT, cluster.namesrv, topic)
    assert total(cluster, f"{topic}-last") == 1
    assert committed(cluster, topic, "ending") == 10


INTERRUPT = """
import signal
import sys
from pyromq.client import PushConsumer

# A shell starts background jobs with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

with PushConsumer.sync(sys.argv[1], group="interrupted", handler=print,
        subscriptions={sys.argv[2]: "*"}) as consumer:
    try:
        print("ready", flush=True)
        consumer.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_control_c_interrupts_a_wait(cluster: Cluster, topic: str) -> None:
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
    """Run a program in a new process, since pytest must not fork, and return its output."""
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
