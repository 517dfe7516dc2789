from __future__ import annotations

import subprocess
from pathlib import Path

import orjson
import pytest

from bench.cases import BOUNDS, CONTENDERS, INVALID, SECTIONS, THROUGHPUT, Bound
from bench.report import (
    Rounds,
    Spread,
    cell,
    environment,
    is_committed,
    merged_with_baseline,
    ratio,
    render,
    save,
    spread,
    verdicts,
)


def _rounds(**factors: float) -> Rounds:
    """Every figure of every contender is its factor."""
    return {
        section.name: {
            name: [dict.fromkeys(section.figures, factor) | {"load_cores": 0.2, "refused": 0}]
            for name, factor in factors.items()
        }
        for section in SECTIONS
    }


def _kept() -> Rounds:
    """Every bound is met exactly, as far as two bounds of one figure allow."""
    rounds = _rounds(java=1.0, nats=1.0, kafka=1.0, base=1.0, pyromq=1.0, pure=1.0)
    for bound in sorted(BOUNDS, key=lambda bound: -bound.limit):
        rounds[bound.case][bound.subject][0][bound.figure] = bound.limit
    return rounds


def test_a_figure_has_a_median_and_a_range() -> None:
    rounds: Rounds = {"a": {"x": [{"rate": 1.0}, {"rate": 9.0}, {"rate": 2.0}]}}
    assert spread(rounds, "a", "x", "rate") == Spread(2.0, 1.0, 9.0)
    assert spread(rounds, "a", "y", "rate") is None
    assert spread(rounds, "a", "x", "cpu_us") is None
    assert cell(Spread(2.0, 1.0, 9.0), "{:.1f}") == "2.0 (1.0 to 9.0)"
    assert cell(Spread(2.0, 2.0, 2.0), "{:.1f}") == "2.0"


def test_a_ratio_is_that_of_the_medians() -> None:
    rounds: Rounds = {
        "a": {"java": [{"rate": 4.0}, {"rate": 2.0}, {"rate": 100.0}], "pyromq": [{"rate": 8.0}]},
        "b": {"java": [{"rate": 16.0}]},
    }
    assert ratio(rounds, "a", "rate", "pyromq", "java") == 2.0
    assert ratio(rounds, "a", "rate", "pyromq", "java", "b") == 0.5
    assert ratio(rounds, "a", "rate", "pyromq", "nats") is None


def test_a_bound_works_in_its_own_direction() -> None:
    assert Bound("c", "f", 0.5).kept(0.5)
    assert not Bound("c", "f", 0.5).kept(0.51)
    assert Bound("c", "f", 1.25, at_most=False).kept(1.25)
    assert not Bound("c", "f", 1.25, at_most=False).kept(1.24)


def test_every_bound_names_figures_that_are_measured() -> None:
    figures = {section.name: section.figures for section in SECTIONS}
    by_case = {case.name: case.contenders for case in THROUGHPUT}
    for bound in BOUNDS:
        assert bound.figure in figures[bound.case]
        assert bound.figure in figures[bound.reference_case or bound.case]
        assert {bound.subject, bound.reference} <= set(by_case.get(bound.case, CONTENDERS))


def test_all_bounds_kept() -> None:
    text, missed = render(_kept(), {})
    assert missed == []
    assert "MISSED" not in text
    assert len(verdicts(_kept())) == len(BOUNDS)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: f"{bound.case}-{bound.figure}-{bound}")
def test_every_bound_can_be_missed(bound: Bound) -> None:
    rounds = _kept()
    reference = rounds[bound.reference_case or bound.case][bound.reference][0]
    value = reference[bound.figure] * bound.limit * (1.01 if bound.at_most else 0.99)
    rounds[bound.case][bound.subject][0][bound.figure] = value
    text, missed = render(rounds, {})
    assert any(str(bound) in line for line in missed)
    assert "MISSED" in text


