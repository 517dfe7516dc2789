"""Asks a broker in raw frames for everything that it serves, so that two can be compared.

The requests are those of 4.9.7's client; nothing is interpreted on the way: records stay bytes.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyromq.protocol.message.properties import encode_properties
from pyromq.protocol.message.record import decode_records, encode_inner_message
from pyromq.protocol.wire.bodies import TopicConfig, TopicConfigSerializeWrapper
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.header_codec import Header
from pyromq.protocol.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from pyromq.remoting.client import RemotingClient
from tests.support.patience import DEADLINE

GROUP = "exchange_group"
QUEUES = 4
#: sysFlag of a pull whose subscription is in its header.
_PULL_WITH_SUBSCRIPTION = 0x4
_COMPRESSED = 0x1


@dataclass
class Seed:
    """A message to send; several of them in one `Seed` go as a batch."""

    topic: str
    queue_id: int
    bodies: list[bytes]
    properties: dict[str, str] = field(default_factory=dict)
    sys_flag: int = 0


@dataclass
class Snapshot:
    """All that a broker serves of some topics, as bytes and numbers."""

    configs: dict[str, TopicConfig] = field(default_factory=dict)
    limits: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    records: dict[tuple[str, int], bytes] = field(default_factory=dict)
    views: dict[int, bytes] = field(default_factory=dict)
    queries: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    by_time: dict[tuple[str, int, int], int] = field(default_factory=dict)
    consumed: dict[tuple[str, int], int | None] = field(default_factory=dict)


class RawBroker:
    """One broker's address and a connection to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = RemotingClient()

    async def close(self) -> None:
        await self._client.close()

    async def send(self, seed: Seed) -> SendMessageResponseHeader:
        """Send a message, or a batch when the seed has several bodies."""
        answer = await self.try_send(seed)
        assert answer.code == ResponseCode.SUCCESS, (seed.topic, answer)
        return SendMessageResponseHeader.decode(answer.ext_fields)

    async def try_send(self, seed: Seed) -> RemotingCommand:
        """The answer to a send, whatever it is."""
        batch = len(seed.bodies) > 1
        properties = encode_properties(seed.properties)
        header = SendMessageRequestHeaderV2(
            producer_group="exchange_producer",
            topic=seed.topic,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=seed.queue_id,
            sys_flag=seed.sys_flag,
            born_timestamp=int(time.time() * 1000),
            flag=7,
            properties="" if batch else properties.decode(),
            reconsume_times=0,
            batch=batch,
        )
        body = seed.bodies[0]
        if batch:
            body = b"".join(
                encode_inner_message(body, properties, number)
                for number, body in enumerate(seed.bodies)
            )
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        command = RemotingCommand(code, ext_fields=header.encode(), body=body)
        return await self._client.request(self.address, command, timeout=DEADLINE)

    async def commit(self, topic: str, queue_id: int, offset: int) -> None:
        """Say that the group has consumed a queue up to there."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=GROUP, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def snapshot(self, sent: Sequence[Seed]) -> Snapshot:
        """Read everything of the topics that these were sent to; all of it must be there."""
        snapshot = Snapshot()
        answer = await self.ask(RequestCode.GET_ALL_TOPIC_CONFIG, None)
        table = TopicConfigSerializeWrapper.decode(answer.body).topic_config_table
        counts: Counter[tuple[str, int]] = Counter()
        for seed in sent:
            counts[seed.topic, seed.queue_id] += len(seed.bodies)
        for topic in sorted({seed.topic for seed in sent}):
            snapshot.configs[topic] = table[topic]
            for queue_id in range(QUEUES):
                await self._wait_for_dispatch(topic, queue_id, counts[topic, queue_id])
                await self._read_queue(snapshot, topic, queue_id)
        for (topic, key), count in expected_keys(sent).items():
            snapshot.queries[topic, key] = await self._query(topic, key, count)
        return snapshot

    async def _wait_for_dispatch(self, topic: str, queue_id: int, count: int) -> None:
        """Java fills consume queues behind the log: ask until the queue has all its messages."""
        deadline = time.monotonic() + DEADLINE
        while (await self._limits(topic, queue_id))[1] < count:
            assert time.monotonic() < deadline, f"{topic} {queue_id} never had {count} messages"
            await asyncio.sleep(0.02)

    async def _read_queue(self, snapshot: Snapshot, topic: str, queue_id: int) -> None:
        first, end = await self._limits(topic, queue_id)
        snapshot.limits[topic, queue_id] = first, end
        data = b""
        offset = first
        while offset < end:
            header = PullMessageRequestHeader(
                consumer_group=GROUP,
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                max_msg_nums=32,
                sys_flag=_PULL_WITH_SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                subscription="*",
                sub_version=0,
            )
            answer = await self.ask(RequestCode.PULL_MESSAGE, header)
            data += answer.body
            offset = PullMessageResponseHeader.decode(answer.ext_fields).next_begin_offset
        snapshot.records[topic, queue_id] = data
        records = decode_records(data)
        assert [record.queue_offset for record in records] == list(range(first, end))
        for record in records:
            view = await self.ask(
                RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(record.physical_offset)
            )
            snapshot.views[record.physical_offset] = view.body
        times = {record.store_timestamp for record in records}
        for timestamp in sorted({0, 1 << 50} | {t + d for t in times for d in (-1, 0, 1)}):
            search = SearchOffsetRequestHeader(topic, queue_id, timestamp)
            answer = await self.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
            snapshot.by_time[topic, queue_id, timestamp] = SearchOffsetResponseHeader.decode(
                answer.ext_fields
            ).offset
        consumed = QueryConsumerOffsetRequestHeader(GROUP, topic, queue_id)
        answer = await self.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumed, ResponseCode.QUERY_NOT_FOUND
        )
        snapshot.consumed[topic, queue_id] = (
            QueryConsumerOffsetResponseHeader.decode(answer.ext_fields).offset
            if answer.code == ResponseCode.SUCCESS
            else None
        )

    async def _limits(self, topic: str, queue_id: int) -> tuple[int, int]:
        answer = await self.ask(
            RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic, queue_id)
        )
        first = GetMinOffsetResponseHeader.decode(answer.ext_fields).offset
        answer = await self.ask(
            RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, queue_id)
        )
        return first, GetMaxOffsetResponseHeader.decode(answer.ext_fields).offset

    async def _query(self, topic: str, key: str, count: int) -> set[bytes]:
        """The records with a key. The index is built behind the log: ask until all are there."""
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=64, begin_timestamp=0, end_timestamp=1 << 50
        )
        deadline = time.monotonic() + DEADLINE
        while True:
            answer = await self.ask(RequestCode.QUERY_MESSAGE, header, ResponseCode.QUERY_NOT_FOUND)
            records = decode_records(answer.body)
            if len(records) >= count or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        assert len(records) == count, f"{key}: {len(records)} records instead of {count}"
        found, position = set(), 0
        for record in records:
            found.add(answer.body[position : position + record.size])
            position += record.size
        return found

    async def ask(
        self, code: RequestCode, header: Header | None, *also_good: ResponseCode
    ) -> RemotingCommand:
        """Send one request; the answer must be SUCCESS or one of the other codes."""
        command = RemotingCommand(code, ext_fields=header.encode() if header else {})
        answer = await self._client.request(self.address, command, timeout=DEADLINE)
        assert answer.code in (ResponseCode.SUCCESS, *also_good), (code.name, header, answer)
        return answer


def seeds(prefix: str, rounds: int) -> list[Seed]:
    """Messages of every shape: tags, several keys, unicode, batches, compressed, large, bare."""
    found = []
    for number in range(rounds):
        tagged = {
            "TAGS": f"tag-ä{number % 3}",
            "KEYS": f"{prefix}{number} all-{prefix} 键{number}",
            "UNIQ_KEY": f"{prefix}-UNIQUE-{number:016}",
            "WAIT": "true",
        }
        found.append(
            Seed("ExchangeSingle", number % QUEUES, [f"body {number} 消息".encode()], tagged)
        )
        found.append(Seed("ExchangeBare", 0, [bytes(range(256))]))
    long_text = b"compress me " * 2000
    found.append(Seed("ExchangeSingle", 1, [zlib.compress(long_text)], {"TAGS": "z"}, _COMPRESSED))
    found.append(Seed("ExchangeBare", 1, [b"large" * 40_000]))
    for number in range(3):
        properties = {"KEYS": f"{prefix}-batch{number}", "TAGS": "batch"}
        bodies = [f"in batch {number}, {inner}".encode() for inner in range(5)]
        found.append(Seed("ExchangeBatch", number, bodies, properties))
    return found


def expected_keys(sent: Iterable[Seed]) -> dict[tuple[str, str], int]:
    """How many messages each key must find."""
    keys: dict[tuple[str, str], int] = {}
    for seed in sent:
        words = seed.properties.get("KEYS", "").split()
        if unique := seed.properties.get("UNIQ_KEY"):
            words.append(unique)
        for word in words:
            keys[seed.topic, word] = keys.get((seed.topic, word), 0) + len(seed.bodies)
    return keys
