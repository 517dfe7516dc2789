"""A NameServer and brokers in memory, enough to observe what clients request."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import INNER_HEAD, INNER_HEAD_SIZE, MessageRecord, encode_record
from pyromq.protocol.wire.bodies import (
    BrokerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueueData,
    TopicRouteData,
    UnlockBatchRequestBody,
)
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FrameReader, RemotingCommand
from pyromq.protocol.wire.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    ReplyMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from tests.support.patience import DEADLINE

HOST = encode_host("127.0.0.1", 10911)


class FakeBroker:
    """A NameServer and a broker on one port."""

    def __init__(self, cluster: FakeCluster, name: str, broker_id: int = 0) -> None:
        self.cluster = cluster
        self.name = name
        self.broker_id = broker_id
        #: Whether NameServers know it.
        self.is_listed = True
        self.requests: list[RemotingCommand] = []
        #: What clients answered to what was pushed to them.
        self.answers: list[RemotingCommand] = []
        #: Answers to give instead of the right ones, by request code, used up in order.
        self.refusals: dict[int, list[tuple[int, str]]] = defaultdict(list)
        #: Request codes that get no answer.
        self.silent: set[int] = set()
        self.queues: dict[tuple[str, int], list[MessageRecord]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, asyncio.StreamWriter] = {}
        #: Every client that sent a heartbeat.
        self.clients: dict[str, asyncio.StreamWriter] = {}
        #: Who has locked a queue, by (topic, queue id).
        self.locks: dict[tuple[str, int], str] = {}
        #: What its answers say: Java's brokers are trusted with less than pyromq's.
        self.language = LanguageCode.PYTHON
        self.arrived = asyncio.Condition()
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int = 0) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def restart(self) -> None:
        """Listen again, at the same address, without the clients that it knew."""
        self.members.clear()
        self.clients.clear()
        await self.start(int(self.address.rpartition(":")[2]))

    async def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self.server.wait_closed()

    def seen(self, code: int) -> list[RemotingCommand]:
        return [request for request in self.requests if request.code == code]

    async def put(self, topic: str, queue_id: int, body: bytes, **values: object) -> None:
        records = self.queues[topic, queue_id]
        properties = values.pop("raw_properties", b"")
        assert isinstance(properties, bytes)
        records.append(
            MessageRecord(
                topic=topic,
                queue_id=queue_id,
                queue_offset=len(records),
                physical_offset=1000 + len(records),
                body=body,
                properties=decode_properties(properties),
                flag=0,
                sys_flag=int(str(values.pop("sys_flag", 0))),
                born_timestamp=1,
                born_host=("127.0.0.1", 1),
                store_timestamp=int(str(values.pop("store_timestamp", 2))),
                store_host=("127.0.0.1", 10911),
                reconsume_times=0,
                prepared_transaction_offset=0,
                body_crc=0,
                size=0,
                message_id="",
                raw_properties=properties,
            )
        )
        assert not values
        async with self.arrived:
            self.arrived.notify_all()

    def push(self, client_id: str, request: RemotingCommand) -> None:
        """Send a request to a client."""
        self.clients[client_id].write(request.encode())

    def notify_members(self) -> None:
        for writer in self.members.values():
            request = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=2)
            writer.write(request.encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        frames = FrameReader()
        async with asyncio.TaskGroup() as answers:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    for command in frames.feed(data):
                        answers.create_task(self._answer(command, writer))
        writer.close()

    async def _answer(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if command.is_response:
            self.answers.append(command)
            return
        self.requests.append(command)
        if command.code in self.silent:
            return
        refusals = self.refusals[command.code]
        if refusals:
            answer = command.answer(*refusals.pop(0))
        else:
            name = RequestCode(command.code).name.lower()
            handler: Callable[..., object] = getattr(self, f"_{name}")
            outcome = handler(command, writer)
            if asyncio.iscoroutine(outcome):
                outcome = await outcome
            assert isinstance(outcome, RemotingCommand)
            answer = outcome
        if not command.is_oneway:
            answer.language = self.language
            writer.write(answer.encode())

    def _get_routeinfo_by_topic(self, command: RemotingCommand, _: object) -> RemotingCommand:
        topic = command.ext_fields["topic"]
        counts = self.cluster.topics.get(topic)
        if counts is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, f"No topic route: {topic}")
        brokers: dict[str, dict[int, str]] = defaultdict(dict)
        for broker in self.cluster.brokers:
            if broker.name in counts and broker.is_listed:
                brokers[broker.name][broker.broker_id] = broker.address
        route = TopicRouteData(
            [QueueData(name, counts[name], counts[name], perm=6) for name in brokers],
            [BrokerData("cluster", name, addresses) for name, addresses in brokers.items()],
            order_topic_conf=self.cluster.order_configurations.get(topic),
        )
        return command.answer(body=route.encode(standard_json=True))

    async def _send_message_v2(self, command: RemotingCommand, _: object) -> RemotingCommand:
        header = SendMessageRequestHeaderV2.decode(command.ext_fields)
        offset = len(self.queues[header.topic, header.queue_id])
        for body, properties in self._messages(header, command.body):
            await self.put(header.topic, header.queue_id, body, raw_properties=properties)
        self.cluster.topics.setdefault(header.topic, {self.name: header.default_topic_queue_nums})
        answer = SendMessageResponseHeader("OFFSETID", header.queue_id, offset)
        return command.answer(ext_fields=answer.encode())

    _send_batch_message = _send_message_v2

    def _end_transaction(self, command: RemotingCommand, _: object) -> RemotingCommand:
        return command.answer()

    def _send_reply_message_v2(self, command: RemotingCommand, _: object) -> RemotingCommand:
        header = SendMessageRequestHeaderV2.decode(command.ext_fields)
        push = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host="/127.0.0.1:5",
            store_host="[::1]:6",
            store_timestamp=7,
            properties=header.properties,
        )
        client_id = decode_properties(header.properties or "")["REPLY_TO_CLIENT"]
        self.push(
            client_id,
            RemotingCommand(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                ext_fields=push.encode(),
                body=command.body,
            ),
        )
        answer = SendMessageResponseHeader("0" * 32, header.queue_id, 0)
        return command.answer(ext_fields=answer.encode())

    def _messages(
        self, header: SendMessageRequestHeaderV2, body: bytes
    ) -> list[tuple[bytes, bytes]]:
        if not header.batch:
            return [(body, (header.properties or "").encode())]
        messages = []
        while body:
            size, _, length = INNER_HEAD.unpack_from(body)
            end = INNER_HEAD_SIZE + length
            messages.append((body[INNER_HEAD_SIZE:end], body[end + 2 : size]))
            body = body[size:]
        return messages

    async def _pull_message(self, command: RemotingCommand, _: object) -> RemotingCommand:
        header = PullMessageRequestHeader.decode(command.ext_fields)
        records = self.queues[header.topic, header.queue_id]
        if header.queue_offset > len(records):
            return self._pulled(command, ResponseCode.PULL_OFFSET_MOVED, len(records), records)
        if header.queue_offset == len(records) and header.sys_flag & 2:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(header.suspend_timeout_millis / 1000), self.arrived:
                    await self.arrived.wait_for(lambda: len(records) > header.queue_offset)
        found = records[header.queue_offset : header.queue_offset + header.max_msg_nums]
        if not found:
            return self._pulled(command, ResponseCode.PULL_NOT_FOUND, len(records), records)
        body = b"".join(encode_record(record, HOST, HOST) for record in found)
        next_offset = header.queue_offset + len(found)
        return self._pulled(command, ResponseCode.SUCCESS, next_offset, records, body)

    def _pulled(
        self,
        command: RemotingCommand,
        code: ResponseCode,
        next_offset: int,
        records: list[MessageRecord],
        body: bytes = b"",
    ) -> RemotingCommand:
        header = PullMessageResponseHeader(0, next_offset, 0, len(records))
        return command.answer(code, ext_fields=header.encode(), body=body)

    def _get_min_offset(self, command: RemotingCommand, _: object) -> RemotingCommand:
        return command.answer(ext_fields={"offset": "0"})

    def _get_max_offset(self, command: RemotingCommand, _: object) -> RemotingCommand:
        fields = command.ext_fields
        records = self.queues[fields["topic"], int(fields["queueId"])]
        return command.answer(ext_fields={"offset": str(len(records))})

    def _search_offset_by_timestamp(self, command: RemotingCommand, _: object) -> RemotingCommand:
        fields = command.ext_fields
        records = self.queues[fields["topic"], int(fields["queueId"])]
        later = [r.queue_offset for r in records if r.store_timestamp >= int(fields["timestamp"])]
        return command.answer(ext_fields={"offset": str(min(later, default=len(records)))})

    def _query_consumer_offset(self, command: RemotingCommand, _: object) -> RemotingCommand:
        offset = self.offsets.get(_offset_key(command))
        if offset is None:
            return command.answer(ResponseCode.QUERY_NOT_FOUND, "never consumed")
        return command.answer(ext_fields={"offset": str(offset)})

    def _update_consumer_offset(self, command: RemotingCommand, _: object) -> RemotingCommand:
        self.offsets[_offset_key(command)] = int(command.ext_fields["commitOffset"])
        return command.answer()

    def _consumer_send_msg_back(self, command: RemotingCommand, _: object) -> RemotingCommand:
        return command.answer()

    def _lock_batch_mq(self, command: RemotingCommand, _: object) -> RemotingCommand:
        body = LockBatchRequestBody.decode(command.body)
        got = {
            queue
            for queue in body.mq_set
            if self.locks.setdefault((queue.topic, queue.queue_id), body.client_id)
            == body.client_id
        }
        return command.answer(body=LockBatchResponseBody(got).encode())

    def _unlock_batch_mq(self, command: RemotingCommand, _: object) -> RemotingCommand:
        body = UnlockBatchRequestBody.decode(command.body)
        for queue in body.mq_set:
            if self.locks.get((queue.topic, queue.queue_id)) == body.client_id:
                del self.locks[queue.topic, queue.queue_id]
        return command.answer()

    def _check_client_config(self, command: RemotingCommand, _: object) -> RemotingCommand:
        return command.answer()

    def _heart_beat(
        self, command: RemotingCommand, writer: asyncio.StreamWriter
    ) -> RemotingCommand:
        heartbeat = HeartbeatData.decode(command.body)
        self.clients[heartbeat.client_id] = writer
        if heartbeat.consumer_data_set and heartbeat.client_id not in self.members:
            self.members[heartbeat.client_id] = writer
            self.notify_members()
        return command.answer()

    def _unregister_client(self, command: RemotingCommand, _: object) -> RemotingCommand:
        if self.members.pop(command.ext_fields["clientID"], None):
            self.notify_members()
        return command.answer()

    def _get_consumer_list_by_group(self, command: RemotingCommand, _: object) -> RemotingCommand:
        return command.answer(body=GetConsumerListByGroupResponseBody([*self.members]).encode())


class FakeCluster:
    """Brokers that know each other; each also answers as the NameServer."""

    def __init__(self) -> None:
        self.brokers: list[FakeBroker] = []
        #: topic -> broker name -> how many queues it has there
        self.topics: dict[str, dict[str, int]] = {}
        #: topic -> the order of its queues, as NameServers have it
        self.order_configurations: dict[str, str] = {}
        #: Runs a coroutine on the loop of a cluster in a thread.
        self.call: Callable[[Coroutine[Any, Any, None]], None]

    async def start(self, topics: dict[str, dict[str, int]], brokers: int) -> None:
        self.topics = topics
        for number in range(brokers):
            broker = FakeBroker(self, f"b{number}")
            await broker.start()
            self.brokers.append(broker)

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()

    @property
    def namesrv(self) -> str:
        return self.brokers[0].address


@contextlib.asynccontextmanager
async def running_cluster(
    topics: dict[str, dict[str, int]], brokers: int = 1
) -> AsyncIterator[FakeCluster]:
    """Run brokers `b0`, `b1`, ... with these topics; the block has a deadline."""
    cluster = FakeCluster()
    await cluster.start(topics, brokers)
    try:
        async with asyncio.timeout(DEADLINE):
            yield cluster
    finally:
        await cluster.stop()


@contextlib.asynccontextmanager
async def running_pair(
    topics: dict[str, dict[str, int]],
) -> AsyncIterator[tuple[FakeCluster, FakeBroker, FakeBroker]]:
    """Run a NameServer, master `b1` and its replica, which has the same messages at once."""
    async with running_cluster(topics, brokers=2) as cluster:
        master = cluster.brokers[1]
        replica = FakeBroker(cluster, master.name, 1)
        replica.queues = master.queues
        await replica.start()
        cluster.brokers.append(replica)
        yield cluster, master, replica


@contextlib.contextmanager
def cluster_in_a_thread(
    topics: dict[str, dict[str, int]], brokers: int = 1
) -> Iterator[FakeCluster]:
    """Run a cluster in a thread, for callers without an event loop or with another one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(DEADLINE)

    cluster = FakeCluster()
    cluster.call = call
    try:
        call(cluster.start(topics, brokers))
        yield cluster
        call(cluster.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for waiting in asyncio.all_tasks(loop):  # pulls, and their connections
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(waiting)
        loop.run_until_complete(asyncio.sleep(0))  # closes aborted connections
        loop.close()


def _offset_key(command: RemotingCommand) -> tuple[str, str, int]:
    fields = command.ext_fields
    return fields["consumerGroup"], fields["topic"], int(fields["queueId"])
