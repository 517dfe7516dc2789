"""Builds of the compiled kernel for tests: fast, with bounds checks, and with sanitizers.

Each is built once for each state of the sources, below `.cache/kernel`; a file lock lets several
pytest workers, and several checkouts, share them. `load` gives a module of any build, and all
builds can live in one process, except the sanitized one: that needs a process of its own, started
with `sanitizer_environment`.

    checked = kernel_builds.load(kernel_builds.CHECKED, "sends")
    fast = kernel_builds.load(kernel_builds.FAST, "sends")

Without a C compiler the running test is skipped, or fails if CI=true. Every call blocks.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple, NoReturn

import pytest

from pyromq.protocol import kernel

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "src/pyromq/protocol/kernel"
CACHE: Final = ROOT / ".cache/kernel"
_PREFIX: Final = f"{kernel.__name__}."
_KEEP_SECONDS: Final = 7 * 86400.0

_SANITIZERS: Final = "-fsanitize=address,undefined"


class Build(NamedTuple):
    """A way to compile the kernel: the name of its folder, and variables for `setup.py`."""

    name: str
    environment: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.name)


FAST: Final = Build("fast", {})
CHECKED: Final = Build("checked", {"PYROMQ_CHECKED": "1"})
#: Without bounds checks of its own: the sanitizers must see what the fast build does.
SANITIZED: Final = Build(
    "sanitized",
    {"CFLAGS": f"{_SANITIZERS} -fno-sanitize-recover=all -g1", "LDFLAGS": _SANITIZERS},
)


def names() -> list[str]:
    """Return the names of all modules of the kernel, also of those without callers outside."""
    return sorted(path.stem for path in SOURCES.glob("*.py") if path.stem != "__init__")


@functools.cache
def load(build: Build, name: str) -> ModuleType:
    """Return a module of a build; modules of other builds with the same name stay as they are."""
    with _visible(folder_of(build)):
        return importlib.import_module(_PREFIX + name)


def fault_count(build: Build) -> int:
    """Return how many accesses outside a buffer the loaded modules of a build have caught."""
    return sum(module.fault_count() for module in loaded(build).values())


def loaded(build: Build) -> dict[str, ModuleType]:
    """Return the modules of a build that are loaded, also those that others imported."""
    modules = _loaded.get(folder_of(build), {})
    return {name.removeprefix(_PREFIX): module for name, module in modules.items()}


@functools.cache
def folder_of(build: Build) -> Path:
    """Return the folder with the extensions of a build, after building them if needed."""
    compiler_or_skip()
    directory = CACHE / _digest()
    directory.mkdir(parents=True, exist_ok=True)
    folder = directory / build.name
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            if build != FAST or not _copy_from_tree(folder):
                _compile(build, folder)
            _remove_old(directory)
    os.utime(directory)
    return folder


def compiler_or_skip() -> str:
    """Return the C compiler; skip the running test without it or Cython, fail it in CI."""
    words = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    path = shutil.which(words[0])
    if path is None:
        _skip(f"no C compiler ({words[0]}) on PATH: the kernel cannot be built")
    if importlib.util.find_spec("Cython") is None:
        _skip("no Cython: the kernel cannot be built")
    return path


def sanitizer_environment() -> dict[str, str]:
    """Return the environment of a Python process that loads the sanitized build."""
    compiler = compiler_or_skip()
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        command = [compiler, f"-print-file-name={name}"]
        path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        if not Path(path).is_absolute():
            _skip(f"{compiler} has no {name}: the kernel cannot run with sanitizers")
        libraries.append(path)
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        # Python keeps objects for ever, and its own allocator would hide the ends of buffers.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


def _skip(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason + " (CI=true: a skip is a failure)")
    pytest.skip(reason)


def _digest() -> str:
    """Return a checksum of everything that a build depends on."""
    digest = hashlib.sha256(f"{version('cython')} {sysconfig.get_platform()}".encode())
    for path in sorted([ROOT / "setup.py", *SOURCES.glob("*.py"), *SOURCES.glob("*.pxd")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _copy_from_tree(folder: Path) -> bool:
    """Copy the extensions beside the sources if they are complete and current.

    `make` has just built them with the same flags. A compilation takes half a minute of CPU time.
    """
    extensions = [SOURCES / f"{name}.abi3.so" for name in names()]
    changed = (ROOT / "setup.py").stat().st_mtime
    if os.environ.get("CFLAGS") or not all(
        each.exists() and each.stat().st_mtime > changed and not kernel.is_stale(each)
        for each in extensions
    ):
        return False
    with tempfile.TemporaryDirectory(dir=folder.parent) as directory:
        ready = Path(directory, "ready")
        ready.mkdir()
        for extension in extensions:
            shutil.copy2(extension, ready)
        ready.rename(folder)
    return True


def _compile(build: Build, folder: Path) -> None:
    """Build all extensions in a temporary directory, and move them into place when complete."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as directory:
        library = Path(directory, "library")
        done = subprocess.run(
            [
                *(sys.executable, "setup.py", "--quiet", "build_ext", "--force"),
                *(f"--build-lib={library}", f"--build-temp={directory}/objects"),
            ],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYROMQ_PURE": "0", "PYROMQ_CHECKED": "0", **build.environment},
        )
        extensions = list(library.rglob("*.so"))
        if len(extensions) < len(names()):
            output = (done.stdout + done.stderr)[-5000:]
            raise RuntimeError(f"the {build.name} build of the kernel failed:\n{output}")
        ready = Path(directory, "ready")
        ready.mkdir()
        for extension in extensions:
            extension.rename(ready / extension.name)
        ready.rename(folder)


def _remove_old(current: Path) -> None:
    """Remove the builds of sources that no test has used for a week."""
    for directory in current.parent.iterdir():
        if directory != current and directory.stat().st_mtime < time.time() - _KEEP_SECONDS:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _visible(folder: Path) -> Iterator[None]:
    """Let the names of the kernel's modules mean those of one build.

    The modules of a build import each other by name, when they are imported and never later.
    """
    ours = _loaded.setdefault(folder, {})
    others = _modules()
    attributes = dict(vars(kernel))
    path = list(kernel.__path__)
    _replace_modules(ours)
    kernel.__path__[:] = [str(folder)]
    try:
        yield
    finally:
        ours.update(_modules())
        _replace_modules(others)
        kernel.__path__[:] = path
        vars(kernel).clear()
        vars(kernel).update(attributes)


#: The modules of each build that are loaded, by their names in `sys.modules`.
_loaded: dict[Path, dict[str, ModuleType]] = {}


def _modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.startswith(_PREFIX)}


def _replace_modules(modules: Mapping[str, ModuleType]) -> None:
    for name in _modules():
        del sys.modules[name]
    sys.modules.update(modules)
