"""The compiled kernel: the loops over bytes that a broker or client runs for every message.

Optional. Each module here is Python that Cython compiles to an extension (`setup.py`): the `.py`
file has the code, the `.pxd` file beside it the C types, the `.pyi` file the types for callers.
Without a compiler, or with PYROMQ_PURE=1 in the environment, `load` returns None and the callers
run their own Python code, which is slower and gives the same bytes.

Rules
1. Bytes in, bytes out. A module opens no file, reads no clock, and keeps no reference to a buffer
   of its caller after a call, except to the scratch buffers that it owns.
2. A length is compared with the bytes that are there before it is used (`raw`).
3. Anything unusual is left untouched for the Python code, and nothing counts before the call
   returns. So the Python code is the only place with rare cases and error texts.
4. Byte layouts come from `protocol.message` and `protocol.wire`, at import.

An extension that is missing, does not load, or was built from other sources than those beside it
never stops a start: `load` returns None, and `describe` says why.

The sources do not run uncompiled. `setup.py` runs this file alone, without the package.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import os
import sys
import zlib
from types import ModuleType
from typing import Final

#: Set to anything but 0 to run without the kernel.
PURE_VARIABLE: Final = "PYROMQ_PURE"
#: The digest of its sources follows in an extension (`raw.pxd`).
_MARK: Final = b"pyromq kernel source "
_DIGEST_SIZE: Final = 16
#: Lies beside an extension in a working tree, and in no wheel.
_SOURCE_OF_ALL: Final = "raw.pxd"


def load(name: str) -> ModuleType | None:
    """Return a compiled module of this package, or None to run the Python code instead."""
    return None if _is_switched_off() else _load(name)[0]


def describe() -> str:
    """Return which code runs, for `--version` and boot lines: `compiled kernel` or the reason."""
    if _is_switched_off():
        return f"pure Python ({PURE_VARIABLE} is set)"
    problems = {name: problem for name in _names() if (problem := _load(name)[1])}
    if not problems:
        return "compiled kernel"
    (reason, *others) = dict.fromkeys(problems.values())
    if others:
        reason = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
    if len(problems) == len(_names()):
        return f"pure Python ({reason})"
    return f"compiled kernel without {', '.join(problems)} ({reason})"


def source_digest(folder: str | os.PathLike[str], name: str) -> str:
    """Return a checksum of the sources of a module: its own, and all C types."""
    checksums = _checksum_of_types(os.fspath(folder)), _checksum(os.path.join(folder, f"{name}.py"))
    return "{:08x}{:08x}".format(*checksums)


def built_digest(extension: str | os.PathLike[str]) -> str:
    """Return the checksum of the sources that an extension was built from; empty without one."""
    with open(extension, "rb") as file:
        content = file.read()
    at = content.find(_MARK)
    start = at + len(_MARK)
    return "" if at < 0 else content[start : start + _DIGEST_SIZE].decode("latin-1")


def _is_switched_off() -> bool:
    return os.environ.get(PURE_VARIABLE, "0") not in ("", "0")


def _names() -> list[str]:
    """Return the names of all modules, compiled or not."""
    (folder,) = __path__
    return sorted(name.removesuffix(".pyi") for name in os.listdir(folder) if name.endswith(".pyi"))


@functools.cache
def _load(name: str) -> tuple[ModuleType | None, str]:
    """Import a compiled module; return it, or None and the reason."""
    path = f"{__name__}.{name}"
    spec = importlib.machinery.PathFinder.find_spec(path, __path__)
    if spec is None or not isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
        return None, "no compiled kernel installed"
    if "t" in sys.abiflags:  # it would load, and crash: objects have another layout
        return None, "no compiled kernel for free-threaded Python"
    try:
        if _is_stale(spec.loader.path, name):
            return None, "the compiled kernel is not of this source: run make, or pip install"
        return importlib.import_module(path), ""
    except Exception as error:
        # Whatever is wrong with a file on disk, the Python code runs without it.
        return None, f"the compiled kernel does not load: {error}"


def _is_stale(extension: str, name: str) -> bool:
    """Whether an extension in a working tree was built from other sources than it has now."""
    folder = os.path.dirname(extension)
    if not os.path.exists(os.path.join(folder, _SOURCE_OF_ALL)):
        return False
    return built_digest(extension) != source_digest(folder, name)


@functools.cache
def _checksum_of_types(folder: str) -> int:
    names = sorted(name for name in os.listdir(folder) if name.endswith(".pxd"))
    checksum = 0
    for name in names:
        checksum = _checksum(os.path.join(folder, name), checksum)
    return checksum


def _checksum(path: str, start: int = 0) -> int:
    with open(path, "rb") as file:
        return zlib.crc32(file.read(), start)
