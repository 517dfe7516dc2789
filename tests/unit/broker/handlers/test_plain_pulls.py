"""Pulls that the kernel serves get the bytes that the Python code would send."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers import plain_pulls
from pyromq.broker.hooks import ConsumeMessageHook, Hooks
from pyromq.broker.services.stats import GROUP_GET_NUMS
from pyromq.protocol import kernel
from pyromq.protocol.message.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.protocol.wire.bodies import SubscriptionGroupConfig, TopicConfig
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.remoting.connection import Connection
from tests import kernel_builds
from tests.support.examples import examples
from tests.support.requests import pull_request, raw_frame, send_request
from tests.unit.broker.assembled import AssembledBroker, Client, served
from tests.unit.broker.handlers.pulls import BOTH_ENCODINGS, bodies, subscribe

COMMITTING = str(PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION)


class Pair:
    """A broker, and two connections to it: one with the kernel, one without."""

    def __init__(self, root: Path, config: BrokerConfig | None = None, **store: Any) -> None:
        self.broker = AssembledBroker(root, config, **store)
        self.broker.topics.update(TopicConfig("T", 4, 4))
        service = self.broker.assembly.service
        self._take = service.take_frames
        #: Bytes that the kernel served of the last chunk.
        self.taken = 0
        self.kernel = self._client(self._counted)
        self.python = self._client(None)

    def _client(self, take: Callable[..., int] | None) -> Client:
        service = dataclasses.replace(self.broker.assembly.service, take_frames=take)
        return Client(served(service), ("127.0.0.1", 40405))

    def _counted(
        self, connection: Connection, chunk: bytes, position: int, answers: list[bytes]
    ) -> int:
        assert self._take is not None
        end = self._take(connection, chunk, position, answers)
        self.taken += end - position
        return end

    def check(self, *requests: RemotingCommand | bytes) -> bool:
        """Compare all bytes of the responses; return whether the kernel served every request."""
        chunk = b"".join(
            item.encode() if isinstance(item, RemotingCommand) else item for item in requests
        )
        self.taken = 0
        answers = []
        for client in (self.kernel, self.python):
            client.connection.data_received(chunk)
            answers.append(bytes(client.transport.written))
            client.transport.written.clear()
        assert answers[0] == answers[1], chunk
        return self.taken == len(chunk)

    def learn(self, **values: Any) -> None:
        """Have the plan of such pulls cached."""
        self.python.exchange(pull_request(**values))


@pytest.fixture(
    params=[kernel_builds.FAST, kernel_builds.CHECKED], ids=lambda build: build.name, scope="module"
)
def build(request: pytest.FixtureRequest) -> kernel_builds.Build:
    chosen: kernel_builds.Build = request.param
    kernel_builds.load(chosen, "pulls")
    return chosen


@pytest.fixture
def compiled(build: kernel_builds.Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernel of a build, for pulls alone."""
    monkeypatch.setattr(
        kernel, "load", lambda name: kernel_builds.load(build, name) if name == "pulls" else None
    )


