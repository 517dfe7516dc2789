from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyromq.raft.format import Run
from pyromq.raft.ledger import Ledger
from pyromq.raft.log import RaftLog
from pyromq.raft.log_ledger import LogLedger
from pyromq.raft.messages import Entry
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.results import StoreError
from tests.raft.both_ledgers import BothLedgers
from tests.raft.simulator import Mode, Simulation
from tests.support.raft_logs import entries_of, open_log

TERM = 3


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[RaftLog]]:
    """Logs of a leader and a follower; both have entries 0 to 4, the leader ten."""
    leader, follower = (open_log(tmp_path / name) for name in ("leader", "follower"))
    leader.append_bodies(TERM, [b"%d" % index * 9 for index in range(10)])
    follower.append_raw(leader.run(0, 4096, 5).data)
    yield [leader, follower]
    leader.stop()
    follower.stop()


@pytest.fixture
def leader(logs: list[RaftLog]) -> LogLedger:
    return LogLedger(logs[0])


@pytest.fixture
def follower(logs: list[RaftLog]) -> LogLedger:
    return LogLedger(logs[1])


def run_of(ledger: LogLedger, first: int, last: int) -> Run:
    run = ledger.run(first, last, 4096)
    assert run is not None
    return run


def test_it_is_a_ledger(leader: LogLedger, logs: list[RaftLog]) -> None:
    ledger: Ledger = leader
    assert (ledger.begin_index, ledger.end_index, ledger.end_term) == (0, 9, TERM)
    assert (ledger.end_position, ledger.durable_index) == (570, -1)
    logs[0].flush()
    assert ledger.durable_index == 9
    assert ledger.term_of(9) == TERM
    assert ledger.entry(1) == Entry(1, TERM, 57, 57, b"1" * 9)
    assert ledger.append_body(7, b"x") == Entry(10, 7, 570, 49, b"x")


def test_outside_of_the_log_there_is_nothing(leader: LogLedger) -> None:
    assert leader.term_of(10) is None
    assert leader.entry(-1) is None
    assert leader.run(10, 12, 4096) is None


def test_runs_have_two_limits(leader: LogLedger) -> None:
    assert run_of(leader, 2, 5).last_index == 5
    short = leader.run(2, 5, 2 * 57 + 56)
    assert short is not None
    assert (short.last_index, short.position) == (3, 114)
    assert leader.run(2, 5, 1) == run_of(leader, 2, 2)


