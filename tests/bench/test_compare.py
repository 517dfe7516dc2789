from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console

from bench import compare
from bench.cases import FILL, INVALID, REPLICATED, START, THROUGHPUT
from bench.compare import Amount, RoundError, measure_cases, measure_starts
from bench.load import LoadOrder
from bench.servers import ServerError

CASES = {case.name: case for case in (*THROUGHPUT, REPLICATED)}
AMOUNT = Amount(messages=100_000, fill=8_000, rounds=2, max_slices=7, starts=2)
QUIET = Console(quiet=True)


class FakeSystem:
    """A system that stores what it is sent, less `lost` messages per load."""

    def __init__(self, name: str, events: list[str], port: int, lost: int = 0) -> None:
        self.name = name
        self.port = port
        self.lost = lost
        self.replica_pids: tuple[int, ...] = ()
        self.topics: dict[str, int] = {}
        self.checked: list[int] = []
        self._events = events

    def prepare(self) -> None: ...

    def start(self, data: Path) -> int:
        data.mkdir(parents=True)
        self._events.append(f"start {self.name}")
        return os.getpid()

    def wait_until_ready(self, pid: int) -> None: ...

    def create_topics(self, topics: Iterable[str]) -> None:
        self.topics = dict.fromkeys(topics, 0)

    def stored(self, topic: str) -> int:
        return self.topics[topic]

    def check(self, sent: int) -> None:
        self.checked.append(sent)

    def output(self) -> str:
        return ""

    def stop(self) -> None:
        self._events.append(f"stop {self.name}")


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def systems(events: list[str], monkeypatch: pytest.MonkeyPatch) -> list[FakeSystem]:
    made = [FakeSystem("java", events, 1), FakeSystem("pyromq", events, 2)]
    by_port = {system.port: system for system in made}

    def load(order: LoadOrder) -> dict[str, float]:
        system = by_port[order.port]
        events.append(f"{order.case} {system.name} {order.max_slices} {order.first_lap}")
        case = CASES.get(order.case, FILL)
        if case.kind.value == "pull":
            events.append(f"of {order.stored_per_queue} per queue")
        else:
            system.topics[case.topic] += order.messages - system.lost
        figures = ("cpu_us", "rate", "p50_ms", "p99_ms", "slices", "load_cores")
        return dict.fromkeys(figures, 1.0) | {"accepted": order.messages}

    monkeypatch.setattr(compare, "_load", load)
    monkeypatch.setattr(compare, "wait_until_resting", lambda *_: 0.0)
    monkeypatch.setattr(os, "sync", lambda: None)
    return made


def test_systems_take_turns_and_jvms_warm_up_in_every_round(
    systems: list[FakeSystem], events: list[str], tmp_path: Path
) -> None:
    rounds = measure_cases(systems, [CASES["send128"]], tmp_path, AMOUNT, QUIET)
    assert events == [
        *("start java", "start pyromq"),
        *("send128 java 7 0", "send128 pyromq 7 0"),
        *("send128 java 7 4096", "send128 pyromq 1 4096"),
        *("stop pyromq", "stop java"),
    ]
    assert {name: len(each) for name, each in rounds["send128"].items()} == {"java": 2, "pyromq": 2}
    assert [system.checked for system in systems] == [[200_000], [200_000]]
    assert list(tmp_path.iterdir()) == [], "all data is deleted"


def test_pulls_read_what_was_filled_in(
    systems: list[FakeSystem], events: list[str], tmp_path: Path
) -> None:
    measure_cases(systems[:1], [CASES["pull"]], tmp_path, AMOUNT, QUIET)
    assert events[1:4] == ["fill java 0 0", "pull java 7 0", "of 1000 per queue"]
    assert systems[0].checked == [8_000]


def test_a_lost_message_fails_the_run(systems: list[FakeSystem], tmp_path: Path) -> None:
    systems[1].lost = 1
    with pytest.raises(ServerError, match="100000 sends were acknowledged, 99999 stored"):
        measure_cases(systems, [CASES["send128"]], tmp_path, AMOUNT, QUIET)


def test_replicas_are_measured_with_their_master(
    systems: list[FakeSystem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[LoadOrder] = []
    load = compare._load

    def load_and_keep(order: LoadOrder) -> dict[str, float]:
        orders.append(order)
        return load(order)

    monkeypatch.setattr(compare, "_load", load_and_keep)
    rounds = measure_cases(systems[1:], [REPLICATED], tmp_path, AMOUNT, QUIET)
    systems[1].replica_pids = (os.getpid(),)
    twice = measure_cases(systems[1:], [REPLICATED], tmp_path, AMOUNT, QUIET)
    assert [order.pids for order in orders] == 2 * [(os.getpid(),)] + 2 * [2 * (os.getpid(),)]
    memory = [each["replication"]["pyromq"][0]["rss_mib"] for each in (rounds, twice)]
    assert memory[1] > 1.5 * memory[0]


@pytest.mark.parametrize("how", ["failed", "busy"])
def test_a_round_of_a_pair_without_success_is_invalid_and_the_next_one_counts(
    systems: list[FakeSystem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    load = compare._load
    outcomes = iter([how, "", "", ""])

    def fail_first(order: LoadOrder) -> dict[str, float]:
        outcome = next(outcomes)
        if outcome == "failed":
            systems[0].topics[REPLICATED.topic] += 17  # stored, but not acknowledged in time
            raise RoundError("FLUSH_SLAVE_TIMEOUT")
        return load(order) | {"refused": 1.0 if outcome == "busy" else 0.0}

    monkeypatch.setattr(compare, "_load", fail_first)
    rounds = measure_cases(systems, [REPLICATED], tmp_path, AMOUNT, QUIET)["replication"]
    assert rounds["java"][0] == {INVALID: 1.0}
    assert [len(each) for each in rounds.values()] == [2, 2]
    assert all(INVALID not in each for each in (rounds["java"][1], *rounds["pyromq"]))


def test_a_failed_round_without_replicas_ends_the_run(
    systems: list[FakeSystem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(order: LoadOrder) -> dict[str, float]:
        raise RoundError(order.case)

    monkeypatch.setattr(compare, "_load", fail)
    with pytest.raises(RoundError, match="send128"):
        measure_cases(systems, [CASES["send128"]], tmp_path, AMOUNT, QUIET)
    assert list(tmp_path.iterdir()) == []


def test_a_system_runs_only_its_cases(
    systems: list[FakeSystem], events: list[str], tmp_path: Path
) -> None:
    systems[1].name = "kafka"
    rounds = measure_cases(systems, [CASES["binary"]], tmp_path, AMOUNT, QUIET)
    assert list(rounds["binary"]) == ["java"]
    assert "start kafka" in events


def test_the_first_start_is_not_measured(
    systems: list[FakeSystem], events: list[str], tmp_path: Path
) -> None:
    rounds = measure_starts(systems, tmp_path, AMOUNT.starts, QUIET)
    assert events.count("start java") == 3
    assert {name: len(each) for name, each in rounds[START].items()} == {"java": 2, "pyromq": 2}
    assert rounds[START]["java"][0]["rest_mib"] > 1
