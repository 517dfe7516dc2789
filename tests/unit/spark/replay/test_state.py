from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.spark.origins.origin import Queue, QueueRange
from pyromq.spark.replay.state import Cut, Progress, ReplayError, StateDirectory

ONE, OTHER = Queue("T", "a", 0), Queue("T", "a", 1)
SETTINGS = {"source": "archive", "tags": ["x"], "where": None, "shift": 0}


def progress() -> Progress:
    return Progress.begin(SETTINGS, ["h1", "h2", "h3"], {ONE: 10, OTHER: 20}, 5)


def test_batches_and_units_in_order() -> None:
    at = progress()
    assert (at.unit, at.cut) == ("h1", None)
    at = at.with_cut(Cut.by_offsets([QueueRange(ONE, 0, 10)], 4))
    seen = []
    while at.unit == "h1":
        assert at.cut is not None
        seen.append(at.cut.ranges_of(at.batches_done))
        at = at.batch_done(3)
    assert [(each.start, each.end) for (each,) in seen] == [(0, 3), (3, 6), (6, 10)]
    assert (at.unit, at.cut, at.batches_done, at.rows) == ("h2", None, 0, 9)
    at = at.unit_done().with_cut(Cut.by_offsets([], 4)).batch_done(0)
    assert at.unit is None


@pytest.mark.parametrize("batch_messages", [1, 3, 7, 100, 10_000])
def test_every_offset_is_in_one_batch(batch_messages: int) -> None:
    ranges = [
        QueueRange(ONE, 5, 105),
        QueueRange(OTHER, 0, 3),
        QueueRange(Queue("U", "b", 0), 7, 7),
    ]
    cut = Cut.by_offsets(ranges, batch_messages)
    found = [each for batch in range(cut.batches) for each in cut.ranges_of(batch)]
    for queue, start, end in ranges:
        offsets = [
            offset
            for each in found
            if each.queue == queue
            for offset in range(each.start, each.end)
        ]
        assert offsets == list(range(start, end))
    largest = max(sum(each.size for each in cut.ranges_of(batch)) for batch in range(cut.batches))
    assert largest <= batch_messages + len(ranges)
    assert cut.times_of(0) is None


def test_time_slices() -> None:
    ranges = [QueueRange(ONE, 0, 10), QueueRange(OTHER, 5, 5)]
    cut = Cut.by_times(ranges, 1000, 3500, 1000)
    assert cut.batches == 3
    assert [cut.times_of(batch) for batch in range(3)] == [(1000, 2000), (2000, 3000), (3000, 4000)]
    assert cut.ranges_of(1) == ranges[:1]
    assert Cut.by_times(ranges, 1000, 1000, 1000).batches == 1
    assert Cut.by_times(ranges, 1000, 2000, 1000).times_of(1) == (2000, 3000)


@pytest.mark.parametrize(
    "saved",
    [
        progress(),
        progress().with_shift(-7).with_cut(Cut.by_times([QueueRange(ONE, 1, 2)], 5, 9, 2)),
        progress().with_cut(Cut.by_offsets([QueueRange(ONE, 1, 200)], 7)).batch_done(7),
        progress().unit_done().unit_done().unit_done(),
    ],
)
def test_saved_progress_is_loaded(saved: Progress, tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "new" / "state")
    with directory.locked():
        assert directory.load(SETTINGS) is None
        directory.save(saved)
        assert directory.load({**SETTINGS, "tags": ("x",)}) == saved


def test_each_replay_has_its_own_id() -> None:
    assert progress().id != progress().id


def test_other_settings_are_rejected_by_name(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    directory.save(progress())
    with pytest.raises(ReplayError, match=r"started with tags=\['x'\], not \['y'\]: resume it"):
        directory.load({**SETTINGS, "tags": ["y"]})
    with pytest.raises(ReplayError, match="started with more=None, not 1"):
        directory.load({**SETTINGS, "more": 1})


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 99}', b"[]", b'{"version": 1}'])
def test_an_unreadable_state(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_bytes(content)
    with pytest.raises(ReplayError, match=r"cannot read .*replay\.json"):
        StateDirectory(tmp_path).load(SETTINGS)


def test_one_at_a_time(tmp_path: Path) -> None:
    one, other = StateDirectory(tmp_path), StateDirectory(tmp_path)
    with (
        one.locked(),
        pytest.raises(ReplayError, match=r"another process replays .* process [0-9]+ on"),
    ):
        other.locked().__enter__()
    with other.locked():
        pass


def test_without_a_directory_nothing_is_saved() -> None:
    directory = StateDirectory(None)
    with directory.locked():
        directory.save(progress())
        assert directory.load(SETTINGS) is None
