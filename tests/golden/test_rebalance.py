"""Group members divide queues, and store broadcasting offsets, as in Java."""

from __future__ import annotations

import pytest

from pyromq.client.consumer.offsets import OffsetFile
from pyromq.client.consumer.rebalance import (
    AllocateByMachineRoom,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    Strategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from pyromq.protocol.wire.bodies import MessageQueue
from tests.golden.golden_data import Entry, read_index

CASES: list[Entry] = read_index("rebalance")["cases"]


def nearby(inner: Strategy) -> Strategy:
    return AllocateMachineRoomNearby(
        lambda queue: queue.broker_name.split("@")[0], lambda member: member.split("-")[0], inner
    )


STRATEGIES: dict[str, Strategy] = {
    "averagely": allocate_averagely,
    "averagely by circle": allocate_averagely_by_circle,
    "by machine room": AllocateByMachineRoom({"east", "west"}),
    "nearby": nearby(allocate_averagely),
    "nearby by circle": nearby(allocate_averagely_by_circle),
    "consistent hash": AllocateConsistentHash(),
    "consistent hash of 3": AllocateConsistentHash(3),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_shares_equal_those_of_java(name: str) -> None:
    cases = [case for case in CASES if case["strategy"] == name]
    assert len(cases) > 50
    for case in cases:
        queues = [queue_of(text) for text in case["queues"].split()]
        members = [*case["shares"]]
        shares = {
            member: " ".join(
                f"{queue.broker_name}:{queue.queue_id}"
                for queue in STRATEGIES[name](queues, members, member)
            )
            for member in members
        }
        assert shares == case["shares"], case


def queue_of(text: str) -> MessageQueue:
    broker, _, queue_id = text.rpartition(":")
    return MessageQueue("orders", broker, int(queue_id))


def test_offsets_written_by_java() -> None:
    text: str = read_index("rebalance")["offsets"]
    assert OffsetFile.decode(text.encode()).offset_table == {
        MessageQueue("orders", "a", 0): 12,
        MessageQueue("orders", "b", 3): 5_000_000_000,
    }
