from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.broker.handlers.offsets import OffsetHandlers
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import RemotingCommand, RequestError
from pyromq.protocol.headers import HeaderError
from tests.unit.broker.fakes import FakeConnection


class Store:
    """One queue with messages from `first` to `next`."""

    def __init__(self, first: int, following: int, *, in_memory: bool = True) -> None:
        self.first, self.following, self.in_memory = first, following, in_memory

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.first

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.following

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        assert offset == 0
        return self.in_memory


@pytest.fixture
def offsets(tmp_path: Path) -> ConsumerOffsetTable:
    return ConsumerOffsetTable(tmp_path)


FIELDS = {"consumerGroup": "g", "topic": "t", "queueId": "3"}


def query(offsets: ConsumerOffsetTable, store: Store) -> int:
    request = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, opaque=5, ext_fields=FIELDS)
    answer = OffsetHandlers(offsets, store).query_consumer_offset(FakeConnection(), request)
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 5)
    return int(answer.ext_fields["offset"])


def update(offsets: ConsumerOffsetTable, **fields: str) -> RemotingCommand:
    request = RemotingCommand(
        RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields={**FIELDS, "commitOffset": "12", **fields}
    )
    handlers = OffsetHandlers(offsets, Store(0, 0))
    return handlers.update_consumer_offset(FakeConnection(), request)


def test_committed_offset_is_answered(offsets: ConsumerOffsetTable) -> None:
    assert update(offsets).code == ResponseCode.SUCCESS
    assert query(offsets, Store(100, 200)) == 12


@pytest.mark.parametrize(
    "store",
    [
        Store(-1, 0),
        Store(0, 0),
        Store(0, 5, in_memory=True),
        # An empty queue has nothing in memory: it is young all the same.
        Store(0, 0, in_memory=False),
        Store(-1, 0, in_memory=False),
    ],
)
def test_new_group_begins_at_zero_in_a_young_queue(
    offsets: ConsumerOffsetTable, store: Store
) -> None:
    assert query(offsets, store) == 0


@pytest.mark.parametrize("store", [Store(1, 5), Store(0, 5, in_memory=False)])
def test_new_group_decides_itself_in_an_old_queue(
    offsets: ConsumerOffsetTable, store: Store
) -> None:
    with pytest.raises(RequestError) as raised:
        query(offsets, store)
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
def test_bad_commits_are_refused(offsets: ConsumerOffsetTable, fields: dict[str, str]) -> None:
    with pytest.raises(RequestError) as raised:
        update(offsets, **fields)
    assert raised.value.code is ResponseCode.SYSTEM_ERROR
    assert offsets.snapshot().offset_table == {}


@pytest.mark.parametrize("value", ["", "x", "9223372036854775808"])
def test_bad_numbers_name_the_field(offsets: ConsumerOffsetTable, value: str) -> None:
    with pytest.raises(HeaderError, match="commitOffset"):
        update(offsets, commitOffset=value)
