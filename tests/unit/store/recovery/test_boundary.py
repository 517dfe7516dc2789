from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.store.log.commit_log import CommitLog
from pyromq.store.recovery.boundary import boundary_at_or_below
from pyromq.store.results import StoreError
from tests import kernel_builds
from tests.support.stores import SEGMENT
from tests.support.truncation import written_store


@pytest.fixture(autouse=True, params=["kernel", "python"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with and without the compiled kernel."""
    module = (
        kernel_builds.load(kernel_builds.FAST, "log_piece") if request.param == "kernel" else None
    )
    monkeypatch.setattr("pyromq.store.recovery.walk.load", lambda _: module)


class Written:
    """A log on disk, and all its boundaries."""

    def __init__(self, root: Path) -> None:
        records = written_store(root)
        self.end = records[-1].physical_offset + records[-1].size
        starts = {record.physical_offset for record in records}
        blanks = {record.physical_offset + record.size for record in records}
        self.boundaries = sorted(starts | blanks | set(range(0, self.end, SEGMENT)))
        self.blanks = blanks - starts - {self.end}
        self.log = CommitLog(root / "commitlog", SEGMENT)
        self.log.segments.load()
        self.log.watermarks.assume_written(self.log.segments.end_offset)

    def expected(self, offset: int) -> int:
        return self.boundaries[bisect_right(self.boundaries, offset) - 1]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    written = Written(tmp_path / "store")
    yield written
    written.log.segments.close()


def test_every_boundary_and_its_neighbours(written: Written) -> None:
    assert written.blanks, "no segment ends with a blank record: not tested"
    offsets = {
        offset
        for boundary in written.boundaries
        for offset in (boundary - 1, boundary, boundary + 1)
        if 0 <= offset <= written.end
    }
    found = {offset: boundary_at_or_below(written.log, offset) for offset in offsets}
    assert found == {offset: written.expected(offset) for offset in offsets}


def test_after_the_end_it_is_the_end(written: Written) -> None:
    assert boundary_at_or_below(written.log, written.end + 1) == written.end
    last = written.log.segments.end_offset
    assert boundary_at_or_below(written.log, last) == written.end


def test_the_end_of_a_full_last_segment(written: Written) -> None:
    while len(written.log.segments.files) > 2:
        written.log.segments.files.pop().close()
    assert boundary_at_or_below(written.log, 2 * SEGMENT) == 2 * SEGMENT
    assert boundary_at_or_below(written.log, 2 * SEGMENT - 1) in written.blanks


def test_only_written_bytes_of_a_live_log_count(written: Written) -> None:
    middle = written.boundaries[len(written.boundaries) // 2]
    written.log.watermarks.assume_written(middle)
    assert boundary_at_or_below(written.log, middle + 10_000) == middle


def test_offsets_outside_the_log_are_refused(written: Written) -> None:
    for offset in (-1, written.log.segments.end_offset + 1):
        with pytest.raises(StoreError, match=f"offset {offset} is not in the log"):
            boundary_at_or_below(written.log, offset)


def test_an_empty_log_has_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not in the log"):
        boundary_at_or_below(CommitLog(tmp_path, SEGMENT), 0)
