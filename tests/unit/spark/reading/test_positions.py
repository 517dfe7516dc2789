"""Where reads start and end, and how missing topics, queues and offsets are handled."""

from __future__ import annotations

import logging

import pytest

from pyromq.spark.options import Mode, Queues, ReadOptions, TopicPattern, Topics
from pyromq.spark.origins.origin import Bounds, OriginError, Queue, QueueRange
from pyromq.spark.reading.positions import (
    DataLossError,
    Losses,
    PositionError,
    batch_ranges,
    clip,
    find_queues,
    is_wanted,
    known_bounds,
    starting_offsets,
)
from pyromq.spark.reading.queue_offsets import Offsets
from tests.unit.spark.fake_origin import EPOCH, FakeOrigin

A0, A1, B0 = Queue("T", "a", 0), Queue("T", "a", 1), Queue("T", "b", 0)
OTHER = Queue("Other", "a", 0)
BOUNDS = {A0: (10, 100), A1: (0, 50), B0: (0, 0), OTHER: (0, 7)}


@pytest.fixture
def origin() -> FakeOrigin:
    return FakeOrigin(BOUNDS)


def ranges(origin: FakeOrigin, **options: str) -> list[tuple[Queue, int, int]]:
    given = {"nameserver": "localhost:9876", **options}
    if not {"assign", "subscribePattern"} & options.keys():
        given.setdefault("subscribe", "T")
    parsed = ReadOptions.parse(given, Mode.BATCH)
    return [tuple(wanted) for wanted in batch_ranges(origin, parsed)]  # type: ignore[misc]


def test_everything(origin: FakeOrigin) -> None:
    assert ranges(origin) == [(A0, 10, 100), (A1, 0, 50)]


def test_several_topics_and_patterns(origin: FakeOrigin) -> None:
    both = [(OTHER, 0, 7), (A0, 10, 100), (A1, 0, 50)]
    assert ranges(origin, subscribe="T,Other") == both
    assert ranges(origin, subscribePattern=".*T|Oth.*") == both
    # The whole name must match.
    assert ranges(origin, subscribePattern="Oth") == []


def test_assigned_queues(origin: FakeOrigin) -> None:
    assert ranges(origin, assign='{"T": ["a:1"]}') == [(A1, 0, 50)]


def test_a_missing_topic(origin: FakeOrigin) -> None:
    with pytest.raises(PositionError, match="no topic 'Nowhere'"):
        ranges(origin, subscribe="T,Nowhere")
    assert find_queues(origin, Topics(("Nowhere",)), known_topics={"Nowhere"}) == []


def test_a_missing_queue(origin: FakeOrigin) -> None:
    with pytest.raises(PositionError, match=r"assign names missing queues \(T@a:9\)"):
        ranges(origin, assign='{"T": ["a:1", "a:9"]}')
    with pytest.raises(PositionError):
        known_bounds(origin, [Queue("T", "c", 0)])


def test_assigned_queues_that_disappeared(origin: FakeOrigin) -> None:
    wanted = Queues((A1, Queue("T", "gone", 0)))
    assert find_queues(origin, wanted, known_topics={"T"}) == [A1]


def test_retry_and_dead_letter_topics_need_an_explicit_pattern() -> None:
    retries = Queue("%RETRY%group", "a", 0)
    origin = FakeOrigin({A0: (0, 1), retries: (0, 1)})
    assert find_queues(origin, TopicPattern(".*")) == [A0]
    assert find_queues(origin, TopicPattern("%RETRY%.*")) == [retries]


def test_is_wanted() -> None:
    assert is_wanted(A0, Topics(("T",)))
    assert not is_wanted(OTHER, Topics(("T",)))
    assert is_wanted(A0, Queues((A0,)))
    assert not is_wanted(A1, Queues((A0,)))
    assert is_wanted(OTHER, TopicPattern("Oth.*"))
    assert not is_wanted(OTHER, TopicPattern("Oth"))


def test_offsets_for_each_queue(origin: FakeOrigin) -> None:
    found = ranges(
        origin,
        startingOffsets='{"T": {"a:0": 20, "a:1": -2, "b:0": -2}}',
        endingOffsets='{"T": {"a:0": 30, "a:1": -1, "b:0": -1}}',
    )
    assert found == [(A0, 20, 30), (A1, 0, 50)]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_every_queue_must_be_named(origin: FakeOrigin, option: str) -> None:
    with pytest.raises(PositionError, match=f"{option} does not name T@a:1, T@b:0"):
        ranges(origin, **{option: '{"T": {"a:0": 20}}'})
    with pytest.raises(PositionError, match=f"{option} names queues .*T@c:0"):
        ranges(origin, **{option: '{"T": {"a:0": 20, "a:1": 1, "b:0": 0, "c:0": 0}}'})


