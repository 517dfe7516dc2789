from __future__ import annotations

from pathlib import Path

import orjson

from bench.cases import BOUNDS, SYNC, Bound
from bench.cases import CASES as DEFAULT_CASES
from bench.report import ServerRun, is_committed, medians, ratio_to_java, render, save

CASES = (*DEFAULT_CASES, SYNC)

_FIGURES = (
    "rate",
    "cpu_us",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "rss_mib",
    "server_cores",
    "load_cores",
)


def _run(factor: float) -> ServerRun:
    run = {case.name: dict.fromkeys(_FIGURES, factor) for case in CASES}
    for case in CASES:
        run[case.name] |= {"load_cores": 0.2, "refused": 0}
    run[""] = dict.fromkeys(("startup_s", "rss_mib", "anonymous_mib", "file_mib"), factor)
    return run


def test_medians_are_taken_per_figure() -> None:
    rounds: list[ServerRun] = [{"a": {"x": 1.0, "y": 9.0}}, {"a": {"x": 3.0, "y": 7.0}}]
    rounds.append({"a": {"x": 2.0, "y": 100.0}})
    assert medians(rounds) == {"a": {"x": 2.0, "y": 9.0}}


def test_a_bound_works_in_its_own_direction() -> None:
    assert Bound("c", "f", 0.5).kept(0.5)
    assert not Bound("c", "f", 0.5).kept(0.51)
    assert Bound("c", "f", 1.25, at_most=False).kept(1.25)
    assert not Bound("c", "f", 1.25, at_most=False).kept(1.24)


def test_every_bound_names_a_case_and_is_shown() -> None:
    names = {"", *(case.name for case in CASES)}
    assert {bound.case for bound in BOUNDS} <= names
    text, _ = render({"java": _run(1.0), "pyromq": _run(0.1)}, CASES, {})
    assert text.count("<=") + text.count(">=") >= len(BOUNDS)


def test_missed_bounds_are_named() -> None:
    # A tenth of everything keeps all bounds but those that ask for more: throughput.
    text, missed = render({"java": _run(1.0), "pyromq": _run(0.1)}, CASES, {})
    assert len(missed) == 2
    assert missed[0].startswith("send 128 B, 4 x 64 in flight: messages/s 0.10")
    assert text.count("MISSED") == 4  # in the table and below it
    _, missed = render({"java": _run(1.0), "pyromq": _run(2.0)}, CASES, {})
    assert len(missed) == len(BOUNDS) - 2


def test_one_server_alone_has_no_ratio_and_no_verdict() -> None:
    figures = {"java": _run(1.0)}
    assert ratio_to_java(figures, "send128", "rate") is None
    text, missed = render(figures, CASES, {})
    assert missed == []
    assert "MISSED" not in text


def test_a_busy_load_generator_is_pointed_out() -> None:
    run = _run(1.0)
    run["pull"]["load_cores"] = 0.97
    text, _ = render({"java": run}, CASES, {})
    assert "0.97 cores against java" in text


def test_a_cold_java_is_pointed_out() -> None:
    figures = {"java": _run(1.0)}
    assert "not fully compiled" in render(figures, CASES, {"warm_up": 100_000})[0]
    assert "not fully compiled" not in render(figures, CASES, {"warm_up": 500_000})[0]


def test_refusals_are_reported_and_those_of_pyromq_fail() -> None:
    refusing = _run(1.0)
    refusing["batch"]["refused"] = 64
    figures = {"java": medians([_run(1.0), refusing, _run(1.0)]), "pyromq": _run(0.1)}
    text, missed = render(figures, CASES, {})
    assert "NOTE  java refused 64 messages as busy" in text
    assert len(missed) == 2
    text, missed = render({"pyromq": figures["java"]}, CASES, {})
    assert missed == ["pyromq refused 64 messages as busy in 'batch 32 x 128 B, 4 x 8 in flight'"]
    assert missed[0] in text


FACTS = {"date": "2026-01-02", "commit": "abc1234", "machine": "x86_64", "cores": 2}


def test_saved_files_hold_rounds_and_table(tmp_path: Path) -> None:
    content = {"environment": FACTS, "rounds": {"java": [_run(1.0)]}}
    as_json, as_text = save(tmp_path, "broker", content, "table\n", is_baseline=False)
    assert as_json == tmp_path / ".cache/bench-results/2026-01-02-abc1234-broker.json"
    assert orjson.loads(as_json.read_bytes())["rounds"]["java"] == [_run(1.0)]
    assert as_text.read_text() == "table\n"


def test_a_baseline_replaces_the_one_of_the_same_kind_of_machine(tmp_path: Path) -> None:
    for commit, cores in (("first", 2), ("second", 2), ("third", 64)):
        content = {"environment": {**FACTS, "commit": commit, "cores": cores}}
        save(tmp_path, "broker", content, commit, is_baseline=True)
    saved = {path.name: path.read_text() for path in (tmp_path / "bench/results").glob("*.txt")}
    assert saved == {
        "broker-x86_64-2-cores.txt": "second",
        "broker-x86_64-64-cores.txt": "third",
    }


def test_only_a_commit_can_be_a_baseline() -> None:
    assert is_committed({"commit": "abc1234"})
    assert not is_committed({"commit": "abc1234+changes"})
