from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.offsets import OffsetHandlers
from pyromq.broker.state.groups import GroupTable
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.broker.state.topics import TopicTable
from pyromq.protocol.wire.bodies import ConsumerOffsetSerializeWrapper, TopicConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import HeaderError
from tests.unit.broker.fakes import FakeConnection


class Store:
    """One queue with messages from `first` to `next`."""

    def __init__(self, first: int | None, following: int, *, in_memory: bool = True) -> None:
        self.first, self.following, self.in_memory = first, following, in_memory

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        return self.first

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.following

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        assert offset == 0
        return self.in_memory


class Broker:
    """The handlers with real tables; topic t has 4 queues."""

    def __init__(self, directory: Path, max_pairs: int = 1000) -> None:
        config = BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")
        self.offsets = ConsumerOffsetTable(directory, max_pairs=lambda: max_pairs)
        self.topics = TopicTable(config, directory)
        self.groups = GroupTable(config, directory)
        self.topics.update(TopicConfig("t", 4, 4))
        self.now = 1000.0
        self.store = Store(0, 0)
        self.handlers = OffsetHandlers(
            self.offsets, self.store, self.topics, self.groups, now=lambda: self.now
        )

    @property
    def table(self) -> dict[str, dict[int, int]]:
        content = self.offsets.snapshot().encode()
        return ConsumerOffsetSerializeWrapper.decode(content).offset_table


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


FIELDS = {"consumerGroup": "g", "topic": "t", "queueId": "3"}


def query(broker: Broker, store: Store) -> int:
    request = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, opaque=5, ext_fields=FIELDS)
    handlers = OffsetHandlers(broker.offsets, store, broker.topics, broker.groups)
    answer = handlers.query_consumer_offset(FakeConnection(), request)
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 5)
    return int(answer.ext_fields["offset"])


def update(broker: Broker, **fields: str) -> RemotingCommand:
    request = RemotingCommand(
        RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields={**FIELDS, "commitOffset": "12", **fields}
    )
    return broker.handlers.update_consumer_offset(FakeConnection(), request)


def test_committed_offset_is_answered(broker: Broker) -> None:
    assert update(broker).code == ResponseCode.SUCCESS
    assert query(broker, Store(100, 200)) == 12


@pytest.mark.parametrize(
    "store",
    [
        Store(None, 0),
        Store(0, 0),
        Store(0, 5, in_memory=True),
        # An empty queue is young, although nothing of it is in memory.
        Store(0, 0, in_memory=False),
        Store(None, 0, in_memory=False),
    ],
)
def test_a_new_group_starts_at_zero_in_a_young_queue(broker: Broker, store: Store) -> None:
    assert query(broker, store) == 0


@pytest.mark.parametrize("store", [Store(1, 5), Store(0, 5, in_memory=False)])
def test_a_new_group_decides_itself_in_an_old_queue(broker: Broker, store: Store) -> None:
    with pytest.raises(RequestError) as raised:
        query(broker, store)
    assert raised.value.code is ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    "fields",
    [
        {"commitOffset": "-1"},
        {"queueId": "-1"},
        {"topic": "a@b"},
        {"consumerGroup": "a@b"},
        {"consumerGroup": ""},
    ],
)
def test_bad_commits_are_refused(broker: Broker, fields: dict[str, str]) -> None:
    with pytest.raises(RequestError) as raised:
        update(broker, **fields)
    assert raised.value.code is ResponseCode.SYSTEM_ERROR
    assert broker.table == {}


@pytest.mark.parametrize("value", ["", "x", "9223372036854775808"])
def test_bad_numbers_name_the_field(broker: Broker, value: str) -> None:
    with pytest.raises(HeaderError, match="commitOffset"):
        update(broker, commitOffset=value)


def test_commits_for_unknown_queues_are_answered_and_dropped(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for fields in ({"topic": "absent"}, {"queueId": "4"}, {"topic": "%RETRY%g"}):
        assert update(broker, **fields).code == ResponseCode.SUCCESS
    assert broker.table == {}
    (line,) = caplog.messages
    assert line.startswith("1 commits dropped")
    broker.now += 61
    update(broker, topic="absent")
    assert caplog.messages[1].startswith("3 commits dropped: unknown topic or queue")
    assert "group g, topic absent queue 3, from 127.0.0.1:40404" in caplog.messages[1]


def test_queues_of_a_topic_that_has_shrunk_still_count(broker: Broker) -> None:
    broker.store.following = 5
    assert update(broker, queueId="7").code == ResponseCode.SUCCESS
    assert broker.table == {"t@g": {7: 12}}


def test_most_of_the_table_is_for_known_groups(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_pairs=10)
    assert update(broker, consumerGroup="early").code == ResponseCode.SUCCESS
    with pytest.raises(RequestError) as refused:
        update(broker, consumerGroup="unknown")
    assert refused.value.remark == (
        "group unknown does not exist here, and the broker has 1 pairs of topic and group, "
        "limit 1 for unknown groups (maxConsumerOffsets)"
    )
    for number in range(9):
        broker.groups.find(f"g{number}")
        update(broker, consumerGroup=f"g{number}")
    broker.groups.find("late")
    with pytest.raises(RequestError, match=r"10 pairs of topic and group, limit 10 \(maxConsumer"):
        update(broker, consumerGroup="late")
    assert update(broker, consumerGroup="g3", queueId="0").code == ResponseCode.SUCCESS
    assert update(broker, consumerGroup="early", commitOffset="13").code == ResponseCode.SUCCESS
    assert len(broker.table) == 10
