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

The sources do not run uncompiled.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
from types import ModuleType
from typing import Final

#: Set to anything but 0 to run without the kernel.
PURE_VARIABLE: Final = "PYROMQ_PURE"
#: One of the compiled modules, which tells whether there are any.
_PROBE: Final = "sends"


def load(name: str) -> ModuleType | None:
    """Return a compiled module of this package, or None to run the Python code instead."""
    if _is_switched_off():
        return None
    path = f"{__name__}.{name}"
    spec = importlib.machinery.PathFinder.find_spec(path, __path__)
    if spec is None or not isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
        return None
    try:
        return importlib.import_module(path)
    except ImportError:  # built for another interpreter
        return None


def describe() -> str:
    """Return which code runs, for `--version` and the log: `compiled kernel` or the reason."""
    if load(_PROBE) is not None:
        return "compiled kernel"
    if _is_switched_off():
        return f"pure Python ({PURE_VARIABLE} is set)"
    return "pure Python (no compiled kernel installed)"


def _is_switched_off() -> bool:
    return os.environ.get(PURE_VARIABLE, "0") not in ("", "0")
