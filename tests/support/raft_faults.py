"""A raft group of our brokers under load and random faults, with a history of all operations.

    with FaultyGroup(tmp_path, seed) as group:
        asyncio.run(group.run(20.0))     # clients and faults for so many seconds
    group.check()                        # files, and tests/support/histories.py

Producers send one message after the other, each attempt with a body of its own and without
retries, so that every attempt has one outcome: acknowledged, refused, or unknown. Followers of
queues read from the first offset on, as LitePullConsumers. Members of a consumer group share the
queues. A glancing reader pulls from any node, any offset.

A seed repeats the faults, in their order; the moments depend on the machine.

Called by tests. Clients share the caller's loop; faults happen on a thread.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyromq.client import (
    BrokerError,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    RocketMQError,
    StartFrom,
)
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.names import RAFT_TOPIC
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import PullMessageRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError
from tests.support.apache_rocketmq import ask
from tests.support.histories import Attempt, History, Logged, Place, Read, problems
from tests.support.patience import DEADLINE, until, wait_until
from tests.support.proxy import TO_CLIENT, TO_TARGET, Delay, Split
from tests.support.raft_files import assert_same_files
from tests.support.raft_groups import QUICK_TIMING, RaftGroup
from tests.support.replication_nodes import name_server

TOPIC: Final = "history"
QUEUES: Final = 4
_PRODUCERS: Final = 5
_SEND_SECONDS: Final = 4.0
_PAUSE_SECONDS: Final = 0.01
_MAX_PROBLEMS: Final = 10
#: What fills bodies, as a failure prints it.
_PADDING: Final = re.compile(r"(\\x00)+")


class FaultyGroup:
    """Three brokers of ours, their clients, and what happens to them."""

    def __init__(self, directory: Path, seed: int, *, flush_before_ack: bool = False) -> None:
        self.history = History()
        self._choose = random.Random(seed)
        self._directory = directory
        self._flush_before_ack = flush_before_ack
        self._namesrv = ""
        self._is_over = False
        self._began = time.monotonic()
        #: The ends of log and queues, once nothing is sent any more.
        self._end = 0
        self._ends: list[int] = []
        #: Messages that members of the consumer group got, by queue and offset.
        self.delivered = Counter[tuple[int, int]]()
        #: What was done to the group, and when.
        self.faults: list[str] = []
        self.outcomes = Counter[str]()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._namesrv = stack.enter_context(name_server())
            properties = {"dLegerFlushBeforeAck": str(self._flush_before_ack).lower()}
            self.group = stack.enter_context(
                RaftGroup(
                    self._directory,
                    self._namesrv,
                    ["pyromq"] * 3,
                    timing=QUICK_TIMING,
                    **properties,
                )
            )
            self._create_topic()
            self._stack = stack.pop_all()
        self._began = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note("\n".join(["faults:", *self.faults]))
        self._stack.__exit__(kind, error, trace)

    def _create_topic(self) -> None:
        fields = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }

        def is_created() -> bool:
            leader = self.group.nodes[self.group.leader()]
            header, _ = ask(leader.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, DEADLINE)
            return bool(header["code"] == ResponseCode.SUCCESS)

        wait_until(is_created)

        def has_route() -> bool:
            header, _ = ask(self._namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
            return bool(header["code"] == ResponseCode.SUCCESS)

        wait_until(has_route)

    async def run(self, seconds: float) -> None:
        """Run clients and faults for so long; then heal, and let the clients come to an end."""
        async with asyncio.TaskGroup() as clients:
            producers = [clients.create_task(self._produce(n)) for n in range(_PRODUCERS)]
            for number in range(2):
                clients.create_task(self._follow(f"follower {number}"))
                clients.create_task(self._share())
            clients.create_task(self._glance())
            try:
                await asyncio.to_thread(self._do_faults, seconds)
            finally:
                self._is_over = True
            await asyncio.gather(*producers)
            self._end = await asyncio.to_thread(self.group.settle)
            self._ends = await asyncio.to_thread(self._queue_ends)
        await asyncio.to_thread(self.group.stop)

    # Clients

    async def _produce(self, number: int) -> None:
        choose = random.Random(f"{number}")
        async with Producer(
            self._namesrv, group="history", retries=0, send_timeout=_SEND_SECONDS
        ) as producer:
            count = 0
            while not self._is_over:
                queue = MessageQueue(TOPIC, "raft", choose.randrange(QUEUES))
                body = b"%d.%d:" % (number, count) + bytes(choose.randrange(300))
                count += 1
                attempt = Attempt(body, queue.queue_id, time.monotonic())
                self.history.attempts.append(attempt)
                try:
                    result = await producer.send(Message(TOPIC, body), queue)
                except RocketMQError as error:
                    attempt.error = f"{type(error).__name__}: {error}"
                    self.outcomes[_name(error)] += 1
                    await asyncio.sleep(5 * _PAUSE_SECONDS)
                else:
                    assert result.queue == queue, result
                    assert result.offset_msg_id is not None
                    physical = decode_message_id(result.offset_msg_id)[2]
                    attempt.place = Place(queue.queue_id, result.queue_offset, physical)
                    attempt.answered = time.monotonic()
                    self.outcomes["acknowledged"] += 1
                    await asyncio.sleep(choose.random() * _PAUSE_SECONDS)

    async def _follow(self, name: str) -> None:
        """Read everything once, in order."""
        async with LitePullConsumer(self._namesrv, start_from=StartFrom.FIRST) as consumer:
            await _patiently(
                lambda: consumer.assign([MessageQueue(TOPIC, "raft", q) for q in range(QUEUES)])
            )
            ends = [0] * QUEUES
            while not self._have_all(ends):
                for message in await consumer.poll(0.2):
                    queue_id, offset = message.queue.queue_id, message.queue_offset
                    self.history.reads.append(Read(name, queue_id, offset, message.body))
                    ends[queue_id] = offset + 1

    async def _share(self) -> None:
        """Read as a member of a group, at least once."""
        async with LitePullConsumer(
            self._namesrv, group="members", start_from=StartFrom.FIRST
        ) as consumer:
            await _patiently(lambda: consumer.subscribe({TOPIC: "*"}))
            while not self._are_delivered():
                for message in await consumer.poll(0.2):
                    queue_id, offset = message.queue.queue_id, message.queue_offset
                    self.delivered[queue_id, offset] += 1
                    self.history.glances.append(Read("member", queue_id, offset, message.body))

    async def _glance(self) -> None:
        """Read a few messages somewhere, again and again."""
        choose = random.Random(1)
        client = RemotingClient(connect_timeout=1.0)
        ends = [0] * QUEUES
        try:
            while not self._is_over:
                queue_id = choose.randrange(QUEUES)
                end = ends[queue_id]
                offset = choose.choice([0, end, end, choose.randrange(end + 1)])
                address = choose.choice(list(self.group.nodes.values())).address
                found = await _pull(client, address, queue_id, offset)
                self.history.glances += found
                if found:
                    ends[queue_id] = max(end, found[-1].offset + 1)
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await client.close()

    def _have_all(self, ends: list[int]) -> bool:
        return ends == self._ends

    def _are_delivered(self) -> bool:
        return bool(self._ends) and len(self.delivered) == sum(self._ends)

    def _queue_ends(self) -> list[int]:
        """Ask a node that has everything where the queues end."""
        address = self.group.nodes["n0"].address
        ends = []
        for queue_id in range(QUEUES):
            fields = {"topic": TOPIC, "queueId": str(queue_id)}
            header, _ = ask(address, RequestCode.GET_MAX_OFFSET, fields, DEADLINE)
            ends.append(int(header["extFields"]["offset"]))
        return ends

    # Faults

    def _do_faults(self, seconds: float) -> None:
        deadline = self._began + seconds
        kinds: list[Callable[[], None]] = [
            self._kill_leader,
            self._kill_one,
            self._kill_two,
            self._kill_all,
            self._restart_one,
            self._pause_leader,
            self._pause_one,
            self._isolate_leader,
            self._isolate_one,
            self._cut_one_way,
            self._pass_half,
            self._disturb,
            self._hand_over,
            self._hand_over,
            self._slow_disk,
        ]
        while time.monotonic() < deadline and not self._is_over:
            self._moment(1.0)
            kind = self._choose.choice(kinds)
            self._note(kind.__name__.strip("_"))
            kind()
            if self._choose.random() < 0.7:
                self._heal()
                self._moment(1.0)
                if self._choose.random() < 0.5:
                    self._wait_for_acknowledged(_PRODUCERS * 10)
        self._heal()
        self._note("end")

    def _wait_for_acknowledged(self, count: int) -> None:
        """Wait until the group works again."""
        before = self.outcomes["acknowledged"]
        wait_until(lambda: self._is_over or self.outcomes["acknowledged"] >= before + count)

    def _moment(self, seconds: float) -> None:
        time.sleep(self._choose.random() ** 2 * seconds)

    def _note(self, text: str) -> None:
        self.faults.append(f"{time.monotonic() - self._began:8.3f} {text}")

    def _leader(self) -> str:
        """Return the leader, or any node while there is none; the choices must not differ."""
        other = self._one()
        return self.group.leader_now() or other

    def _one(self) -> str:
        return self._choose.choice(list(self.group.nodes))

    def _kill_leader(self) -> None:
        self._kill(self._leader())

    def _kill_one(self) -> None:
        self._kill(self._one())

    def _kill_two(self) -> None:
        self._kill(*self._choose.sample(list(self.group.nodes), 2))

    def _kill_all(self) -> None:
        self._kill(*self._choose.sample(list(self.group.nodes), 3))

    def _kill(self, *nodes: str) -> None:
        for node in nodes:
            self._note(f"  kill {node}")
            self.group.nodes[node].kill()
        self._moment(3.0)

    def _restart_one(self) -> None:
        node = self.group.nodes[self._one()]
        self._note(f"  {node}")
        if "boot success" in node.log():
            node.stop()
        else:
            node.kill()  # it would not take a signal yet
        self._moment(1.0)

    def _pause_leader(self) -> None:
        self._pause(self._leader())

    def _pause_one(self) -> None:
        self._pause(self._one())

    def _pause(self, node: str) -> None:
        seconds = self._choose.choice([0.5, 2.0, 5.0])
        self._note(f"  pause {node}")
        if self.group.nodes[node].runs:
            self.group.nodes[node].pause()
            self._moment(seconds)
            self.group.nodes[node].resume()

    def _isolate_leader(self) -> None:
        self._isolate(self._leader())

    def _isolate_one(self) -> None:
        self._isolate(self._one())

    def _isolate(self, node: str) -> None:
        silent = self._choose.random() < 0.5
        self._note(f"  isolate {node}{' silently' if silent else ''}")
        self.group.isolate(node, silent=silent)
        self._moment(6.0)

    def _cut_one_way(self) -> None:
        """Keep one node from asking another one; or two nodes from talking at all."""
        sender, receiver = self._choose.sample(list(self.group.nodes), 2)
        silent = self._choose.random() < 0.5
        both = self._choose.random() < 0.5
        self._note(f"  {sender} to {receiver}{' and back' if both else ''}, silent: {silent}")
        self.group.cut(sender, receiver, silent=silent)
        if both:
            self.group.cut(receiver, sender, silent=silent)
        self._moment(5.0)

    def _pass_half(self) -> None:
        """Let requests arrive, but not the answers, or the other way round."""
        sender, receiver = self._choose.sample(list(self.group.nodes), 2)
        direction = self._choose.choice([TO_TARGET, TO_CLIENT])
        self._note(f"  {sender} to {receiver}, {direction.value}")
        self.group.links[sender, receiver].stall(direction)
        self._moment(4.0)

    def _disturb(self) -> None:
        """Delay and split bytes, or end a connection, on each link."""
        for link in self.group.links.values():
            kind = self._choose.randrange(3)
            direction = self._choose.choice([TO_TARGET, TO_CLIENT])
            if kind == 0:
                link.inject(direction, Delay(0, self._choose.random()))
            elif kind == 1:
                link.inject(direction, Split(0, 2_000, self._choose.choice([1, 7, 100])))
            else:
                link.cut(reset=self._choose.random() < 0.5)
        self._moment(1.0)

    def _hand_over(self) -> None:
        leader, to = self._leader(), self._one()
        self._note(f"  {leader} to {to}")
        if leader != to and self.group.nodes[leader].runs:
            try:
                problem = self.group.transfer(leader, to, timeout=3.0)
            except OSError as error:
                self._note(f"  {error}")
            else:
                self._note(f"  {problem or 'done'}")

    def _slow_disk(self) -> None:
        node, seconds = self._one(), self._choose.choice([0.02, 0.2, 1.0])
        self._note(f"  {node} by {seconds} s")
        self.group.slow_disk(node, seconds)
        self._moment(4.0)

    def _heal(self) -> None:
        """End all faults."""
        self._note("heal")
        self.group.heal()
        for node_id, node in self.group.nodes.items():
            self.group.slow_disk(node_id, 0.0)
            assert not node.has_ended(), f"{node} ended by itself:\n{node.log()[-5000:]}"
            if not node.runs:
                node.start(wait=False)

    # Afterwards

    def check(self) -> None:
        """Check the files of all nodes, and the history."""
        entries = assert_same_files(self.group.stores(), at_least=self._end)
        log = []
        for entry in entries:
            record = entry.record()
            if record.topic == RAFT_TOPIC:
                continue
            assert record.topic == TOPIC, record
            place = Place(record.queue_id, record.queue_offset, record.physical_offset)
            assert record.physical_offset == entry.position + 48
            log.append(Logged(entry.term, record.store_host, place, record.body))
        found = [_PADDING.sub("...", text) for text in problems(self.history, log)]
        assert not found, "\n".join(
            [f"{len(found)} problems:", *found[:_MAX_PROBLEMS], "faults:", *self.faults]
        )

    def summary(self) -> str:
        """Return figures of the run."""
        return (
            f"{len(self.history.attempts)} attempts: {dict(self.outcomes)}; "
            f"{len(self.history.reads)} reads in order, {len(self.history.glances)} others; "
            f"{sum(not text[9:].startswith((' ', 'heal', 'end')) for text in self.faults)} faults"
        )


def _name(error: RocketMQError) -> str:
    if isinstance(error, BrokerError):
        return f"{error.code} {error.remark[:60]}"
    return type(error).__name__


async def _patiently(call: Callable[[], object]) -> None:
    """Repeat a call of a client until the group serves it."""

    async def works() -> bool:
        try:
            await call()  # type: ignore[misc]
        except RocketMQError:
            await asyncio.sleep(0.1)
            return False
        return True

    await until(works)


async def _pull(client: RemotingClient, address: str, queue_id: int, offset: int) -> list[Read]:
    header = PullMessageRequestHeader(
        consumer_group="glances",
        topic=TOPIC,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=8,
        sys_flag=4,  # the subscription comes with the request
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
    )
    command = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.encode())
    try:
        answer = await client.request(address, command, 1.0)
    except RemotingError:
        return []
    if answer.code != ResponseCode.SUCCESS:
        return []
    return [
        Read(f"glance at {address}", record.queue_id, record.queue_offset, record.body)
        for record in decode_records(answer.body)
    ]
