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
from pathlib import Path
from types import ModuleType
from typing import Final

#: Set to anything but 0 to run without the kernel.
PURE_VARIABLE: Final = "PYROMQ_PURE"
_MISSING: Final = "no compiled kernel installed"
#: Lies beside the extensions in a working tree, and not in a wheel.
_SOURCE_OF_ALL: Final = "raw.pxd"


def load(name: str) -> ModuleType | None:
    """Return a compiled module of this package, or None to run the Python code instead."""
    return None if _is_switched_off() else _load(name)[0]


def describe() -> str:
    """Return which code runs, for `--version` and boot lines: `compiled kernel` or the reason."""
    if _is_switched_off():
        return f"pure Python ({PURE_VARIABLE} is set)"
    names = _names()
    problems = {name: problem for name in names if (problem := _load(name)[1])}
    if not names:
        return f"pure Python ({_MISSING})"
    if not problems:
        return "compiled kernel"
    if len(problems) < len(names):
        text = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        return f"compiled kernel in part ({text})"
    return f"pure Python ({'; '.join(dict.fromkeys(problems.values()))})"


def mark_source(extension: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Append the checksum of its sources in `folder` to a new extension; the loader ignores it."""
    path = Path(extension)
    with path.open("ab") as file:
        file.write(_mark_of(Path(folder), path))


def is_stale(extension: str | os.PathLike[str]) -> bool:
    """Whether an extension is incomplete, or was built from other sources than those beside it."""
    path = Path(extension)
    mark = _mark_of(path.parent, path)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(mark)))
        return file.read() != mark


def _is_switched_off() -> bool:
    return os.environ.get(PURE_VARIABLE, "0") not in ("", "0")


def _names() -> list[str]:
    """Return the names of all modules: of the sources in a working tree, else of the extensions."""
    folder = Path(*__path__)
    sources = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return sorted(sources or {path.name.partition(".")[0] for path in folder.glob("*.so")})


@functools.cache
def _load(name: str) -> tuple[ModuleType | None, str]:
    """Import a compiled module; return it, or None and the reason."""
    full_name = f"{__name__}.{name}"
    spec = importlib.machinery.PathFinder.find_spec(full_name, __path__)
    if spec is None or not isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
        return None, _MISSING
    if "t" in sys.abiflags:
        # It would load, and crash: objects have another layout.
        return None, "no compiled kernel for free-threaded Python"
    try:
        problem = _staleness(spec.loader.path)
        if problem:
            return None, problem
        module = importlib.import_module(full_name)
        # It has imported others, by name.
        problem = next(filter(None, map(_staleness, _extensions())), "")
        return (None, problem) if problem else (module, "")
    except Exception as error:
        # Whatever is wrong with a file on disk, the Python code runs without it.
        return None, f"the compiled kernel does not load: {error}"


def _extensions() -> list[str]:
    """Return the paths of the modules of this package that are imported."""
    prefix = f"{__name__}."
    return [
        module.__file__
        for name, module in list(sys.modules.items())
        if name.startswith(prefix) and module.__file__
    ]


@functools.cache
def _staleness(path: str) -> str:
    """Return what is wrong with an extension in a working tree, or an empty string."""
    extension = Path(path)
    if not (extension.parent / _SOURCE_OF_ALL).exists() or not is_stale(extension):
        return ""
    return "the compiled kernel was built from other sources: run make kernel"


def _mark_of(folder: Path, extension: Path) -> bytes:
    """Return the bytes at the end of an extension: checksums of all C types and of its own code."""
    types = 0
    for path in sorted(folder.glob("*.pxd")):
        types = zlib.crc32(path.read_bytes(), types)
    own = zlib.crc32((folder / f"{extension.name.partition('.')[0]}.py").read_bytes())
    return b"pyromq kernel source %08x%08x" % (types, own)
