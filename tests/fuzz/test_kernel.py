"""Fuzz every module of the compiled kernel: checked build against fast build against Python code.

Twenty seconds of CPU time for all modules together in `make test`, which is what a minute was on a
machine with other work; ten million inputs each in `make soak`, which also runs the sanitizers. The
targets are in `tests/fuzz/kernel`.
"""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Final

import pytest

from tests import kernel_builds
from tests.fuzz.kernel import fuzzing
from tests.kernel_builds import CHECKED, FAST, SANITIZED
from tests.support.crash import seeds

#: CPU time for all modules together.
_SECONDS: Final = 20.0
#: Of the soak, per module: short tests, so that none runs into its time-out.
_SOAK_INPUTS: Final = 10_000_000
_SOAK_PARTS: Final = 50
_SANITIZED_INPUTS: Final = 500_000
_SUITE_SEED: Final = 1
_MIN_TAKEN: Final = 0.1

_SOAK_SEEDS: Final = seeds(_SOAK_PARTS)


def test_targets_are_found() -> None:
    assert "sends" in fuzzing.names()


@pytest.mark.parametrize("name", fuzzing.names())
def test_builds_and_python_code_agree(name: str) -> None:
    report = fuzzing.fuzz(name, _SUITE_SEED, seconds=_SECONDS / len(fuzzing.names()))
    assert report.taken > _MIN_TAKEN * report.inputs, report


@pytest.mark.soak
@pytest.mark.parametrize("seed", _SOAK_SEEDS)
@pytest.mark.parametrize("name", fuzzing.names())
def test_builds_and_python_code_agree_in_the_long_run(name: str, seed: int) -> None:
    report = fuzzing.fuzz(name, seed, count=_SOAK_INPUTS // _SOAK_PARTS)
    assert report.taken > _MIN_TAKEN * report.inputs, report


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", _SOAK_SEEDS[:1])
@pytest.mark.parametrize("name", fuzzing.names())
def test_sanitizers_find_nothing(name: str, seed: int) -> None:
    environment = kernel_builds.sanitizer_environment()
    for build in (SANITIZED, FAST):  # without the sanitizers in the compiler
        kernel_builds.folder_of(build)
    command = [sys.executable, "-m", "tests.fuzz.kernel", name, "--sanitized"]
    done = subprocess.run(
        [*command, f"--seed={seed}", f"--count={_SANITIZED_INPUTS}"],
        check=False,
        capture_output=True,
        text=True,
        cwd=kernel_builds.ROOT,
        env=environment,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert f"{_SANITIZED_INPUTS} inputs" in done.stdout


class _Module(ModuleType):
    """A module whose builds disagree about the 50th input, or fault at it."""

    def __init__(self, *, differs: bool, faults: bool) -> None:
        super().__init__("module")
        self.calls = 0
        self.differs = differs
        self.faults = faults

    def fault_count(self) -> int:
        return int(self.faults and self.calls >= 50)


@pytest.mark.parametrize(("differs", "faults"), [(True, False), (False, True), (False, False)])
def test_a_difference_and_a_fault_are_found(
    monkeypatch: pytest.MonkeyPatch, *, differs: bool, faults: bool
) -> None:
    modules = {
        CHECKED: _Module(differs=False, faults=faults),
        FAST: _Module(differs=differs, faults=False),
    }
    monkeypatch.setattr(kernel_builds, "load", lambda build, name: modules[build])
    monkeypatch.setattr(kernel_builds, "loaded", lambda build: {"module": modules[build]})
    monkeypatch.setitem(sys.modules, "tests.fuzz.kernel.module", _target())
    if not differs and not faults:
        assert fuzzing.fuzz("module", 7, count=100) == fuzzing.Report(100, 50)
        return
    with pytest.raises(AssertionError, match="results differ" if differs else "out of bounds") as e:
        fuzzing.fuzz("module", 7, count=100)
    assert e.value.__notes__ == ["module, seed 7, input 49: 49"]


def _target() -> ModuleType:
    target = ModuleType("tests.fuzz.kernel.module")
    target.inputs = lambda random: iter(range(1000))  # type: ignore[attr-defined]

    def runner(module: _Module) -> object:
        def run(given: int) -> int:
            module.calls += 1
            return given + int(module.differs and module.calls == 50)

        return run

    target.runner = runner  # type: ignore[attr-defined]
    target.check = lambda given, result: given % 2 == 0  # type: ignore[attr-defined]
    return target
