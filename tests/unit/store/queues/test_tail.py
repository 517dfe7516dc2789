"""The tail of a consume queue: numbers for puts, without entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.tail import QueueTail
from pyromq.store.results import PutError


def test_a_tail_counts_without_touching_the_queue(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path, 160, "T", 3)
    tail = QueueTail(queue)
    assert (tail.topic, tail.queue_id, tail.topic_part) == ("T", 3, queue.topic_part)
    assert tail.fixed_size == queue.fixed_size
    tail.extend()
    assert tail.room > tail.next_offset
    tail.append(bytes(20))
    tail.append(bytes(40), 2)
    assert tail.pending
    assert not tail.write_pending()
    assert not tail.pending
    assert (tail.next_offset, queue.next_offset) == (3, 0)
    assert not (tmp_path / "T").exists()
    tail.restart()
    assert (tail.next_offset, tail.room) == (0, 0)


def test_a_tail_follows_a_queue_that_is_closed(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path, 160, "T", 0)
    tail = QueueTail(queue)
    tail.extend()
    queue.refuse_puts()
    tail.restart()
    with pytest.raises(PutError, match="is being deleted"):
        tail.extend()