@pytest.fixture
async def pair(compiled: None, tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(tmp_path)
    yield made
    await made.broker.close()


@pytest.mark.parametrize("encoding", BOTH_ENCODINGS)
async def test_every_offset_and_count(pair: Pair, encoding: Encoding) -> None:
    pair.broker.put(*(b"x" * number for number in range(40)))
    pair.broker.put(b"beside", queue_id=1)
    pair.broker.put(*(b"y" * number for number in range(40)))
    for count in ("1", "7", "32", "1000", "0", "-5"):
        pair.learn(maxMsgNums=count)
        for offset in range(80):
            assert pair.check(
                pull_request(queueOffset=str(offset), maxMsgNums=count, encoding=encoding)
            )
        for bad in ("80", "81", "-1", "9" * 18, "9" * 19, "+3", "x", ""):
            assert not pair.check(
                pull_request(queueOffset=bad, maxMsgNums=count, encoding=encoding)
            )


async def test_lite_pulls_are_the_same_request(pair: Pair) -> None:
    pair.broker.put(b"x")
    request = pull_request()
    pair.check(request)
    assert pair.check(dataclasses.replace(request, code=RequestCode.LITE_PULL_MESSAGE))


async def test_several_pulls_of_a_chunk(pair: Pair) -> None:
    for queue_id in range(4):
        pair.broker.put(b"x" * queue_id, queue_id=queue_id)
        pair.learn(queueId=str(queue_id))
    pulls = [pull_request(queueId=str(number % 4), opaque=number) for number in range(20)]

    assert pair.check(*pulls)
    # The one in the middle finds nothing; the others are served around it.
    assert not pair.check(*pulls[:5], pull_request(queueOffset="1"), *pulls[5:])
    assert pair.taken > 0


async def test_a_pull_sees_messages_sent_before_it_in_its_chunk(pair: Pair) -> None:
    pair.broker.put(b"old")
    pair.learn()

    sent, pulled = pair.kernel.exchange(send_request(body=b"new", queueId="0"), pull_request())

    assert sent.code == 0
    assert bodies(pulled) == [b"old", b"new"]
    assert pair.taken == len(pull_request().encode())


@pytest.mark.parametrize("expression", ["A", "A || B", "B||C||D", "none", "*", "", None])
async def test_tag_filters(pair: Pair, expression: str | None) -> None:
    chance = random.Random(3)
    for number in range(300):
        pair.broker.put(b"%d" % number, tags=chance.choice("ABCD" if number < 200 else "D"))
    pair.learn(subscription=expression)
    served = [
        pair.check(pull_request(queueOffset=str(offset), subscription=expression))
        for offset in range(300)
    ]
    assert all(served[:190]) or expression == "none"
    # Without a match the pull is for the Python code.
    assert served[-1] is (expression not in ("A", "A || B", "none"))


async def test_subscriptions_of_heartbeats(pair: Pair) -> None:
    for number in range(20):
        pair.broker.put(b"%d" % number, tags="AB"[number % 2])
    subscribe(pair.broker, "A")
    values: dict[str, Any] = {"subscription": None, "expressionType": None, "sysFlag": "0"}
    pair.learn(**values)
    assert pair.check(pull_request(**values))

    # A change of the group's subscription counts at once.
    subscribe(pair.broker, "B", version=2)
    assert not pair.check(pull_request(**values))
    assert pair.check(pull_request(**values))
    (answer,) = pair.kernel.exchange(pull_request(**values))
    assert bodies(answer) == [b"%d" % number for number in range(1, 20, 2)]


@pytest.mark.parametrize("expression", ["*", "A"])
async def test_small_limits_on_bytes(compiled: None, tmp_path: Path, expression: str) -> None:
    pair = Pair(tmp_path, max_transfer_bytes_on_message_in_memory=700)
    chance = random.Random(4)
    for _ in range(200):
        pair.broker.put(b"x" * chance.choice((1, 50, 300, 900)), tags=chance.choice("AAB"))
    pair.learn(subscription=expression)
    for offset in range(150):
        assert pair.check(pull_request(queueOffset=str(offset), subscription=expression))
    await pair.broker.close()


@pytest.mark.parametrize("expression", ["*", "A"])
async def test_segments_of_queue_and_log_end(
    compiled: None, tmp_path: Path, expression: str
) -> None:
    pair = Pair(tmp_path, mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=20 * 30)
    for number in range(200):
        pair.broker.put(b"x" * 100, queue_id=number % 2, tags="AB"[number // 2 % 2])
    pair.learn(subscription=expression)
    served = [
        pair.check(pull_request(queueOffset=str(offset), maxMsgNums="4", subscription=expression))
        for offset in range(100)
    ]
    assert False in served[:-1]
    pair.learn(subscription=expression, maxMsgNums="4")
    served = [
        pair.check(pull_request(queueOffset=str(offset), maxMsgNums="4", subscription=expression))
        for offset in range(100)
    ]
    assert 20 < served.count(True) < 100
    await pair.broker.close()


async def test_expired_messages(compiled: None, tmp_path: Path) -> None:
    pair = Pair(tmp_path, mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=20 * 30)
    pair.broker.put(*(b"x" * 100 for _ in range(200)))
    pair.learn()
    store = pair.broker.store
    queue = store.queue("T", 0)
    log = store.pull_parts.log
    for _ in range(3):
        log.take_first()
    # Offsets whose records have gone, before and after the queue knows.
    for _ in range(2):
        served = [pair.check(pull_request(queueOffset=str(offset))) for offset in range(200)]
        assert not served[0]
        assert any(served)
        queue.take_expired(log.first_offset)
    assert queue.min_offset > 30
    await pair.broker.close()


async def test_an_extension_is_for_the_python_code(compiled: None, tmp_path: Path) -> None:
    pair = Pair(tmp_path, enable_consume_queue_ext=True)
    for number in range(10):
        pair.broker.put(b"x", tags="AB"[number % 2])
    pair.learn()
    pair.learn(subscription="A")
    assert pair.check(pull_request())
    assert not pair.check(pull_request(subscription="A"))
    await pair.broker.close()


async def test_a_buffer_of_the_pool_is_for_the_python_code(compiled: None, tmp_path: Path) -> None:
    pair = Pair(
        tmp_path,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
        mapped_file_size_commit_log=1 << 16,
    )
    pair.broker.put(b"x")
    pair.learn()
    assert not pair.check(pull_request())
    await pair.broker.close()


async def test_messages_that_may_be_on_disk(
    compiled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyromq.store.queues.reading._WARM_BYTES", 1000)
    monkeypatch.setattr("pyromq.store.queues.reading._WARM_ENTRIES", 5)
    pair = Pair(tmp_path)
    pair.broker.put(*(b"x" * 100 for _ in range(20)))
    pair.learn()
    assert pair.check(pull_request())

    reader = pair.broker.store.pull_parts.reader
    asked = []

    def is_missing(*pages: Any) -> bool:
        asked.append(pages)
        return False

    monkeypatch.setattr(type(reader), "is_in_memory", is_missing)
    again = Pair(tmp_path / "again")
    again.broker.put(*(b"x" * 100 for _ in range(20)))
    again.learn()
    asked.clear()
    chunk = pull_request().encode()
    assert again.broker.assembly.service.take_frames is not None
    assert again.broker.assembly.service.take_frames(again.kernel.connection, chunk, 0, []) == 0
    assert len(asked) == 1
    await pair.broker.close()
    await again.broker.close()


async def test_commits(pair: Pair) -> None:
    pair.broker.put(*(b"x" for _ in range(5)))
    pair.learn(sysFlag=COMMITTING, commitOffset="1")
    request = pull_request(sysFlag=COMMITTING, commitOffset="3").encode()

    pair.kernel.exchange(request)
    assert pair.broker.offsets.query("consumers", "T", 0) == 3
    # Not without the flag, whatever the offset.
    assert pair.check(pull_request(commitOffset="4")) or pair.check(pull_request(commitOffset="4"))
    assert pair.broker.offsets.query("consumers", "T", 0) == 3
    assert not pair.check(pull_request(sysFlag=COMMITTING, commitOffset="x"))


async def test_statistics(pair: Pair) -> None:
    pair.broker.put(*(b"x" for _ in range(5)))
    pair.learn()
    for _ in range(3):
        assert pair.check(pull_request())
    pair.broker.pull_handlers.settings_changed()
    await pair.broker.stats.count()
    stats = pair.broker.stats
    assert (stats.totals.found, stats.totals.transferred) == (7, 35)
    await pair.broker.stats.count()
    assert stats.totals.found == 7
    assert stats.view(GROUP_GET_NUMS, "T@consumers") is not None


async def test_changes_of_tables_and_settings(pair: Pair) -> None:
    pair.broker.put(b"x")

    def is_served() -> bool:
        return pair.check(pull_request())

    assert [is_served(), is_served()] == [False, True]
    changes: list[Callable[[], object]] = [
        lambda: pair.broker.topics.update(TopicConfig("T2", 4, 4)),
        lambda: pair.broker.groups.update(SubscriptionGroupConfig("other")),
        lambda: subscribe(pair.broker, "A"),
        pair.broker.pull_handlers.settings_changed,
    ]
    for change in changes:
        change()
        assert [is_served(), is_served()] == [False, True]
    # A plan that was checked again without the kernel is known as well.
    pair.broker.topics.update(TopicConfig("T3", 4, 4))
    pair.learn()
    assert is_served()
    pair.broker.groups.update(SubscriptionGroupConfig("consumers", consume_enable=False))
    assert [is_served(), is_served()] == [False, False]


async def test_a_deleted_queue_is_not_read(pair: Pair) -> None:
    pair.broker.put(b"x")
    pair.learn()
    assert pair.check(pull_request())
    pair.broker.store.remove_topic("T")
    assert not pair.check(pull_request())
    pair.broker.put(b"y")
    assert pair.check(pull_request())
    (answer,) = pair.kernel.exchange(pull_request())
    assert bodies(answer) == [b"y"]


async def test_a_client_that_does_not_read_gets_no_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.broker.put(b"x" * 1000)
    pair.learn()
    monkeypatch.setattr(plain_pulls, "MAX_UNSENT", 3000)
    take = pair.broker.assembly.service.take_frames
    assert take is not None
    frame = pull_request().encode()
    answers: list[bytes] = []
    assert take(pair.kernel.connection, frame * 100, 0, answers) == 3 * len(frame)
    assert take(pair.kernel.connection, frame * 100, 0, answers) == 0


async def test_work_that_took_too_long_puts_pulls_off(pair: Pair) -> None:
    pair.broker.put(b"x")
    pair.learn()
    pair.broker.long_poll.turns.is_over = True
    take = pair.broker.assembly.service.take_frames
    assert take is not None
    assert take(pair.kernel.connection, pull_request().encode(), 0, []) == 0


async def test_a_consume_hook_sees_every_pull(compiled: None, tmp_path: Path) -> None:
    hook = create_autospec(ConsumeMessageHook, instance=True)
    broker = AssembledBroker(tmp_path, hooks=Hooks(consume=[hook]))
    assert broker.assembly.service.take_frames is None
    await broker.close()


async def test_unusual_frames(pair: Pair) -> None:
    pair.broker.put(b"x")
    pair.learn()
    fields = dict(pull_request().ext_fields)
    header = {"code": 11, "extFields": fields, "opaque": 1}
    assert pair.check(raw_frame(header))
    assert pair.check(raw_frame({**header, "flag": 0, "remark": None, "language": "GO"}))
    assert pair.check(raw_frame(header, b"a body"))
    assert pair.check(raw_frame({**header, "extFields": {**fields, "bname": "b"}}))
    for unusual in (
        {**header, "flag": 2},
        {**header, "opaque": 1 << 40},
        {**header, "code": 11.0},
        {**header, "extFields": {**fields, "queueOffset": 0}},
        {**header, "extFields": {**fields, "bname": None}},
        {**header, "extFields": {**fields, "topic": 'T"'}},
        {**header, "extFields": {**fields, "consumerGroup": "Grüppe"}},
        {**header, "extFields": {name: fields[name] for name in fields if name != "topic"}},
        {**header, "extFields": {**fields, "maxMsgBytes": "100"}},
    ):
        assert not pair.check(raw_frame(unusual))
        assert not pair.check(raw_frame(unusual))


@pytest.mark.parametrize("expression", ["*", "A"])
async def test_damaged_entries(pair: Pair, build: kernel_builds.Build, expression: str) -> None:
    chance = random.Random(6)
    for number in range(80):
        pair.broker.put(b"x" * number, tags="AB"[number % 2])
    pair.learn(subscription=expression)
    parts = pair.broker.store.pull_parts
    file = parts.queues["T", 0].segments.files[0]
    good = file.read(0, 80 * CONSUME_QUEUE_ENTRY_SIZE)
    written = parts.watermarks.written
    served = 0
    for _ in range(examples(300)):
        file.write(0, good)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(80) * CONSUME_QUEUE_ENTRY_SIZE
            physical, size, code = CONSUME_QUEUE_ENTRY.unpack_from(good, at)
            damaged = (
                chance.choice((physical, 0, -1, written - 1, written, 1 << 62, -(1 << 63))),
                chance.choice((size, 1, 0, -1, 0x7FFFFFFF, size + 200)),
                chance.choice((code, 0, -(1 << 63), -(1 << 31) - 1)),
            )
            file.write(at, CONSUME_QUEUE_ENTRY.pack(*damaged))
        for offset in chance.sample(range(80), 10):
            served += pair.check(pull_request(queueOffset=str(offset), subscription=expression))
    assert served > 500
    assert kernel_builds.load(build, "pulls").fault_count() == 0


async def test_mutated_chunks(pair: Pair, build: kernel_builds.Build) -> None:
    chance = random.Random(5)
    for number in range(60):
        pair.broker.put(b"x" * number, tags="AB"[number % 2])
    requests = [
        pull_request(encoding=encoding, subscription=expression, queueOffset="7").encode()
        for encoding in BOTH_ENCODINGS
        for expression in ("*", "A")
    ]
    pair.check(*requests)
    served = 0
    for _ in range(examples(3000)):
        chunk = bytearray(chance.choice(requests) + chance.choice(requests))
        for _ in range(chance.randrange(3)):
            chunk[chance.randrange(8, len(chunk))] = chance.choice(b'0179"\\,:{}\x00\xff qQ')
        if chance.random() < 0.1:
            del chunk[chance.randrange(8, len(chunk)) :]
        for client in ("kernel", "python"):
            setattr(pair, client, pair._client(pair._counted if client == "kernel" else None))
        pair.check(bytes(chunk))
        served += pair.taken > 0
        pair.kernel.lose()
        pair.python.lose()
    assert served > 500
    assert kernel_builds.load(build, "pulls").fault_count() == 0
