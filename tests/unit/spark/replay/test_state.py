from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.spark.origins.origin import Queue, QueueRange
from pyromq.spark.replay.state import Cut, Progress, ReplayError, StateDirectory

ONE, OTHER = Queue("T", "a", 0), Queue("T", "a", 1)
SETTINGS = {"source": "archive", "tags": ["x"], "where": None, "shift": 0}


def progress() -> Progress:
    return Progress.begin(SETTINGS, ["h1", "h2", "h3"], {ONE: 10, OTHER: 20}, 5)


def test_parts_and_units_one_after_the_other() -> None:
    at = progress()
    assert (at.unit, at.cut) == ("h1", None)
    at = at.with_cut(Cut.by_offsets([QueueRange(ONE, 0, 10)], 4))
    seen = []
    while at.unit == "h1":
        assert at.cut is not None
        seen.append(at.cut.ranges_of(at.parts_done))
        at = at.part_done(3)
    assert [(each.start, each.end) for (each,) in seen] == [(0, 3), (3, 6), (6, 10)]
    assert (at.unit, at.cut, at.parts_done, at.rows) == ("h2", None, 0, 9)
    at = at.unit_done().with_cut(Cut.by_offsets([], 4)).part_done(0)
    assert at.unit is None


@pytest.mark.parametrize("part_messages", [1, 3, 7, 100, 10_000])
def test_every_offset_is_in_one_part(part_messages: int) -> None:
    ranges = [
        QueueRange(ONE, 5, 105),
        QueueRange(OTHER, 0, 3),
        QueueRange(Queue("U", "b", 0), 7, 7),
    ]
    cut = Cut.by_offsets(ranges, part_messages)
    found = [each for part in range(cut.parts) for each in cut.ranges_of(part)]
    for queue, start, end in ranges:
        offsets = [
            offset
            for each in found
            if each.queue == queue
            for offset in range(each.start, each.end)
        ]
        assert offsets == list(range(start, end))
    largest = max(sum(each.size for each in cut.ranges_of(part)) for part in range(cut.parts))
    assert largest <= part_messages + len(ranges)
    assert cut.times_of(0) is None


def test_slices_of_time() -> None:
    ranges = [QueueRange(ONE, 0, 10), QueueRange(OTHER, 5, 5)]
    cut = Cut.by_times(ranges, 1000, 3500, 1000)
    assert cut.parts == 3
    assert [cut.times_of(part) for part in range(3)] == [(1000, 2000), (2000, 3000), (3000, 4000)]
    assert cut.ranges_of(1) == ranges[:1]
    assert Cut.by_times(ranges, 1000, 1000, 1000).parts == 1
    assert Cut.by_times(ranges, 1000, 2000, 1000).times_of(1) == (2000, 3000)


@pytest.mark.parametrize(
    "saved",
    [
        progress(),
        progress().with_shift(-7).with_cut(Cut.by_times([QueueRange(ONE, 1, 2)], 5, 9, 2)),
        progress().with_cut(Cut.by_offsets([QueueRange(ONE, 1, 200)], 7)).part_done(7),
        progress().unit_done().unit_done().unit_done(),
    ],
)
def test_what_is_saved_is_loaded(saved: Progress, tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "new" / "state")
    with directory.locked():
        assert directory.load(SETTINGS) is None
        directory.save(saved)
        assert directory.load({**SETTINGS, "tags": ("x",)}) == saved


def test_each_replay_has_an_id_of_its_own() -> None:
    assert progress().id != progress().id


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    directory.save(progress())
    with pytest.raises(ReplayError, match=r"begun with tags=\['x'\], not \['y'\]: go on as it was"):
        directory.load({**SETTINGS, "tags": ["y"]})
    with pytest.raises(ReplayError, match="begun with more=None, not 1"):
        directory.load({**SETTINGS, "more": 1})


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 99}', b"[]", b'{"version": 1}'])
def test_a_state_that_cannot_be_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_bytes(content)
    with pytest.raises(ReplayError, match=r"replay\.json cannot be read"):
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


def test_no_directory_keeps_nothing() -> None:
    directory = StateDirectory(None)
    with directory.locked():
        directory.save(progress())
        assert directory.load(SETTINGS) is None