def test_one_server_alone_has_no_ratio_and_no_verdict() -> None:
    text, missed = render(_rounds(java=1.0), {})
    assert missed == []
    assert "MISSED" not in text


def test_a_busy_load_generator_is_pointed_out() -> None:
    rounds = _rounds(java=1.0)
    rounds["pull"]["java"][0]["load_cores"] = 0.97
    assert "0.97 cores against java" in render(rounds, {})[0]


def test_a_warm_up_that_ended_at_its_maximum_is_pointed_out() -> None:
    rounds = _rounds(java=1.0)
    settled = rounds["batch"]["java"][0] | {"slices": 6, "settled": 1.0}
    rounds["batch"]["java"] = [settled, settled | {"slices": 1, "settled": 0.0}]
    assert "had not settled" not in render(rounds, {})[0]
    rounds["batch"]["java"].append(settled | {"slices": 20, "settled": 0.0})
    assert "before 1 of 3 rounds: it may not have been warm" in render(rounds, {})[0]


def test_refusals_are_reported_and_those_of_others_than_java_fail() -> None:
    rounds = _rounds(java=1.0)
    rounds["batch"]["java"] *= 3
    rounds["batch"]["java"][1] = rounds["batch"]["java"][1] | {"refused": 64}
    text, missed = render(rounds, {})
    assert "NOTE  java refused 64 messages as busy" in text
    assert missed == []
    rounds = _rounds(pyromq=1.0)
    rounds["batch"]["pyromq"][0]["refused"] = 64
    text, missed = render(rounds, {})
    assert missed == ["pyromq refused 64 messages as busy in 'batch 32 x 128 B, 4 x 8 in flight'"]
    assert missed[0] in text


def test_invalid_rounds_are_reported_and_those_of_others_than_java_fail() -> None:
    rounds = _rounds(java=1.0, pyromq=1.0)
    rounds["replication"]["java"].append({INVALID: 1.0})
    text, missed = render(rounds, {})
    line = "1 rounds of 'send 128 B with SYNC_MASTER and a replica, 4 x 64 in flight' were invalid"
    assert f"NOTE  java: {line}" in text
    assert not any("invalid" in each for each in missed)
    rounds["replication"]["pyromq"] = [{INVALID: 1.0}]
    text, missed = render(rounds, {})
    assert missed[-1] == f"pyromq: {line}"
    assert f"MISSED  pyromq: {line}" in text


FACTS = {"date": "2026-01-02", "commit": "abc1234", "machine": "x86_64", "cores": 2}


def test_saved_files_hold_content_and_table(tmp_path: Path) -> None:
    content = {"environment": FACTS, "cases": {}}
    as_json, as_text = save(tmp_path, "broker", content, "table\n", is_baseline=False)
    assert as_json == tmp_path / ".cache/bench-results/2026-01-02-abc1234-broker.json"
    assert orjson.loads(as_json.read_bytes()) == content
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


def test_a_baseline_keeps_the_cases_that_a_run_did_not_measure(tmp_path: Path) -> None:
    rounds = _rounds(java=1.0)
    old = {"environment": {"commit": "old"}, "rounds": {}}
    content = {"environment": FACTS, "cases": {"pull": old, "batch": old, "forgotten": old}}
    save(tmp_path, "broker", content, "", is_baseline=True)
    merged = merged_with_baseline(tmp_path, FACTS, {"batch": rounds["batch"]})
    assert merged == {
        "batch": {"environment": FACTS, "rounds": rounds["batch"]},
        "pull": old,
    }
    assert list(merged) == ["batch", "pull"]


def test_results_of_an_earlier_run_are_not_a_change(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "bench" / "code.py").touch()
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "bench" / "results" / "new.json").touch()
    assert is_committed(environment(tmp_path))
    (tmp_path / "bench" / "code.py").write_text("changed")
    assert not is_committed(environment(tmp_path))


def test_only_a_commit_can_be_a_baseline() -> None:
    assert is_committed({"commit": "abc1234"})
    assert not is_committed({"commit": "abc1234+changes"})
