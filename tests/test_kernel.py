"""The door to the compiled kernel: it opens only for an extension of these sources."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pyromq.protocol import kernel
from tests import kernel_builds
from tests.kernel_builds import FAST, SOURCES

STALE = "pure Python (the compiled kernel was built from other sources: run make kernel)"
MISSING = "pure Python (no compiled kernel installed)"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the kernel's folder, with current extensions."""
    folder = tmp_path / "kernel"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for extension in kernel_builds.folder_of(FAST).iterdir():
        shutil.copy2(extension, folder)
    return folder


def described(folder: Path, **environment: str) -> str:
    """Return what a new process says about the kernel in a folder."""
    program = (
        "import sys\n"
        "from pyromq.protocol import kernel\n"
        "kernel.__path__[:] = sys.argv[1:]\n"
        "print(kernel.describe(), kernel.load('sends') is not None, sep='|')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYROMQ_PURE": "0", **environment},
    )
    text, _, is_loaded = done.stdout.strip().rpartition("|")
    assert (is_loaded == "True") == (text == "compiled kernel")
    return text


def test_the_kernel_runs(tree: Path) -> None:
    assert described(tree) == "compiled kernel"
    assert described(tree, PYROMQ_PURE="") == "compiled kernel"


def test_it_is_switched_off(tree: Path) -> None:
    assert described(tree, PYROMQ_PURE="1") == "pure Python (PYROMQ_PURE is set)"


def test_no_extension(tree: Path) -> None:
    for extension in tree.glob("*.so"):
        extension.unlink()
    assert described(tree) == MISSING


def test_a_wheel_without_extensions(tmp_path: Path) -> None:
    assert described(tmp_path) == MISSING


def test_a_wheel_has_no_sources_to_compare(tree: Path) -> None:
    for pattern in ("*.py", "*.pxd"):
        for source in tree.glob(pattern):
            source.unlink()
    assert described(tree) == "compiled kernel"


def test_changed_types_make_every_extension_stale(tree: Path) -> None:
    with (tree / "raw.pxd").open("a") as file:
        file.write("# changed\n")
    assert described(tree) == STALE


def test_a_module_is_stale_if_one_that_it_imports_is(tree: Path) -> None:
    with (tree / "queue_table.py").open("a") as file:
        file.write("# changed\n")
    text = described(tree)
    assert text.startswith("compiled kernel in part (")
    for name in ("queue_table", "sends"):
        assert f"{name}: the compiled kernel was built from other sources" in text


@pytest.mark.parametrize("rest", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_extension(tree: Path, rest: float) -> None:
    """The loader of the C library would crash on some of them."""
    for extension in tree.glob("*.so"):
        os.truncate(extension, int(extension.stat().st_size * rest))
    assert described(tree) == STALE


def test_an_extension_of_another_platform(tree: Path) -> None:
    for extension in tree.glob("*.so"):
        content = bytearray(extension.read_bytes())
        content[18] ^= 0x55  # the machine in the ELF header
        extension.write_bytes(content)
    assert described(tree).startswith("pure Python (the compiled kernel does not load: ")


def test_a_file_that_is_not_an_extension(tree: Path) -> None:
    for source in [*tree.glob("*.pxd"), *tree.glob("*.py")]:
        source.unlink()
    for extension in tree.glob("*.so"):
        extension.write_text("not an extension")
    assert described(tree).startswith("pure Python (the compiled kernel does not load: ")


@pytest.fixture
def fresh() -> Iterator[ModuleType]:
    """The package, without memory of what it loaded, before and after."""
    kernel._load.cache_clear()
    yield kernel
    kernel._load.cache_clear()


def test_free_threaded_python(monkeypatch: pytest.MonkeyPatch, fresh: ModuleType) -> None:
    monkeypatch.delenv(kernel.PURE_VARIABLE, raising=False)
    monkeypatch.setattr(kernel, "__path__", [str(kernel_builds.folder_of(FAST))])
    monkeypatch.setattr(sys, "abiflags", "t")
    assert fresh.describe() == "pure Python (no compiled kernel for free-threaded Python)"


def test_an_import_that_fails(monkeypatch: pytest.MonkeyPatch, fresh: ModuleType) -> None:
    def fail(name: str) -> ModuleType:
        raise ValueError("size changed")

    monkeypatch.delenv(kernel.PURE_VARIABLE, raising=False)
    monkeypatch.setattr(kernel, "__path__", [str(kernel_builds.folder_of(FAST))])
    monkeypatch.setattr(importlib, "import_module", fail)
    assert fresh.load("sends") is None
    assert "does not load: size changed" in fresh.describe()
