from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from bench import replication
from bench.cases import CATCH_UP
from bench.replication import Pair, Written, java_pair, measure_catch_up, pyromq_pair, write_stores
from bench.servers import Server, ServerError
from tests.support.java_pair import Node, NodeSettings, Role
from tests.support.log_compare import compare_logs

QUIET = Console(quiet=True)
SIZE = 3_000_000


class FakeNode(Node):
    """A broker whose log ends, each time it is asked, at the next of `ends`; then it is gone."""

    kind = "fake"
    ends: list[tuple[int, int]]

    def __init__(self, settings: NodeSettings, events: list[str]) -> None:
        super().__init__(settings)
        self.is_gone = False
        self._events = events
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        return self._pid

    def has_ended(self) -> bool:
        return self.is_gone

    def log(self) -> str:
        return "the log of a fake"

    def wait_ready(self) -> None:
        self._events.append(f"{self.role} is ready")

    def runtime_info(self, timeout: float = 1.0) -> dict[str, str]:
        if not FakeNode.ends:
            self.is_gone = True
            raise ConnectionRefusedError("gone")
        end, behind = FakeNode.ends.pop(0)
        return {"commitLogMaxOffset": str(end), "dispatchBehindBytes": str(behind)}

    def _launch(self) -> None:
        files = sorted(path.name for path in self.store.iterdir()) if self.store.exists() else []
        self._events.append(f"start {self.role} with {' '.join(files)}")
        self._pid = os.getpid()

    def _end(self, how: signal.Signals) -> None:
        self._events.append(f"{how.name} {self.role}")
        self._pid = None

    def _signal(self, how: signal.Signals) -> None:
        assert how is signal.SIGCONT


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def pair(events: list[str], monkeypatch: pytest.MonkeyPatch) -> Pair:
    @contextmanager
    def run_name_server() -> Iterator[str]:
        events.append("start NameServer")
        yield "127.0.0.1:1"
        events.append("stop NameServer")

    for name in ("wait_for_keys", "wait_until_resting"):
        monkeypatch.setattr(replication, name, lambda *_: None)
    monkeypatch.setattr(replication, "_POLL_SECONDS", 0.0)
    return Pair("pyromq", lambda settings: FakeNode(settings, events), run_name_server)


def test_a_pair_is_a_master_with_a_replica(pair: Pair, events: list[str], tmp_path: Path) -> None:
    assert pair.start(tmp_path) == os.getpid()
    assert list(pair.replica_pids) == [os.getpid()]
    assert pair.store == tmp_path / "master" / "store"
    pair.stop()
    assert not pair.replica_pids
    assert events == [
        "start NameServer",
        *("start SYNC_MASTER with ", "SYNC_MASTER is ready", "start SLAVE with "),
        *("SIGTERM SLAVE", "SIGTERM SYNC_MASTER", "stop NameServer"),
    ]


def test_a_replica_that_lacks_messages_fails_the_check(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "check", lambda *_: None)
    pair.start(tmp_path)
    FakeNode.ends = [(500, 0), (400, 0), (500, 9), (500, 0)]
    pair.check(1)
    assert FakeNode.ends == []
    pair.stop()


def test_the_begin_is_a_prefix_of_the_whole_log(tmp_path: Path) -> None:
    written = write_stores(tmp_path, SIZE)
    assert written.size >= SIZE
    assert 1024**2 <= written.begin_size < SIZE
    found = compare_logs(written.whole, written.begin)
    assert found.ends == (written.size, written.begin_size)
    assert not any("logs differ at" in each for each in found.differences)
    assert not (written.whole / "abort").exists()
    assert not (written.begin / "abort").exists()
    assert written.messages > 2_000


def test_the_clock_runs_from_the_last_moment_without_bytes_to_everything_dispatched(
    pair: Pair, events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = 1_000_000
    monkeypatch.setattr(replication, "write_stores", lambda *_: _written(tmp_path, begin, SIZE))
    clock = iter(range(1_000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    FakeNode.ends = [(begin, 0), (begin, 0), (begin + 1, 1), (SIZE, 5), (SIZE - 9, 0), (SIZE, 0)]
    [figures] = measure_catch_up([pair], tmp_path, SIZE, 1, QUIET)[CATCH_UP]["pyromq"]
    # Asked at 2, 3 and 4, answered at 5; then asked at 7, 8 and 9, answered at 10.
    assert figures["wait_s"] == 3.0
    assert figures["catch_up_s"] == 7.0
    assert figures["rate"] == pytest.approx((SIZE - begin) / 1e6 / 7.0)
    assert "start ASYNC_MASTER with whole-file" in events
    assert "start SLAVE with begin-file" in events
    assert not list(tmp_path.glob("catch-up*")), "all data is deleted"


def test_a_replica_that_ends_is_named(
    pair: Pair, events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "write_stores", lambda *_: _written(tmp_path, 10, SIZE))
    FakeNode.ends = [(10, 0), (20, 0)]
    with pytest.raises(ServerError, match=r"SLAVE.*it has ended\nthe log of a fake"):
        measure_catch_up([pair], tmp_path, SIZE, 1, QUIET)
    assert events[-1] == "stop NameServer"


def _written(directory: Path, begin: int, size: int) -> Written:
    for name in ("whole", "begin"):
        (directory / name).mkdir()
        (directory / name / f"{name}-file").touch()
    return Written(directory / "whole", directory / "begin", 100, size, begin)


def test_pairs_have_the_names_of_their_contenders(tmp_path: Path) -> None:
    assert java_pair().name == "java"
    assert pyromq_pair().name == "pyromq"
    assert pyromq_pair(name="base", tree=tmp_path).name == "base"
    node = pyromq_pair()._make_node(NodeSettings(tmp_path, "", Role.SLAVE, patient=False))
    assert node.all_properties()["brokerId"] == "1"
    assert "slaveTimeout" not in node.all_properties(), "defaults, as users have them"