def test_times(origin: FakeOrigin) -> None:
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(origin, startingTimestamp=str(EPOCH + 40_500), **late) == [
        (A0, 41, 100),
        (A1, 41, 50),
    ]
    assert ranges(origin, endingTimestamp=str(EPOCH + 20_000)) == [(A0, 10, 20), (A1, 0, 20)]
    # Before everything and after everything.
    assert ranges(origin, startingTimestamp="0", **late) == ranges(origin)
    assert ranges(origin, endingTimestamp=str(EPOCH * 2)) == ranges(origin)


def test_a_time_after_all_messages(origin: FakeOrigin) -> None:
    with pytest.raises(PositionError, match=r"in T@a:1, T@b:0: .*Strategy=latest"):
        ranges(origin, startingTimestamp=str(EPOCH + 60_000))


def test_times_for_each_queue(origin: FakeOrigin) -> None:
    times = f'{{"T": {{"a:0": {EPOCH + 50_000}, "a:1": {EPOCH + 49_000}}}}}'
    with pytest.raises(PositionError, match="ByTimestamp does not name T@b:0"):
        ranges(origin, startingOffsetsByTimestamp=times)
    del origin.all[B0]
    assert ranges(origin, startingOffsetsByTimestamp=times) == [(A0, 50, 100), (A1, 49, 50)]
    assert ranges(origin, endingOffsetsByTimestamp=times) == [(A0, 10, 50), (A1, 0, 49)]


def test_times_without_a_response(origin: FakeOrigin, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(timestamps: Offsets) -> Offsets:
        return {}

    monkeypatch.setattr(origin, "offsets_at", nothing)
    with pytest.raises(OriginError, match="T@a:0"):
        ranges(origin, endingTimestamp="5")


def test_expired_offsets(origin: FakeOrigin, caplog: pytest.LogCaptureFixture) -> None:
    offsets = {"startingOffsets": '{"T": {"a:0": 3, "a:1": 0, "b:0": 0}}'}
    with pytest.raises(DataLossError, match="T@a:0: offsets 3 to 9 have expired") as caught:
        ranges(origin, **offsets)
    assert "failOnDataLoss=false" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        assert ranges(origin, failOnDataLoss="false", **offsets) == ranges(origin)
    assert "T@a:0: offsets 3 to 9 have expired" in caplog.text


def test_offsets_after_the_end(origin: FakeOrigin) -> None:
    offsets = {"endingOffsets": '{"T": {"a:0": 100, "a:1": 60, "b:0": 0}}'}
    with pytest.raises(DataLossError, match="T@a:1: offsets 50 to 59 do not exist"):
        ranges(origin, **offsets)
    assert ranges(origin, failOnDataLoss="false", **offsets) == ranges(origin)


def test_a_start_after_the_end_reads_nothing(origin: FakeOrigin) -> None:
    offsets = {"startingOffsets": '{"T": {"a:0": 200, "a:1": 0, "b:0": 0}}'}
    assert ranges(origin, **offsets) == [(A1, 0, 50)]


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ((10, 20), (10, 20)),
        ((0, 20), (10, 20)),
        ((0, 5), (10, 10)),
        ((90, 200), (90, 100)),
        ((150, 200), (150, 150)),
        ((0, 200), (10, 100)),
        ((20, 20), (20, 20)),
        ((20, 10), (20, 20)),
    ],
)
def test_clip(wanted: tuple[int, int], left: tuple[int, int]) -> None:
    got = clip(QueueRange(A0, *wanted), Bounds(10, 100), Losses(fail=False))
    assert (got.start, got.end) == left


def test_starting_offsets_of_a_stream(origin: FakeOrigin) -> None:
    options = ReadOptions.parse({"nameserver": "localhost:9876", "subscribe": "T"}, Mode.STREAM)
    bounds = known_bounds(origin, origin.queues("T"))
    assert starting_offsets(origin, options, bounds) == {A0: 100, A1: 50, B0: 0}
