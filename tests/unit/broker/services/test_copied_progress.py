from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.broker.services import copied_progress as module
from pyromq.broker.services.copied_progress import CopiedProgress
from pyromq.broker.state.copied_tables import CopyError
from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.protocol.names import TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC

HALVES = f"{TRANSACTION_HALF_TOPIC}@{TRANSACTION_GROUP}"


class Replica:
    """The tables of a replica, and how far its log and queues are."""

    def __init__(self, root: Path) -> None:
        self.flushed_offset = 0
        self.queue_end = 100
        self.delay = DelayOffsetTable(root, root / "abort")
        self.offsets = ConsumerOffsetTable(root)
        self.progress = CopiedProgress(self.delay, self.offsets, self)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.queue_end if (topic, queue_id) != ("SCHEDULE_TOPIC_XXXX", 17) else 0

    def settled(self, flushed: int) -> tuple[int, int | None]:
        """Fsync up to an offset; return the progress of level 1 and of halves."""
        self.flushed_offset = flushed
        self.progress.settle()
        halves = self.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0)
        return self.delay.get(1), halves


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path)


def test_progress_takes_effect_when_the_log_has_reached_it(replica: Replica) -> None:
    replica.progress.note({1: 10}, {HALVES: {0: 4}}, 1000)
    replica.progress.note({1: 20}, {HALVES: {0: 5}}, 2000)
    replica.progress.note({1: 30}, {HALVES: {0: 6}}, 3000)
    assert replica.settled(999) == (0, None)
    assert replica.settled(1000) == (10, 4)
    assert replica.settled(1999) == (10, 4)
    assert replica.settled(5000) == (30, 6)


def test_progress_that_moved_back_is_taken_over(replica: Replica) -> None:
    replica.progress.note({1: 10}, {}, 1000)
    assert replica.settled(1000)[0] == 10
    replica.progress.note({1: 7}, {}, 1000)
    assert replica.settled(1000)[0] == 7


def test_progress_beyond_a_queue_is_refused_as_a_whole(replica: Replica) -> None:
    replica.progress.note({1: 10}, {HALVES: {0: 4}}, 0)
    assert replica.settled(0) == (10, 4)
    replica.progress.note({1: 101}, {HALVES: {0: 5}}, 0)
    with pytest.raises(CopyError, match=r"SCHEDULE_TOPIC_XXXX queue 0 is 101, .* ends at 100"):
        replica.settled(0)
    replica.progress.note({1: 11}, {HALVES: {0: 101}}, 0)
    with pytest.raises(CopyError, match="HALF_TOPIC queue 0 is 101"):
        replica.settled(0)
    assert replica.settled(0) == (10, 4)


def test_progress_in_an_unknown_queue_counts_nothing(replica: Replica) -> None:
    replica.progress.note({18: 1 << 60}, {}, 0)
    replica.settled(0)
    assert replica.delay.get(18) == 0, "else the first message of the queue would be passed"


def test_only_changed_progress_is_new(replica: Replica) -> None:
    assert replica.progress.is_new({1: 10}, {})
    replica.progress.note({1: 10}, {}, 1000)
    assert not replica.progress.is_new({1: 10}, {})
    assert replica.progress.is_new({1: 11}, {})
    assert replica.progress.is_new({1: 10}, {HALVES: {0: 1}})


def test_another_master_makes_it_forget(replica: Replica) -> None:
    replica.progress.note({1: 10}, {}, 1000)
    replica.progress.forget()
    assert replica.settled(1000)[0] == 0
    assert replica.progress.is_new({1: 10}, {})


def test_a_replica_that_is_far_behind_keeps_the_oldest_progress(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_NOTED", 2)
    for number in (10, 20, 30):
        replica.progress.note({1: number}, {}, number)
    assert replica.progress.is_new({1: 30}, {}), "it can be noted when there is room"
    assert replica.settled(10)[0] == 10
    replica.progress.note({1: 30}, {}, 30)
    assert replica.settled(30)[0] == 30