def test_a_run_is_read_once_for_several_followers(
    leader: LogLedger, logs: list[RaftLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(leader, 2, 9)
    with monkeypatch.context() as patched:
        patched.setattr(logs[0], "run", None)
        assert run_of(leader, 2, 9) is run
    leader.truncate_after(8)
    leader.append_body(TERM + 1, b"other")
    assert run_of(leader, 2, 9) != run


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("last", range(5, 10))
def test_stored_entries_of_a_run_are_skipped(
    first: int, last: int, leader: LogLedger, follower: LogLedger, logs: list[RaftLog]
) -> None:
    assert follower.append_run(run_of(leader, first, last), TERM)
    assert entries_of(logs[1]) == entries_of(logs[0])[: last + 1]


def test_a_run_that_is_stored_changes_nothing(leader: LogLedger, follower: LogLedger) -> None:
    assert follower.append_run(run_of(leader, 1, 3), TERM)
    assert follower.append_run(run_of(leader, 0, 4), TERM)
    assert follower.end_index == 4


def damaged(run: Run, at: int) -> Run:
    data = bytearray(run.data)
    data[at] ^= 1
    return replace(run, data=bytes(data))


@pytest.mark.parametrize(
    "change",
    [
        lambda run: damaged(run, 48),  # a body of a stored entry
        lambda run: damaged(run, 2 * 57 + 15),  # the index of a stored entry
        lambda run: damaged(run, 4 * 57 + 3),  # the magic of a new one
        lambda run: damaged(run, 4 * 57 + 31),  # and its position
        lambda run: replace(run, data=run.data[:-1]),
        lambda run: replace(run, data=run.data + b"x"),
        lambda run: replace(run, data=run.data[:100]),
        lambda run: replace(run, count=run.count + 1),
        lambda run: replace(run, count=run.count - 1),
        lambda run: replace(run, count=2),
        lambda run: replace(run, position=run.position + 57),
        lambda run: replace(run, first_index=run.first_index + 1),
        lambda run: replace(run, first_index=run.first_index - 1),
        lambda run: replace(run, first_index=9),
    ],
)
def test_a_wrong_run_is_refused(
    change: Callable[[Run], Run], leader: LogLedger, follower: LogLedger, logs: list[RaftLog]
) -> None:
    before = entries_of(logs[1])
    assert not follower.append_run(change(run_of(leader, 1, 7)), TERM)
    assert entries_of(logs[1]) == before


def test_a_run_of_a_later_term_is_refused(leader: LogLedger, follower: LogLedger) -> None:
    assert not follower.append_run(run_of(leader, 5, 9), TERM - 1)


def test_a_run_without_a_term_is_refused(leader: LogLedger, tmp_path: Path) -> None:
    log = open_log(tmp_path / "empty")
    data = bytearray(run_of(leader, 0, 0).data)
    data[16:24] = b"\xff" * 8
    assert not LogLedger(log).append_run(Run(0, 1, 0, bytes(data)), TERM)
    log.stop()


def test_a_run_before_the_begin_is_refused(leader: LogLedger, follower: LogLedger) -> None:
    assert follower.restart_with(Entry(7, TERM, 399, 57, b"7" * 9))
    assert (follower.begin_index, follower.end_index) == (7, 7)
    assert not follower.append_run(run_of(leader, 6, 9), TERM)
    assert follower.append_run(run_of(leader, 7, 9), TERM)


@pytest.mark.parametrize(
    "changes",
    [
        {"pos": -57},
        {"pos": 2**63},
        {"index": 2**62},
        {"size": 58},
        {"body": b"", "size": 48},
    ],
)
def test_impossible_entries_are_refused(follower: LogLedger, changes: dict[str, Any]) -> None:
    entry = replace(Entry(5, TERM, 285, 57, b"5" * 9), **changes)
    assert not follower.append(entry)
    assert not follower.restart_with(entry)
    assert follower.end_index == 4


def test_an_entry_elsewhere_is_refused(follower: LogLedger) -> None:
    assert not follower.append(Entry(6, TERM, 285, 57, b"6" * 9))
    assert not follower.append(Entry(5, TERM, 286, 57, b"5" * 9))
    assert follower.append(Entry(5, TERM, 285, 57, b"5" * 9))


def test_committed_entries_are_not_removed(follower: LogLedger, logs: list[RaftLog]) -> None:
    logs[1].commit(3)
    follower.truncate_after(3)
    with pytest.raises(StoreError, match="are committed"):
        follower.truncate_after(2)
    with pytest.raises(StoreError, match="are committed"):
        follower.restart_with(Entry(2, TERM + 1, 114, 57, b"x" * 9))
    assert follower.end_index == 3


def test_the_disk_s_errors_pass(
    leader: LogLedger, follower: LogLedger, logs: list[RaftLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(logs[1].files, "prepare", full)
    for write in (
        lambda: follower.append_run(run_of(leader, 5, 9), TERM),
        lambda: follower.append(Entry(5, TERM, 285, 57, b"5" * 9)),
        lambda: follower.append_body(TERM, b"x"),
    ):
        with pytest.raises(OSError, match="no space left"):
            write()
    assert follower.end_index == 4


@pytest.mark.parametrize("seed", range(20))
def test_groups_on_real_logs_do_what_groups_in_memory_do(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the cores is answered by both ledgers, and compared."""
    monkeypatch.setattr(MappedFile, "sync", lambda file: None)  # nothing is cut here
    made: list[BothLedgers] = []

    def make(fails: Callable[[], bool]) -> BothLedgers:
        made.append(BothLedgers(tmp_path / f"dledger-n{len(made)}"))
        return made[-1]

    simulation = Simulation(seed, Mode.CRASHES, mixed=True, ledgers=make)
    simulation.run()
    assert sum(ledger.calls for ledger in made) > 100
    for ledger in made:
        real = [LogLedger(ledger.log).entry(entry.index) for entry in ledger.entries()]
        assert real == ledger.entries()
        ledger.log.stop()
