"""A real broker as a child process, a load on it, and what is true after it was killed.

`BrokerProcess` is `pyromq standalone` on free ports. `Load` sends over several
connections, singles and batches, and keeps what was acknowledged. `check_wire` and
`check_files` hold a broker, or a store directory, against that: each acknowledged message
is there once, at its queue and offset, with its bytes and properties.

A message is known by a number that makes everything else of it: topic, queue, body, tags
and key. So whatever comes back can be held against what was sent without a memory of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
from collections.abc import Sized
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.record import MessageRecord, decode_records, encode_inner_message
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError
from tests.support.patience import DEADLINE, PATIENT_PROPERTIES, until
from tests.support.stores import audit, open_store

REPOSITORY: Final = Path(__file__).parents[2]
#: Small files: segments roll all the time.
SETTINGS: Final[dict[str, int]] = {
    "mappedFileSizeCommitLog": 512 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 128,
    "maxHashSlotNum": 1024,
    "maxIndexNum": 2048,
    "flushIntervalCommitLog": 5,
    "flushIntervalConsumeQueue": 10,
    "flushCommitLogThoroughInterval": 20,
}
#: The same for a store that is opened without a broker.
STORE_SETTINGS: Final = {
    **{re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", k): v for k, v in SETTINGS.items()},
    "max_msgs_num_batch": 1000,  # the audit wants to see every message of a key
}
TOPICS: Final = ("orders", "payments", "audit")
QUEUES_PER_TOPIC: Final = 4
QUEUES: Final = [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES_PER_TOPIC)]
_BOOTED: Final = re.compile(rb"The broker\[.*, (127\.0\.0\.1:\d+)\] boot success")
_BORN: Final = 1_700_000_000_000


def seeds(count: int) -> list[int]:
    """Seeds of a soak: the one of PYROMQ_SEED alone, or so many new ones."""
    given = os.environ.get("PYROMQ_SEED")
    if given:
        return [int(given)]
    first = time.time_ns() // 1_000_000 % 1_000_000
    return list(range(first, first + count))


class Acknowledged(NamedTuple):
    """What a broker said of one message."""

    topic: str
    queue_id: int
    offset: int
    physical: int
    number: int


class BrokerProcess:
    """`pyromq standalone`, until it is killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.address = ""

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @classmethod
    async def launch(
        cls, directory: Path, *, open_files: int | None = None, **settings: object
    ) -> BrokerProcess:
        """Begin a start; nothing is waited for. `open_files` limits the child's descriptors."""
        file = directory.with_name(directory.name + ".properties")
        file.write_text(
            "".join(
                f"{key}={value}\n"
                for key, value in (PATIENT_PROPERTIES | SETTINGS | settings).items()
            )
        )
        arguments = ["standalone", "--data", str(directory), "-c", str(file)]
        arguments += ["--namesrv-port", "0", "--broker-port", "0", "--log-level", "ERROR"]
        # By the shell: a function to be called in the child is not safe beside threads.
        limited = "" if open_files is None else f"ulimit -n {open_files} && "
        return cls(
            await asyncio.create_subprocess_exec(
                *("sh", "-c", f'{limited}exec "$@"', "sh"),
                *(sys.executable, "-m", "pyromq", *arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=REPOSITORY,
            )
        )

    @classmethod
    async def start(
        cls, directory: Path, *, open_files: int | None = None, **settings: object
    ) -> BrokerProcess:
        """Start a broker and wait until it serves."""
        broker = await cls.launch(directory, open_files=open_files, **settings)
        try:
            async with asyncio.timeout(DEADLINE):
                await broker.wait_until_serving()
        except BaseException:
            await broker.kill()
            raise
        return broker

    async def wait_until_serving(self) -> None:
        """Read on until the broker says where it listens."""
        output = self._process.stdout
        assert output is not None
        said = []
        while line := await output.readline():
            said.append(line)
            if found := _BOOTED.search(line):
                self.address = found[1].decode()
                return
        raise AssertionError(f"the broker did not start: {b''.join(said).decode()}")

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> bytes:
        """End it, by SIGKILL unless told otherwise; returns what it had printed since."""
        if self._process.returncode is None:
            self._process.send_signal(number)
        rest, _ = await self._process.communicate()
        return rest


class Load:
    """Sends numbered messages on several connections and keeps what was acknowledged."""

    def __init__(self, seed: int) -> None:
        self.acknowledged: list[Acknowledged] = []
        self._numbers = iter(range(1 << 40))
        self._choose = random.Random(seed)

    async def run(self, address: str, *, connections: int = 4, in_flight: int = 3) -> None:
        """Send until the broker is gone."""
        clients = [RemotingClient() for _ in range(connections)]
        try:
            await asyncio.gather(
                *(self._send(client, address) for client in clients for _ in range(in_flight))
            )
        finally:
            for client in clients:
                await client.close()

    async def _send(self, client: RemotingClient, address: str) -> None:
        while True:
            numbers = self.next_numbers()
            try:
                answer = await client.request(address, send_command(numbers), DEADLINE)
            except RemotingError:
                return
            assert answer.code == ResponseCode.SUCCESS, answer
            self.acknowledged += places_of(numbers, answer)

    def next_numbers(self) -> list[int]:
        """Choose the messages of the next request: one, or a batch of one queue."""
        count = self._choose.choice((1, 1, 1, 1, 2, 7, 40))
        queue = self._choose.randrange(len(QUEUES))
        return [next(self._numbers) * len(QUEUES) + queue for _ in range(count)]


def places_of(numbers: list[int], answer: RemotingCommand) -> list[Acknowledged]:
    """Return where a broker says that it stored messages."""
    header = SendMessageResponseHeader.decode(answer.ext_fields)
    ids = header.msg_id.split(",")
    assert len(ids) == len(numbers)
    topic = QUEUES[numbers[0] % len(QUEUES)][0]
    return [
        Acknowledged(
            topic, header.queue_id, header.queue_offset + at, decode_message_id(ids[at])[2], number
        )
        for at, number in enumerate(numbers)
    ]


async def until_more_than(count: int, acknowledged: Sized, sending: asyncio.Future[None]) -> None:
    """Wait for that much of a load, however slow the machine is."""
    await until(lambda: len(acknowledged) > count or sending.done())


def send_command(numbers: list[int]) -> RemotingCommand:
    """The request that sends these messages, which are of one queue."""
    topic, queue_id = QUEUES[numbers[0] % len(QUEUES)]
    batch = len(numbers) > 1
    if batch:
        body = b"".join(encode_inner_message(body_of(n), properties_of(n)) for n in numbers)
    header = SendMessageRequestHeaderV2(
        producer_group="crash",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES_PER_TOPIC,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=_BORN,
        flag=0,
        properties="" if batch else properties_of(numbers[0]).decode(),
        batch=batch,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return RemotingCommand(
        code, ext_fields=header.encode(), body=body if batch else body_of(numbers[0])
    )


def body_of(number: int) -> bytes:
    """A message's body: its number, then as much as the number says; now and then a lot."""
    length = 60_000 if number % 97 == 0 else number * 7919 % 1500
    return b"%d:" % number + bytes([number % 251]) * length


def properties_of(number: int) -> bytes:
    """A message's properties: a key for each, tags for most."""
    tags = f"\x02TAGS\x01tag{number % 5}" if number % 5 else ""
    return f"KEYS\x01key{number} group{number // 40}{tags}".encode()


class Verifier:
    """Holds messages that come back against what was acknowledged."""

    def __init__(self, acknowledged: list[Acknowledged]) -> None:
        self._acknowledged = {message.number: message for message in acknowledged}
        assert len(self._acknowledged) == len(acknowledged)
        self._seen: set[int] = set()

    def take(self, record: MessageRecord) -> None:
        """One stored message: intact, where it belongs, not seen before."""
        number = int(record.body.partition(b":")[0])
        assert record.body == body_of(number)
        assert (record.topic, record.queue_id) == QUEUES[number % len(QUEUES)]
        # A broker adds its own, and Java's changes their order.
        found = set(record.raw_properties.split(b"\x02"))
        assert found >= set(properties_of(number).split(b"\x02")), record.raw_properties
        assert number not in self._seen, f"{number} is stored twice"
        self._seen.add(number)
        told = self._acknowledged.get(number)
        if told is not None:
            place = (record.topic, record.queue_id, record.queue_offset, record.physical_offset)
            assert told[:4] == place, f"{told} is at {place}"

    def finish(self) -> None:
        """Nothing acknowledged is missing."""
        missing = sorted(self._acknowledged.keys() - self._seen)
        assert not missing, f"lost: {[self._acknowledged[number] for number in missing[:5]]}"


def check_files(directory: Path, acknowledged: list[Acknowledged]) -> None:
    """Start a store on `directory`: everything acknowledged is there, everything agrees."""
    store = open_store(directory, **STORE_SETTINGS)
    try:
        verifier = Verifier(acknowledged)
        for record in audit(store):
            verifier.take(record)
        verifier.finish()
    finally:
        store.stop()


async def check_wire(address: str, acknowledged: list[Acknowledged]) -> None:
    """Ask a broker for its topics and all its messages: everything acknowledged is there."""
    client = RemotingClient()
    try:
        answer = await client.request(
            address, RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG), DEADLINE
        )
        topics = orjson.loads(answer.body)["topicConfigTable"]
        for topic in {message.topic for message in acknowledged}:
            # More where a kill came before the topic was on the disk: it is made of its messages.
            assert topics[topic]["writeQueueNums"] >= QUEUES_PER_TOPIC, topics[topic]
        verifier = Verifier(acknowledged)
        for topic, queue_id in QUEUES:
            if topic in topics:
                for record in await _pull_all(client, address, topic, queue_id):
                    verifier.take(record)
        verifier.finish()
    finally:
        await client.close()


async def _pull_all(
    client: RemotingClient, address: str, topic: str, queue_id: int
) -> list[MessageRecord]:
    records: list[MessageRecord] = []
    while True:
        header = PullMessageRequestHeader(
            consumer_group="crash",
            topic=topic,
            queue_id=queue_id,
            queue_offset=len(records),
            max_msg_nums=32,
            sys_flag=4,  # the subscription comes with the request
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        answer = await client.request(
            address,
            RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.encode()),
            DEADLINE,
        )
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
            return records
        found = decode_records(answer.body)
        first = len(records)
        assert [record.queue_offset for record in found] == list(range(first, first + len(found)))
        records += found
