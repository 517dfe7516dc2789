"""Builds of the kernel for tests: each its own, all in one process."""

from __future__ import annotations

import sys

import pytest

from pyromq.protocol import kernel
from tests import kernel_builds
from tests.kernel_builds import CHECKED, FAST


def test_two_builds_live_in_one_process() -> None:
    before = kernel.load("sends")
    fast, checked = (kernel_builds.load(build, "sends") for build in (FAST, CHECKED))
    assert fast is not checked
    assert fast.Sends is not checked.Sends
    assert {fast, checked}.isdisjoint({before})
    assert kernel.load("sends") is before
    assert sys.modules.get("pyromq.protocol.kernel.sends") is before


@pytest.mark.parametrize("build", [FAST, CHECKED], ids=lambda build: build.name)
def test_the_modules_of_a_build_import_each_other(build: kernel_builds.Build) -> None:
    kernel_builds.load(build, "sends")
    loaded = kernel_builds.loaded(build)
    folder = kernel_builds.folder_of(build)
    assert {"sends", "send_header", "queue_table"} <= set(loaded)
    assert {module.__file__ for module in loaded.values()} == {
        str(folder / f"{name}.abi3.so") for name in loaded
    }


def test_a_build_has_every_module() -> None:
    built = {path.name for path in kernel_builds.folder_of(FAST).iterdir()}
    assert built == {f"{name}.abi3.so" for name in kernel_builds.names()}


def test_no_compiler_is_a_skip_and_in_ci_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception, match=r"no C compiler \(no-such-compiler\)"):
        kernel_builds.compiler_or_skip()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI=true"):
        kernel_builds.compiler_or_skip()
